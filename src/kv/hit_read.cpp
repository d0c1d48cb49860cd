#include "kv/hit_read.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace trimtab::kv {

HitRead::HitRead(const HitQuery& query, std::span<const BlockKey> keys, std::uint64_t epoch,
                 const model::KvLayout& layout)
    : query_(query),
      keys_(keys.begin(), keys.end()),
      epoch_(epoch),
      snapshots_(query.snapshots.begin(), query.snapshots.end()),
      layout_(layout) {
  for (const auto& pool : query.pools) pools_.emplace_back(pool.begin(), pool.end());
  // An index that claims more than it was asked for is broken, not generous.
  query_.matched_blocks = std::min(query.matched_blocks, static_cast<std::int64_t>(keys.size()));
  decide();
  promised_ = hit_;
  read_.assign(static_cast<std::size_t>(promised_.block_kv_blocks), false);
  lost_ = read_;
}

void HitRead::decide() {
  const std::vector<std::span<const std::uint32_t>> pools(pools_.begin(), pools_.end());
  query_.snapshots = snapshots_;
  query_.pools = pools;
  hit_ = decide_hit(query_, layout_);
  query_.pools = {};
}

void HitRead::note(ReadResult result) { (result == ReadResult::kGone ? gone_ : failed_) = true; }

void HitRead::on_block(std::uint32_t index, ReadResult result) {
  TRIMTAB_CHECK(index < read_.size(), "a block that was not promised");
  if (lost_[index]) return;
  read_[index] = result == ReadResult::kRead;
  if (read_[index]) return;
  lost_[index] = true;
  withdrawals_.push_back({keys_[index], epoch_});
  note(result);
  if (index >= query_.matched_blocks) return;  // behind a gap already: only the index has to know
  query_.matched_blocks = index;
  decide();
}

void HitRead::on_snapshot(std::uint32_t blocks, ReadResult result) {
  if (result == ReadResult::kRead) {
    loaded_.push_back(blocks);
    return;
  }
  std::erase(loaded_, blocks);
  // One that was never held, or was lost already.
  if (std::erase(snapshots_, blocks) == 0) return;
  note(result);
  decide();
}

void HitRead::give_up() {
  for (std::size_t i = 0; i < static_cast<std::size_t>(hit_.block_kv_blocks); ++i) {
    if (read_[i]) continue;
    on_block(static_cast<std::uint32_t>(i), ReadResult::kFailed);
    break;
  }
  // Each round takes one endpoint away, and a hit that needs no state ends it.
  while (!ready()) on_snapshot(static_cast<std::uint32_t>(hit_.snapshot_blocks), ReadResult::kFailed);
}

bool HitRead::ready() const {
  const auto needed = static_cast<std::ptrdiff_t>(hit_.block_kv_blocks);
  if (std::find(read_.begin(), read_.begin() + needed, false) != read_.begin() + needed) return false;
  return hit_.snapshot_blocks == 0 ||
         std::find(loaded_.begin(), loaded_.end(), hit_.snapshot_blocks) != loaded_.end();
}

std::vector<HitRead::Withdrawal> HitRead::take_withdrawals() { return std::exchange(withdrawals_, {}); }

HitRead::Outcome HitRead::outcome() const {
  if (failed_) return Outcome::kFallback;
  if (gone_) return Outcome::kStale;
  if (promised_.block_kv_blocks > 0) return Outcome::kHit;
  return query_.prompt_tokens <= model::kBlockTokens ? Outcome::kSkipped : Outcome::kMiss;
}

}  // namespace trimtab::kv
