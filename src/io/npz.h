#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/expert_array.h"

struct zip;

namespace trimtab::io {

inline constexpr std::string_view kZipMagic = "PK\3\4";

/// A zip archive, stored or deflated (libzip behind it). Checksums are checked at an entry's end.
class ZipArchive {
 public:
  static base::Result<ZipArchive> open_file(const std::string& path);
  /// `bytes` must outlive the archive.
  static base::Result<ZipArchive> open_bytes(std::span<const std::byte> bytes);
  ZipArchive(ZipArchive&&) noexcept = default;
  ZipArchive& operator=(ZipArchive&&) noexcept = default;
  ~ZipArchive() = default;

  /// In the order of the archive's directory; of two alike the first is read.
  const std::vector<std::string>& names() const { return names_; }
  /// kNotFound names what the archive has. The archive must outlive the entry.
  base::Result<std::unique_ptr<ByteSource>> entry(std::string_view name) const;

 private:
  struct Close {
    void operator()(zip* archive) const;
  };
  explicit ZipArchive(zip* archive) : archive_(archive) {}
  base::Status list();
  std::unique_ptr<zip, Close> archive_;
  std::vector<std::string> names_;
  std::map<std::string, std::uint64_t, std::less<>> index_;  // a dump by pass has 100,000 entries and more
};

/// Every array of a NumPy .npz file whose type is numeric; `only` (if not empty) reads that one alone.
/// Entries that are no numeric arrays are named in `skipped` with the reason.
struct NpzContents {
  std::vector<ExpertArray> arrays;
  std::vector<std::string> skipped;
};
base::Result<NpzContents> read_npz(const ZipArchive& archive, std::string_view only,
                                   std::int64_t elements_max = kExpertElementsMax);

/// kIo when something other than a file stands at `path`: a rename over /dev/null would take its place.
base::Status check_replaceable(const std::string& path);

/// Writes a deflated zip through a temporary file and a rename; entries carry no time, so that the same
/// contents give the same bytes. kIo names the path and the reason.
base::Status write_zip(const std::string& path,
                       const std::vector<std::pair<std::string, std::string>>& entries);

}  // namespace trimtab::io
