#include "kv_store/stripe_write.h"

#include <algorithm>
#include <bit>

namespace trimtab::kv_store {

using kv_target::Outcome;

namespace {
constexpr std::uint8_t kTries = 3;  // as many failures as make a target dead
}

StripeWrite::Actions StripeWrite::end(End how) {
  over_ = true;
  Actions actions;
  actions.ended = how;
  if (how != End::kDurable) actions.erase = written_ | out_ | uncertain_;
  return actions;
}

StripeWrite::Actions StripeWrite::step(const Event& event, base::Nanos now) {
  Actions actions;
  if (over_) return actions;
  const int needed = static_cast<int>(plan_.policy == WritePolicy::kAll ? kShards : kv_code::kData);
  const auto bit = static_cast<ShardSet>(1U << event.shard);
  switch (event.kind) {
    case Event::Kind::kStart:
      if (std::popcount(plan_.places) < needed) return end(End::kFailed);
      out_ = actions.submit = plan_.places;
      break;
    case Event::Kind::kAnswer:
      if ((out_ & bit) == 0) return actions;
      out_ &= static_cast<ShardSet>(~bit);
      if (event.outcome == Outcome::kDone) written_ |= bit;
      if (event.outcome == Outcome::kFailed || event.outcome == Outcome::kCancelled) {
        uncertain_ |= bit;
        if (event.usable && ++tries_[event.shard] < kTries) out_ |= actions.submit = bit;
      }
      full_ |= event.outcome == Outcome::kFull;
      break;
    case Event::Kind::kTime:
      break;
    case Event::Kind::kCancel:
      return end(End::kCancelled);
  }
  const int have = std::popcount(written_);
  if (have + std::popcount(out_) < needed) return end(full_ ? End::kFull : End::kFailed);
  if (out_ == 0) return end(End::kDurable);
  // Only time ends it, never the answer that comes with it: others may have arrived with that one.
  if (event.kind == Event::Kind::kTime && now >= plan_.deadline) return end(End::kLate);
  actions.wake = plan_.deadline;
  return actions;
}

}  // namespace trimtab::kv_store
