#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "gguf/directory.h"

namespace trimtab::gguf {

/// A GGUF model file, mapped read-only and shared: all processes that open it use the same physical pages.
/// Views that it hands out live as long as this object (moving it keeps them valid).
class GgufFile {
 public:
  /// Errors: kIo when the file cannot be opened or mapped, kDataLoss when it is truncated or not GGUF; each
  /// names the path.
  static base::Result<GgufFile> open(const std::string& path);

  GgufFile(GgufFile&& other) noexcept;
  GgufFile& operator=(GgufFile&& other) noexcept;
  ~GgufFile();

  const std::string& path() const { return path_; }
  const Directory& directory() const { return directory_; }
  std::span<const std::byte> bytes() const { return bytes_; }

  // The directory's getters, for short call sites.
  bool has(std::string_view key) const { return directory_.has(key); }
  base::Result<std::string_view> string(std::string_view key) const { return directory_.string(key); }
  base::Result<std::uint32_t> u32(std::string_view key) const { return directory_.u32(key); }
  base::Result<float> f32(std::string_view key) const { return directory_.f32(key); }
  base::Result<bool> boolean(std::string_view key) const { return directory_.boolean(key); }
  base::Result<std::vector<std::string_view>> strings(std::string_view key) const {
    return directory_.strings(key);
  }
  base::Result<std::vector<std::int32_t>> i32s(std::string_view key) const { return directory_.i32s(key); }
  base::Result<std::vector<bool>> booleans(std::string_view key) const { return directory_.booleans(key); }
  base::Result<Tensor> tensor(std::string_view name) const { return directory_.tensor(name); }
  const std::vector<Tensor>& tensors() const { return directory_.tensors(); }

  /// A cheap, stable identity of the weights: XXH3 over the whole header, the size, and 64 samples of 4 KiB
  /// spread evenly over the tensors. Equal files have equal fingerprints; it is no proof against tampering.
  std::uint64_t fingerprint() const;

 private:
  GgufFile() = default;
  void swap(GgufFile& other) noexcept;

  std::string path_;
  std::span<const std::byte> bytes_;
  Directory directory_;
};

}  // namespace trimtab::gguf
