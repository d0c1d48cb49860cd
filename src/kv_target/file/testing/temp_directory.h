#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace trimtab::kv_target::file::testing {

/// A fresh directory that goes with its object.
class TempDirectory {
 public:
  TempDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab_target_XXXXXX").string();
    if (::mkdtemp(pattern.data()) == nullptr) std::abort();
    path_ = pattern;
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& below = {}) const {
    return below.empty() ? path_ : path_ + "/" + below;
  }

 private:
  std::string path_;
};

}  // namespace trimtab::kv_target::file::testing
