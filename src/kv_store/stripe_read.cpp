#include "kv_store/stripe_read.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace trimtab::kv_store {

using kv_code::kData;
using kv_target::Outcome;

Pieces make_pieces(const kv_code::StripeLayout& layout, std::uint32_t first_layers, std::size_t unit) {
  if (first_layers == 0 || first_layers >= layout.layers.size()) return {{layout.shard_bytes}};
  const std::size_t end = layout.layers[first_layers].slice_offset;
  const std::size_t padded = (end + unit - 1) / unit * unit;
  return {{padded < layout.shard_bytes ? padded : end, layout.shard_bytes}};
}

StripeRead::StripeRead(const kv_code::StripeLayout& layout, BlockKey key, const Pieces& pieces, Plan plan)
    : layout_(&layout), pieces_(&pieces), plan_(std::move(plan)), reader_(layout, key) {}

void StripeRead::bad(std::uint32_t shard, ShardSet& kind) {
  shards_[shard] = Shard::kBad;
  --asked_;
  kind |= static_cast<ShardSet>(1U << shard);
}

void StripeRead::answer(const Event& event) {
  const std::uint32_t shard = event.shard;
  if (shards_[shard] != Shard::kAsked) return;  // an earlier piece was bad
  switch (event.outcome) {
    case Outcome::kDone:
      break;
    case Outcome::kMissing:
      return bad(shard, missing_);
    case Outcome::kTooLarge:  // the shard ends before this piece
      reader_.ended(shard);
      return bad(shard, damaged_);
    case Outcome::kDamaged:
      return bad(shard, damaged_);
    case Outcome::kFull:
    case Outcome::kFailed:
    case Outcome::kCancelled:
      return bad(shard, failed_);
  }
  if (event.bytes < pieces_->bytes(event.piece)) {
    reader_.ended(shard);
    return bad(shard, damaged_);
  }
  arrived_[shard] |= 1U << event.piece;
  const auto leading = static_cast<std::uint32_t>(std::countr_one(arrived_[shard]));
  if (leading == 0) return;
  reader_.arrived(shard, event.shard_bytes.first(pieces_->ends[leading - 1]));
  if (reader_.fault(shard)) return bad(shard, damaged_);
  if (leading < pieces_->count()) return;
  shards_[shard] = Shard::kWhole;
  --asked_;
}

void StripeRead::ask_next(Actions& actions) {
  const std::uint32_t shard = plan_.order[next_++];
  TRIMTAB_CHECK(shard < kShards && shards_[shard] == Shard::kIdle);
  shards_[shard] = Shard::kAsked;
  ++asked_;
  actions.submit |= static_cast<ShardSet>(1U << shard);
}

StripeRead::Actions StripeRead::end(Actions actions, End how) {
  over_ = true;
  actions.submit = 0;
  actions.wake = base::kForever;
  actions.ended = how;
  return actions;
}

StripeRead::Actions StripeRead::step(const Event& event, base::Nanos now) {
  Actions actions;
  if (over_) return actions;
  const ShardSet bad_before = missing_ | damaged_ | failed_;
  switch (event.kind) {
    case Event::Kind::kStart:
      while (idle_left() && (plan_.all || next_ < plan_.at_start)) ask_next(actions);
      if (plan_.hedge_after != base::kForever) hedge_at_ = now + plan_.hedge_after;
      break;
    case Event::Kind::kAnswer:
      answer(event);
      break;
    case Event::Kind::kTime:
      if (now >= hedge_at_) {
        hedge_at_ = base::kForever;
        if (!hedged_ && idle_left()) {
          hedged_ = true;
          ask_next(actions);
        }
      }
      break;
    case Event::Kind::kCancel:
      return end(actions, End::kCancelled);
  }
  actions.layers_ready = reader_.layers_ready();
  const bool complete = actions.layers_ready == layout_->layers.size();
  if (complete && (!plan_.all || (asked_ == 0 && !idle_left()))) return end(actions, End::kDone);
  // Whoever answered badly is replaced at once, so that as many stay under way as at the start.
  const ShardSet bad_now = missing_ | damaged_ | failed_;
  if (bad_now != bad_before && idle_left()) ask_next(actions);
  const std::uint32_t have = reader_.agreeing();
  while (have + asked_ < kData && idle_left()) ask_next(actions);
  if (!complete && have + asked_ < kData) return end(actions, End::kUnreadable);
  // Only time ends it, never the answer that comes with it: others may have arrived with that one.
  if (event.kind == Event::Kind::kTime && now >= plan_.deadline)
    return end(actions, complete ? End::kDone : End::kLate);
  actions.wake = std::min(plan_.deadline, idle_left() ? hedge_at_ : base::kForever);
  return actions;
}

}  // namespace trimtab::kv_store
