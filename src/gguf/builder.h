#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "gguf/directory.h"

namespace trimtab::gguf {

/// Writes GGUF (version 3) files: small models for tests and tools. Keys and tensors stay in the order in
/// which they were added; keys are not checked for duplicates, so a test can make a broken file.
class Builder {
 public:
  Builder& add(std::string_view key, std::string_view text);
  Builder& add(std::string_view key, std::uint32_t number);
  Builder& add(std::string_view key, float number);
  /// Named apart, since a string literal would rather turn into a bool than into a string_view.
  Builder& add_flag(std::string_view key, bool flag);
  Builder& add_flags(std::string_view key, const std::vector<bool>& flags);
  Builder& add(std::string_view key, const std::vector<std::string>& texts);
  Builder& add(std::string_view key, const std::vector<std::int32_t>& numbers);
  /// `data` holds the rows as stored; its size is not checked against `dims`.
  Builder& add_tensor(std::string_view name, TensorType type, std::vector<std::uint64_t> dims,
                      std::span<const std::byte> data);
  Builder& add_tensor(std::string_view name, std::vector<std::uint64_t> dims, std::span<const float> values);

  std::vector<std::byte> bytes() const;
  base::Status write(const std::string& path) const;

 private:
  void key(std::string_view name, ValueType type);

  std::vector<std::byte> metadata_;
  std::vector<std::byte> table_;
  std::vector<std::byte> data_;
  std::uint64_t keys_ = 0;
  std::uint64_t tensors_ = 0;
};

}  // namespace trimtab::gguf
