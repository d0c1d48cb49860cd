#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "binding.h"

namespace trimtab::python {

/// Arrays come in row-major on the CPU with the very element type: trimtab.experts copies what is not.
template <class T, int kDimensions>
using Array = nb::ndarray<const T, nb::ndim<kDimensions>, nb::c_contig, nb::device::cpu>;

template <class... Kinds>
auto span_of(const nb::ndarray<Kinds...>& array) {
  return std::span(array.data(), array.size());
}

/// A size of an array as our 32-bit count.
template <class A>
std::int32_t size_of(const A& array, std::size_t dimension) {
  const std::size_t size = array.shape(dimension);
  if (size > 0x7fffffff) {
    throw nb::value_error(
        ("an array has " + std::to_string(size) + " entries in one dimension: too many").c_str());
  }
  return static_cast<std::int32_t>(size);
}

/// A NumPy array of that shape which owns the values.
template <class T>
nb::object to_numpy(std::vector<T> values, std::initializer_list<std::size_t> shape) {
  auto* owned = new std::vector<T>(std::move(values));
  const nb::capsule owner(owned, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T>(owned->data(), shape.size(), shape.begin(), owner));
}

template <class E>
std::size_t extent(E value) {
  return static_cast<std::size_t>(value);
}

/// Runs `work` without the interpreter's lock: Python threads go on while it plans.
template <class F>
auto unlocked(F&& work) {
  const nb::gil_scoped_release released;
  return std::forward<F>(work)();
}

/// A status as nothing or an exception.
inline void unwrap_status(const base::Status& status) {
  if (!status) unwrap(base::Result<int>(tl::unexpected(status.error())));
}

void bind_experts_advise(nb::module_& module);
void bind_experts_plan(nb::module_& module);
void bind_experts_dispatch(nb::module_& module);
void bind_experts_locality(nb::module_& module);
void bind_experts_runtime(nb::module_& module);
void bind_experts_evaluation(nb::module_& module);

}  // namespace trimtab::python
