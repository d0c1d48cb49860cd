#pragma once

#include <string>

#include "io/expert_array.h"

namespace trimtab::io {

inline constexpr std::string_view kNpyMagic = "\x93NUMPY";

/// A NumPy array file (format 1.0 to 3.0: NEP 1): every boolean, integer and floating type, either byte
/// order, C and Fortran order. Values stream into the result, so that memory is that of the result. Errors
/// name the header's value: an object, complex or text type (their loading would run code, or they are no
/// counts), a shape too large, an array cut short
/// or followed by more.
base::Result<ExpertArray> read_npy(ByteSource& source, std::int64_t elements_max = kExpertElementsMax);

/// A whole .npy file (format 1.0, '<i8' or '<i4', C order).
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int64_t> values);
std::string npy_bytes(std::span<const std::int64_t> shape, std::span<const std::int32_t> values);

}  // namespace trimtab::io
