#include <fmt/format.h>

#include <cstring>

#include "gguf/directory.h"

// The typed getters of `Directory`. `parse` has checked every extent, so they read without further bounds.
namespace trimtab::gguf {

namespace {

template <class T>
T element(const Value& value, std::uint64_t index = 0) {
  T number;
  std::memcpy(&number, value.bytes.data() + index * sizeof(T), sizeof number);
  return number;
}

tl::unexpected<base::Error> wrong_type(std::string_view key, const Value& value, std::string_view wanted) {
  return base::fail(base::Code::kInvalidArgument,
                    fmt::format("key {} holds {}{}, {} was expected", key,
                                value.is_array ? "an array of " : "", name(value.type), wanted),
                    "gguf");
}

/// Any integer type, widened; nothing for other types.
std::optional<std::int64_t> integer(const Value& value, std::uint64_t index = 0) {
  switch (value.type) {
    case ValueType::kU8:
      return element<std::uint8_t>(value, index);
    case ValueType::kI8:
      return element<std::int8_t>(value, index);
    case ValueType::kU16:
      return element<std::uint16_t>(value, index);
    case ValueType::kI16:
      return element<std::int16_t>(value, index);
    case ValueType::kU32:
      return element<std::uint32_t>(value, index);
    case ValueType::kI32:
      return element<std::int32_t>(value, index);
    case ValueType::kI64:
      return element<std::int64_t>(value, index);
    case ValueType::kU64: {
      const auto number = element<std::uint64_t>(value, index);
      if (number > INT64_MAX) return std::nullopt;
      return static_cast<std::int64_t>(number);
    }
    default:
      return std::nullopt;
  }
}

std::string_view next_string(std::span<const std::byte>& bytes) {
  std::uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof size);
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()) + sizeof size, size);
  bytes = bytes.subspan(sizeof size + size);
  return text;
}

}  // namespace

std::string_view name(ValueType type) {
  switch (type) {
    case ValueType::kU8:
      return "u8";
    case ValueType::kI8:
      return "i8";
    case ValueType::kU16:
      return "u16";
    case ValueType::kI16:
      return "i16";
    case ValueType::kU32:
      return "u32";
    case ValueType::kI32:
      return "i32";
    case ValueType::kF32:
      return "f32";
    case ValueType::kBool:
      return "bool";
    case ValueType::kString:
      return "string";
    case ValueType::kArray:
      return "array";
    case ValueType::kU64:
      return "u64";
    case ValueType::kI64:
      return "i64";
    case ValueType::kF64:
      return "f64";
  }
  return "unknown";
}

base::Result<Value> Directory::find(std::string_view key, bool is_array) const {
  const auto found = values_.find(key);
  if (found == values_.end()) {
    return base::fail(base::Code::kNotFound, fmt::format("the file has no key {}", key), "gguf");
  }
  if (found->second.is_array != is_array) {
    return wrong_type(key, found->second, is_array ? "an array" : "a single value");
  }
  return found->second;
}

base::Result<std::string_view> Directory::string(std::string_view key) const {
  auto value = find(key, false);
  if (!value) return tl::unexpected(value.error());
  if (value->type != ValueType::kString) return wrong_type(key, *value, "a string");
  return next_string(value->bytes);
}

base::Result<std::uint32_t> Directory::u32(std::string_view key) const {
  const auto value = find(key, false);
  if (!value) return tl::unexpected(value.error());
  const auto number = integer(*value);
  if (!number) return wrong_type(key, *value, "an integer");
  if (*number < 0 || *number > UINT32_MAX) {
    return base::fail(base::Code::kInvalidArgument, fmt::format("key {} is {}, beyond 32 bits", key, *number),
                      "gguf");
  }
  return static_cast<std::uint32_t>(*number);
}

base::Result<float> Directory::f32(std::string_view key) const {
  const auto value = find(key, false);
  if (!value) return tl::unexpected(value.error());
  if (value->type == ValueType::kF64) return static_cast<float>(element<double>(*value));
  if (value->type != ValueType::kF32) return wrong_type(key, *value, "f32");
  return element<float>(*value);
}

base::Result<bool> Directory::boolean(std::string_view key) const {
  const auto value = find(key, false);
  if (!value) return tl::unexpected(value.error());
  if (value->type != ValueType::kBool) return wrong_type(key, *value, "bool");
  return element<std::uint8_t>(*value) != 0;
}

base::Result<std::vector<std::string_view>> Directory::strings(std::string_view key) const {
  auto value = find(key, true);
  if (!value) return tl::unexpected(value.error());
  if (value->type != ValueType::kString) return wrong_type(key, *value, "an array of strings");
  std::vector<std::string_view> texts;
  texts.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) texts.push_back(next_string(value->bytes));
  return texts;
}

base::Result<std::vector<std::int32_t>> Directory::i32s(std::string_view key) const {
  const auto value = find(key, true);
  if (!value) return tl::unexpected(value.error());
  std::vector<std::int32_t> numbers;
  numbers.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) {
    const auto number = integer(*value, i);
    if (!number || *number < INT32_MIN || *number > INT32_MAX)
      return wrong_type(key, *value, "an array of i32");
    numbers.push_back(static_cast<std::int32_t>(*number));
  }
  return numbers;
}

base::Result<std::vector<float>> Directory::f32s(std::string_view key) const {
  const auto value = find(key, true);
  if (!value) return tl::unexpected(value.error());
  if (value->type != ValueType::kF32) return wrong_type(key, *value, "an array of f32");
  std::vector<float> numbers;
  numbers.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) numbers.push_back(element<float>(*value, i));
  return numbers;
}

base::Result<std::vector<bool>> Directory::booleans(std::string_view key) const {
  const auto value = find(key, true);
  if (!value) return tl::unexpected(value.error());
  if (value->type != ValueType::kBool) return wrong_type(key, *value, "an array of bool");
  std::vector<bool> flags;
  flags.reserve(value->count);
  for (std::uint64_t i = 0; i < value->count; ++i) flags.push_back(element<std::uint8_t>(*value, i) != 0);
  return flags;
}

base::Result<Tensor> Directory::tensor(std::string_view tensor_name) const {
  const auto found = tensor_index_.find(tensor_name);
  if (found == tensor_index_.end()) {
    return base::fail(base::Code::kNotFound, fmt::format("the file has no tensor {}", tensor_name), "gguf");
  }
  return tensors_[found->second];
}

}  // namespace trimtab::gguf
