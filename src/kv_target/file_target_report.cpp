// What a FileTarget says of itself.
#include <fmt/format.h>

#include <algorithm>

#include "kv_target/file_target.h"

namespace trimtab::kv_target {

base::Result<Changes> FileTarget::changes(const Cursor& since, std::uint32_t limit) {
  return feed_.since(since, limit);
}

Limits FileTarget::limits() const {
  return {options_.shard_bytes, std::max(4 * options_.staging_bytes, options_.shard_bytes),
          2 * options_.depth, directory_.read_unit_bytes()};
}

base::Result<Space> FileTarget::space() {
  return Space{options_.capacity_bytes, units_used_ * directory_.layout().unit_bytes, index_.size(),
               caller_bytes_written_, mover_->bytes_written() + committer_->bytes_written()};
}

std::string FileTarget::trouble() const {
  std::string words;
  for (const std::string& one : {trouble_, mover_->trouble(), committer_->trouble()}) {
    if (!one.empty()) words += (words.empty() ? "" : "; ") + one;
  }
  return words;
}

bool FileTarget::lacks_room() const {
  return disk_full_ && !trouble_.empty() && mover_->trouble().empty() && committer_->trouble().empty();
}

std::string FileTarget::describe() const {
  return fmt::format("{}: {}, {}", options_.directory, directory_.describe(), engine_->describe());
}

FileTarget::Counters FileTarget::counters() const {
  return {committer_->commits(),
          committer_->syncs(),
          committer_->rewrites(),
          mover_->straight(),
          mover_->staged(),
          damaged_,
          directory_.dropped_records(),
          allocator_.holes(),
          allocator_.largest() * directory_.layout().unit_bytes};
}

}  // namespace trimtab::kv_target
