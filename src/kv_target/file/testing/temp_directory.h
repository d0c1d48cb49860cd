#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trimtab::kv_target::file::testing {

/// A fresh directory that goes with its object.
class TempDirectory {
 public:
  explicit TempDirectory(const std::string& parent = std::filesystem::temp_directory_path().string()) {
    std::string pattern = parent + "/trimtab_target_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  /// One in memory, where syncs cost nothing; on disk where there is no such place.
  static std::string memory() {
    return std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
  }
  std::string path(const std::string& below = {}) const {
    return below.empty() ? path_ : path_ + "/" + below;
  }

 private:
  std::string path_;
};

}  // namespace trimtab::kv_target::file::testing
