#include <cstdlib>
#include <cstring>
#include <set>

#include "kv_pool/pool_log.h"

/// Any bytes as a log: no crash, and nothing but well-formed entries comes out. The second half of the runs
/// gets a valid header, and records that are sealed right with wild content.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::kv_pool;
  constexpr std::uint32_t kSlots = 16;
  std::vector<std::byte> log(size);
  if (size > 0) std::memcpy(log.data(), data, size);
  if (size > 0 && data[0] % 2 == 0) {
    const LogBytes header = encode_log_header(4096);
    std::vector<std::byte> sealed(header.begin(), header.end());
    std::size_t at = 1;
    for (std::uint64_t index = 0; at + 6 <= size; at += 6, ++index) {
      const auto kind = static_cast<LogRecordKind>(data[at] % 4);
      const FileEntry entry{{data[at + 1], data[at + 2]}, data[at + 3] % 20U, data[at + 4]};
      LogBytes record = encode_log_record(kind, entry, index);
      if (data[at + 5] % 8 == 0) record[data[at + 5] % kLogRecordBytes] ^= std::byte{1};
      sealed.insert(sealed.end(), record.begin(), record.end());
    }
    sealed.insert(sealed.end(), log.begin() + static_cast<std::ptrdiff_t>(at), log.end());
    log = std::move(sealed);
  }
  const auto scan = scan_log(log, kSlots);
  if (!scan) return 0;
  std::set<std::uint32_t> slots;
  std::set<BlockKey> keys;
  for (const FileEntry& entry : scan->live) {
    if (entry.slot >= kSlots || !slots.insert(entry.slot).second || !keys.insert(entry.key).second)
      std::abort();
  }
  return 0;
}
