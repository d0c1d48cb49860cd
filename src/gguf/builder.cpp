#include "gguf/builder.h"

#include <fmt/format.h>

#include <cstdio>

namespace trimtab::gguf {

namespace {

constexpr std::size_t kAlignment = 32;

template <class T>
void put(std::vector<std::byte>& out, T value) {
  const auto* begin = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), begin, begin + sizeof value);
}

void put_text(std::vector<std::byte>& out, std::string_view text) {
  put(out, static_cast<std::uint64_t>(text.size()));
  const auto* begin = reinterpret_cast<const std::byte*>(text.data());
  out.insert(out.end(), begin, begin + text.size());
}

void align(std::vector<std::byte>& out) {
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
}

}  // namespace

void Builder::key(std::string_view name, ValueType type) {
  put_text(metadata_, name);
  put(metadata_, static_cast<std::uint32_t>(type));
  ++keys_;
}

Builder& Builder::add(std::string_view name, std::string_view text) {
  key(name, ValueType::kString);
  put_text(metadata_, text);
  return *this;
}

Builder& Builder::add(std::string_view name, std::uint32_t number) {
  key(name, ValueType::kU32);
  put(metadata_, number);
  return *this;
}

Builder& Builder::add(std::string_view name, float number) {
  key(name, ValueType::kF32);
  put(metadata_, number);
  return *this;
}

Builder& Builder::add_flag(std::string_view name, bool flag) {
  key(name, ValueType::kBool);
  put(metadata_, static_cast<std::uint8_t>(flag));
  return *this;
}

Builder& Builder::add_flags(std::string_view name, const std::vector<bool>& flags) {
  key(name, ValueType::kArray);
  put(metadata_, static_cast<std::uint32_t>(ValueType::kBool));
  put(metadata_, static_cast<std::uint64_t>(flags.size()));
  for (const bool flag : flags) put(metadata_, static_cast<std::uint8_t>(flag));
  return *this;
}

Builder& Builder::add(std::string_view name, const std::vector<std::string>& texts) {
  key(name, ValueType::kArray);
  put(metadata_, static_cast<std::uint32_t>(ValueType::kString));
  put(metadata_, static_cast<std::uint64_t>(texts.size()));
  for (const std::string& text : texts) put_text(metadata_, text);
  return *this;
}

Builder& Builder::add(std::string_view name, const std::vector<std::int32_t>& numbers) {
  key(name, ValueType::kArray);
  put(metadata_, static_cast<std::uint32_t>(ValueType::kI32));
  put(metadata_, static_cast<std::uint64_t>(numbers.size()));
  for (const std::int32_t number : numbers) put(metadata_, number);
  return *this;
}

Builder& Builder::add_tensor(std::string_view name, TensorType type, std::vector<std::uint64_t> dims,
                             std::span<const std::byte> data) {
  put_text(table_, name);
  put(table_, static_cast<std::uint32_t>(dims.size()));
  for (const std::uint64_t dim : dims) put(table_, dim);
  put(table_, static_cast<std::uint32_t>(type));
  align(data_);
  put(table_, static_cast<std::uint64_t>(data_.size()));
  data_.insert(data_.end(), data.begin(), data.end());
  ++tensors_;
  return *this;
}

Builder& Builder::add_tensor(std::string_view name, std::vector<std::uint64_t> dims,
                             std::span<const float> values) {
  return add_tensor(name, TensorType::kF32, std::move(dims), std::as_bytes(values));
}

std::vector<std::byte> Builder::bytes() const {
  constexpr std::uint32_t kVersion = 3;
  std::vector<std::byte> out;
  for (const char letter : std::string_view("GGUF")) out.push_back(static_cast<std::byte>(letter));
  put(out, kVersion);
  put(out, tensors_);
  put(out, keys_);
  out.insert(out.end(), metadata_.begin(), metadata_.end());
  out.insert(out.end(), table_.begin(), table_.end());
  align(out);
  out.insert(out.end(), data_.begin(), data_.end());
  return out;
}

base::Status Builder::write(const std::string& path) const {
  const std::vector<std::byte> content = bytes();
  std::FILE* file = std::fopen(path.c_str(), "wb");
  const bool written =
      file != nullptr && std::fwrite(content.data(), 1, content.size(), file) == content.size();
  const bool closed = file != nullptr && std::fclose(file) == 0;
  if (written && closed) return {};
  return base::fail(base::Code::kIo, fmt::format("cannot write {}", path), "gguf");
}

}  // namespace trimtab::gguf
