#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "io/record_file.h"

/// Any bytes at all: no crash, and good and torn bytes add up to the file.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  std::vector<std::byte> file(io::kRecordFileMagic.size());
  std::memcpy(file.data(), io::kRecordFileMagic.data(), file.size());
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  file.insert(file.end(), bytes, bytes + size);
  std::size_t payload_bytes = 0;
  const auto scan = io::scan_records(file, [&](auto payload) { payload_bytes += payload.size(); });
  TRIMTAB_CHECK(scan.has_value());
  TRIMTAB_CHECK(scan->bytes_good + scan->bytes_torn == file.size());
  TRIMTAB_CHECK(payload_bytes + scan->records * io::kRecordHeaderBytes + io::kRecordFileMagic.size() ==
                scan->bytes_good);
  return 0;
}
