#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/tensor.h"

namespace trimtab::gguf {

/// Value types of the metadata; the numbers are the file's own.
enum class ValueType : std::uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

std::string_view name(ValueType type);

/// One metadata value, still in the file's bytes. `type` is the element type of an array.
struct Value {
  ValueType type = ValueType::kU8;
  bool is_array = false;
  std::uint64_t count = 1;
  std::span<const std::byte> bytes;  // elements one after another; strings with their u64 lengths
};

/// The parsed front of a GGUF file (versions 2 and 3, little-endian): metadata and tensor table. Holds views
/// into the bytes it was parsed from. Every length, count and offset was checked against them, so no accessor
/// can read outside.
class Directory {
 public:
  /// `file` is the whole file. Errors (kDataLoss) say at which byte of what the file ends or what is wrong.
  static base::Result<Directory> parse(std::span<const std::byte> file);

  bool has(std::string_view key) const { return values_.contains(key); }
  /// Each getter fails with kNotFound for a missing key and kInvalidArgument for a value of another type.
  base::Result<std::string_view> string(std::string_view key) const;
  /// Any integer type that fits.
  base::Result<std::uint32_t> u32(std::string_view key) const;
  base::Result<float> f32(std::string_view key) const;
  base::Result<bool> boolean(std::string_view key) const;
  base::Result<std::vector<std::string_view>> strings(std::string_view key) const;
  base::Result<std::vector<std::int32_t>> i32s(std::string_view key) const;
  base::Result<std::vector<float>> f32s(std::string_view key) const;
  base::Result<std::vector<bool>> booleans(std::string_view key) const;

  const std::map<std::string_view, Value>& values() const { return values_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  /// kNotFound when the file has no tensor of that name.
  base::Result<Tensor> tensor(std::string_view name) const;
  /// Offset of the first tensor's bytes: everything before it is the header.
  std::size_t data_offset() const { return data_offset_; }

 private:
  base::Result<Value> find(std::string_view key, bool is_array) const;

  std::map<std::string_view, Value> values_;
  std::vector<Tensor> tensors_;
  std::map<std::string_view, std::size_t> tensor_index_;
  std::size_t data_offset_ = 0;
};

}  // namespace trimtab::gguf
