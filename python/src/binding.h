#pragma once

#include <nanobind/nanobind.h>

#include "base/error.h"

namespace trimtab::python {

namespace nb = nanobind;

/// The value, or a Python exception: ValueError for what the caller gave, FileNotFoundError, else
/// RuntimeError.
template <class T>
T unwrap(base::Result<T> result) {
  if (result) return std::move(*result);
  const std::string message = result.error().message;
  switch (result.error().code) {
    case base::Code::kInvalidArgument:
    case base::Code::kUnsupported:
      throw nb::value_error(message.c_str());
    case base::Code::kNotFound:
      PyErr_SetString(PyExc_FileNotFoundError, message.c_str());
      throw nb::python_error();
    default:
      throw std::runtime_error(message);
  }
}

void bind_decode(nb::module_& module);

}  // namespace trimtab::python
