// Any bytes as the map's record of a target: what is accepted is written back as the same bytes, and its
// steps give a map or an error.
#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "base/codec.h"
#include "base/hash.h"
#include "kv_store/map_record.h"

using namespace trimtab;
using kv_store::MapRecord;
using kv_store::MapStep;

namespace {

void check(std::span<const std::byte> bytes) {
  const auto read = MapRecord::read(bytes);
  if (!read) return;
  const MapRecord& record = read->record;
  if (read->self >= record.members.size() || record.newer_than(record)) std::abort();
  const std::vector<std::byte> again = record.written(read->self);
  if (!std::equal(again.begin(), again.end(), bytes.begin(), bytes.end())) std::abort();
  // Placement takes its time over hundreds of targets; what it makes of them is its own test.
  if (record.members.size() > 24 || record.steps.size() > 4) return;
  for (const MapStep& step : record.steps)
    if (step.targets.size() > 24 || step.racks.size() > 24) return;
  if (const auto map = record.map(); map && map->stripes().nodes != record.members.size()) std::abort();
  (void)record.anew();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* begin = reinterpret_cast<const std::byte*>(data);
  std::vector<std::byte> bytes(begin, begin + size);
  check(bytes);
  // Once more under a checksum that fits, or hardly any input would come further.
  base::Writer sum;
  sum(base::checksum(bytes));
  const std::vector<std::byte> end = sum.take();
  bytes.insert(bytes.end(), end.begin(), end.end());
  check(bytes);
  // And as changes of a true record.
  static const std::vector<std::byte> whole = [] {
    std::vector<std::string> places;
    for (int i = 0; i < 13; ++i) places.push_back("tcp://10.0.0." + std::to_string(i));
    return MapRecord::first(places)->written(3);
  }();
  std::vector<std::byte> changed(whole.begin(), whole.end() - sizeof(std::uint64_t));
  for (std::size_t i = 0; i + 3 <= size; i += 3)
    changed[(data[i] | std::size_t{data[i + 1]} << 8) % changed.size()] ^= begin[i + 2];
  base::Writer fits;
  fits(base::checksum(changed));
  const std::vector<std::byte> tail = fits.take();
  changed.insert(changed.end(), tail.begin(), tail.end());
  check(changed);
  return 0;
}
