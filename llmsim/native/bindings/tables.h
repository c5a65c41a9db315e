// Tables (base/columns.h) as dictionaries of numpy arrays.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "base/columns.h"
#include "bindings/bindings.h"

namespace llmsim {

// Adds the columns of a table, which are moved.
template <typename Table>
void add_columns(nb::dict& columns, Table&& table) {
  static_assert(!std::is_lvalue_reference_v<Table>, "a table is moved; copy it where it is kept");
  each_column(table,
              [&](const char* name, auto& values) { columns[name] = to_array(std::move(values)); });
}

template <typename Table>
nb::dict to_dict(Table&& table) {
  nb::dict columns;
  add_columns(columns, std::forward<Table>(table));
  return columns;
}

// Name of the numpy type of a column's values.
template <typename T>
constexpr const char* type_name() {
  static_assert(std::is_integral_v<T>, "a column holds integers");
  if constexpr (std::is_unsigned_v<T>) return sizeof(T) == 1 ? "uint8" : "uint64";
  if constexpr (sizeof(T) == 2) return "int16";
  return sizeof(T) == 4 ? "int32" : "int64";
}

// The type of every column of a table, by its name.
template <typename Table>
void add_types(nb::dict& types) {
  std::apply(
      [&](const auto&... one) {
        const auto add = [&]<typename T>(const char* name, std::vector<T> Table::*) {
          types[name] = type_name<T>();
        };
        (add(one.name, one.values), ...);
      },
      Table::columns());
}

}  // namespace llmsim
