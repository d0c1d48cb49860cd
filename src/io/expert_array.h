#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace trimtab::io {

/// Elements that one read may bring into memory: 2^28, which is 2 GiB as doubles. 1,000 steps x 61 layers x
/// 384 experts are 2.3e7. A larger file is an explicit error, not an exhausted machine.
inline constexpr std::int64_t kExpertElementsMax = std::int64_t{1} << 28;

/// An n-dimensional array of numbers out of any of the formats, in C order. Integers beyond 2^53 are rounded
/// to the next double.
struct ExpertArray {
  std::string name;  // empty when the file holds one array without a name
  std::vector<std::int64_t> shape;
  std::vector<double> values;
};

/// "[100, 58, 384]".
std::string shape_text(std::span<const std::int64_t> shape);

/// Elements of a shape. Errors: a negative dimension, a product over `elements_max`.
base::Result<std::int64_t> element_count(std::span<const std::int64_t> shape, std::int64_t elements_max);

enum class ElementType : std::uint8_t {
  kBool,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kUint8,
  kUint16,
  kUint32,
  kUint64,
  kFloat16,
  kBfloat16,
  kFloat32,
  kFloat64,
};

std::size_t bytes_of(ElementType type);

/// `out.size()` elements of `type` from as many raw elements, little-endian unless told.
void decode_elements(ElementType type, bool big_endian, std::span<const std::byte> raw,
                     std::span<double> out);

/// Bytes that come one after another: memory, a file, an entry of an archive.
class ByteSource {
 public:
  ByteSource() = default;
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;
  /// Up to out.size() bytes; 0 at the end. Errors: the disk, a damaged archive.
  virtual base::Result<std::size_t> read(std::span<std::byte> out) = 0;
};

class MemorySource final : public ByteSource {
 public:
  explicit MemorySource(std::span<const std::byte> bytes) : rest_(bytes) {}
  base::Result<std::size_t> read(std::span<std::byte> out) override;

 private:
  std::span<const std::byte> rest_;
};

class FileSource final : public ByteSource {
 public:
  /// kNotFound when there is none, kIo otherwise.
  static base::Result<std::unique_ptr<FileSource>> open(const std::string& path);
  ~FileSource() override;
  base::Result<std::size_t> read(std::span<std::byte> out) override;

 private:
  explicit FileSource(int fd) : fd_(fd) {}
  int fd_;
};

/// Reads until `out` is full or the source ends; how much it got.
base::Result<std::size_t> read_full(ByteSource& source, std::span<std::byte> out);

/// All that is left, at most `bytes_max`; more is kTooLarge.
base::Result<std::vector<std::byte>> read_all(ByteSource& source, std::size_t bytes_max);

}  // namespace trimtab::io
