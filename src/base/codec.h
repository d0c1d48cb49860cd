#pragma once

#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "base/strong.h"

namespace trimtab::base {

/// Little-endian binary form of plain structs. A struct takes part by a member `template <class A> void
/// visit(A& archive)` that calls `archive(field)...` once for all fields in a fixed order; the same list
/// writes and reads.
class Writer {
 public:
  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      raw(&value, sizeof value);
    } else {
      const_cast<T&>(value).visit(*this);
    }
  }
  template <class Tag>
  void put(const Quantity<Tag>& q) {
    put(q.value);
  }
  template <class Tag, class Rep>
  void put(const Id<Tag, Rep>& id) {
    put(id.value);
  }
  void put(const std::string& text) {
    put(static_cast<std::uint64_t>(text.size()));
    raw(text.data(), text.size());
  }
  template <class T>
  void put(const std::vector<T>& values) {
    put(static_cast<std::uint64_t>(values.size()));
    if constexpr (std::is_arithmetic_v<T>) {
      raw(values.data(), values.size() * sizeof(T));
    } else {
      for (const T& value : values) put(value);
    }
  }
  template <class T>
  void put(const std::optional<T>& value) {
    put(static_cast<std::uint8_t>(value.has_value()));
    if (value) put(*value);
  }
  void raw(const void* data, std::size_t size) {
    const auto* begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
  }
  std::vector<std::byte> bytes_;
};

/// The reading side. Reading past the end, or a length beyond what is left, makes `ok()` false and yields
/// zeros: never a crash.
class Reader {
 public:
  explicit Reader(std::span<const std::byte> bytes) : rest_(bytes) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  bool ok() const { return ok_; }
  bool at_end() const { return rest_.empty(); }
  /// For a `visit` that reads something it cannot accept.
  void reject() { ok_ = false; }

 private:
  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;  // any byte may come from outside, and a bool must be 0 or 1
      raw(&byte, 1);
      value = byte != 0;
    } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      raw(&value, sizeof value);
    } else {
      value.visit(*this);
    }
  }
  template <class Tag>
  void get(Quantity<Tag>& q) {
    get(q.value);
  }
  template <class Tag, class Rep>
  void get(Id<Tag, Rep>& id) {
    get(id.value);
  }
  void get(std::string& text) {
    const std::size_t size = length(1);
    text.resize(size);
    raw(text.data(), size);
  }
  template <class T>
  void get(std::vector<T>& values) {
    if constexpr (std::is_arithmetic_v<T>) {
      const std::size_t size = length(sizeof(T));
      values.resize(size);
      raw(values.data(), size * sizeof(T));
    } else {
      const std::size_t size = length(1);
      values.clear();
      for (std::size_t i = 0; i < size && ok_; ++i) get(values.emplace_back());
    }
  }
  template <class T>
  void get(std::optional<T>& value) {
    std::uint8_t present = 0;
    get(present);
    value.reset();
    if (present != 0 && ok_) get(value.emplace());
  }
  std::size_t length(std::size_t item_bytes) {
    std::uint64_t size = 0;
    get(size);
    if (size > rest_.size() / item_bytes) {
      ok_ = false;
      return 0;
    }
    return static_cast<std::size_t>(size);
  }
  void raw(void* data, std::size_t size) {
    if (size > rest_.size()) {
      ok_ = false;
      std::memset(data, 0, size);
      return;
    }
    if (size > 0) std::memcpy(data, rest_.data(), size);
    rest_ = rest_.subspan(size);
  }
  std::span<const std::byte> rest_;
  bool ok_ = true;
};

template <class T>
std::vector<std::byte> encode(const T& value) {
  Writer writer;
  writer(value);
  return writer.take();
}

/// Decodes exactly one `T`; trailing or missing bytes are an error.
template <class T>
Result<T> decode(std::span<const std::byte> bytes) {
  Reader reader(bytes);
  T value{};
  reader(value);
  if (!reader.ok() || !reader.at_end())
    return fail(Code::kDataLoss, "message is truncated or has trailing bytes", "codec");
  return value;
}

}  // namespace trimtab::base
