#include <cstdlib>
#include <cstring>
#include <set>

#include "kv_target/file/extent_log.h"

/// Any bytes as a log: no crash, and nothing but possible extents, each name and each unit once, comes out.
/// Half of the runs get a valid header, and records that are sealed right with wild content.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::kv_target::file;
  constexpr Layout kLayout{512, 16 * 512};
  std::vector<std::byte> log(size);
  if (size > 0) std::memcpy(log.data(), data, size);
  if (size > 0 && data[0] % 2 == 0) {
    std::vector<std::byte> sealed = encode_headers(kLayout, 7);
    std::size_t at = 1;
    for (std::uint64_t index = 0; at + 6 <= size; at += 6, ++index) {
      const LogEntry entry{{{data[at + 1], 0}, static_cast<std::uint8_t>(data[at + 1] % 3)},
                           {data[at + 2] % 70U, std::uint64_t{data[at + 3]} * 64, data[at + 4]}};
      RecordBytes record = encode_record(static_cast<RecordKind>(data[at] % 4), entry, 7, index);
      if (data[at + 5] % 8 == 0) record[data[at + 5] % kRecordBytes] ^= std::byte{1};
      sealed.insert(sealed.end(), record.begin(), record.end());
    }
    sealed.insert(sealed.end(), log.begin() + static_cast<std::ptrdiff_t>(at), log.end());
    log = std::move(sealed);
  }
  const auto scan = scan_log(log);
  if (!scan) return 0;
  std::set<std::uint64_t> units;
  std::set<trimtab::kv_target::ShardName> names;
  for (const LogEntry& entry : scan->live) {
    if (!names.insert(entry.name).second) std::abort();
    const std::uint64_t count = scan->layout.units_of(entry.extent.bytes), first = entry.extent.unit;
    const std::uint64_t per_file = scan->layout.units_per_file();
    if (count == 0 || first / per_file != (first + count - 1) / per_file) std::abort();
    if (count > 4096) continue;
    for (std::uint64_t unit = first; unit < first + count; ++unit)
      if (!units.insert(unit).second) std::abort();
  }
  return 0;
}
