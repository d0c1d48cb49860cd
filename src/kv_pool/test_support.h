#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "base/hash.h"
#include "base/prng.h"
#include "model/ids.h"

/// What several tests of this room share.
namespace trimtab::kv_pool::test {

/// A directory that goes away with the test; in memory where possible, because what is proved here is what
/// a process leaves behind when it ends, and not the disk's own cache.
class TempDirectory {
 public:
  TempDirectory() {
    const bool in_memory = std::filesystem::is_directory("/dev/shm");
    const std::filesystem::path parent = in_memory ? "/dev/shm" : std::filesystem::temp_directory_path();
    std::string name = parent / "trimtab-pool-XXXXXX";
    path_ = mkdtemp(name.data());
  }
  TempDirectory(const TempDirectory&) = delete;
  TempDirectory& operator=(const TempDirectory&) = delete;
  ~TempDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string path(const std::string& name = {}) const { return name.empty() ? path_ : path_ + "/" + name; }

 private:
  std::string path_;
};

inline model::BlockKey key(std::uint64_t n) { return {base::mix(1, n), base::mix(2, n)}; }

/// The one right content of a key: whoever reads something else has been given another's block.
inline std::vector<std::byte> block_of(model::BlockKey k, std::size_t bytes) {
  base::Prng prng(k.high, k.low);
  std::vector<std::byte> block(bytes);
  for (std::size_t i = 0; i < bytes; i += 8) {
    const std::uint64_t word = prng.next();
    std::memcpy(block.data() + i, &word, std::min<std::size_t>(8, bytes - i));
  }
  return block;
}

}  // namespace trimtab::kv_pool::test
