// Conversions between numpy arrays and the engine's spans and vectors.
#pragma once

#include <nanobind/ndarray.h>

#include <span>
#include <utility>
#include <vector>

namespace astra_sim::python {

namespace nb = nanobind;

// A one-dimensional array to read; other integer types and lists of numpy scalars are converted by
// nanobind.
template <class T>
using Column = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> as_span(const Column<T>& column) {
  return {column.data(), column.size()};
}

// Hands a vector to numpy without a copy; `columns` > 0 makes a matrix of that many columns.
template <class T>
nb::object as_array(std::vector<T> values, std::size_t columns = 0) {
  auto* owned = new std::vector<T>(std::move(values));
  nb::capsule owner(owned,
                    [](void* pointer) noexcept { delete static_cast<std::vector<T>*>(pointer); });
  if (columns == 0) {
    return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(owned->data(), {owned->size()}, owner));
  }
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<2>>(
      owned->data(), {owned->size() / columns, columns}, owner));
}

}  // namespace astra_sim::python
