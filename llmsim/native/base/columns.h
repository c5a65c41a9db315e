// Tables: structs of vectors, whose members are listed once with the names that Python sees.
#pragma once

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <vector>

namespace llmsim {

// One column of a table: the name that Python sees, and the member that holds the values. The
// column's type, unit and meaning are declared in llmsim/columns.py.
template <typename Table, typename T>
struct Column {
  const char* name;
  std::vector<T> Table::* values;
};
template <typename Table, typename T>
Column(const char*, std::vector<T> Table::*) -> Column<Table, T>;

// Calls visit(name, vector) for each column of a table, in the order of Table::columns().
template <typename Table, typename Visit>
void each_column(Table& table, Visit visit) {
  std::apply([&](const auto&... one) { (visit(one.name, table.*one.values), ...); },
             std::remove_const_t<Table>::columns());
}

// Whether columns() lists every member of the table; one that is left out would be lost in silence.
template <typename Table>
constexpr bool lists_every_member() {
  return sizeof(Table) ==
         std::tuple_size_v<decltype(Table::columns())> * sizeof(std::vector<std::byte>);
}

// Gives every column `rows` values, new ones 0.
template <typename Table>
void resize(Table& table, std::size_t rows) {
  each_column(table, [rows](const char*, auto& values) { values.resize(rows); });
}

// Adds the rows of `part` to those of `all`.
template <typename Table>
void append(Table& all, const Table& part) {
  static_assert(lists_every_member<Table>(), "columns() lacks a member of the table");
  std::apply(
      [&](const auto&... one) {
        ((all.*one.values)
             .insert((all.*one.values).end(), (part.*one.values).begin(), (part.*one.values).end()),
         ...);
      },
      Table::columns());
}

}  // namespace llmsim
