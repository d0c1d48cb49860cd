#include "kv_target/file/extent_allocator.h"

#include "base/check.h"

namespace trimtab::kv_target::file {

void ExtentAllocator::add(std::uint64_t first, std::uint64_t units) {
  by_place_.emplace(first, units);
  by_size_.emplace(units, first);
  free_ += units;
}

void ExtentAllocator::remove(std::map<std::uint64_t, std::uint64_t>::iterator hole) {
  by_size_.erase({hole->second, hole->first});
  free_ -= hole->second;
  by_place_.erase(hole);
}

std::optional<std::uint64_t> ExtentAllocator::take(std::uint64_t units) {
  const auto fit = by_size_.lower_bound({units, 0});
  if (fit == by_size_.end()) return std::nullopt;
  const auto [length, first] = *fit;
  remove(by_place_.find(first));
  if (length > units) add(first + units, length - units);
  return first;
}

bool ExtentAllocator::take_at(std::uint64_t first, std::uint64_t units) {
  auto hole = by_place_.upper_bound(first);
  if (hole == by_place_.begin()) return false;
  --hole;
  const auto [begin, length] = *hole;
  if (first + units > begin + length) return false;
  remove(hole);
  if (first > begin) add(begin, first - begin);
  if (first + units < begin + length) add(first + units, begin + length - first - units);
  return true;
}

void ExtentAllocator::give(std::uint64_t first, std::uint64_t units) {
  TRIMTAB_CHECK(units > 0 && same_file(first, first + units - 1), "an extent in two files");
  auto next = by_place_.lower_bound(first);
  TRIMTAB_CHECK(next == by_place_.end() || next->first >= first + units, "the room is free already");
  if (next != by_place_.end() && next->first == first + units && same_file(first, next->first)) {
    units += next->second;
    remove(next++);
  }
  if (next != by_place_.begin()) {
    const auto before = std::prev(next);
    const auto [begin, length] = *before;
    TRIMTAB_CHECK(begin + length <= first, "the room is free already");
    if (begin + length == first && same_file(begin, first)) {
      first = begin;
      units += length;
      remove(before);
    }
  }
  add(first, units);
}

}  // namespace trimtab::kv_target::file
