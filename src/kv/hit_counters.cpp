#include "kv/hit_counters.h"

#include <utility>

#include "base/check.h"

namespace trimtab::kv {

bool HitCounters::settle(HitAccount& account, const HitRead& read) {
  TRIMTAB_CHECK(read.ready(), "a hit is counted when its reads have ended");
  if (std::exchange(account.counted, true)) return false;
  switch (read.outcome()) {
    case HitRead::Outcome::kSkipped:
      ++totals_.skipped;
      break;
    case HitRead::Outcome::kMiss:
      ++totals_.misses;
      break;
    case HitRead::Outcome::kHit:
      ++totals_.hits;
      break;
    case HitRead::Outcome::kStale:
      ++totals_.stale;
      break;
    case HitRead::Outcome::kFallback:
      ++totals_.fallbacks;
      break;
  }
  const Hit& hit = read.hit();
  totals_.prompt_tokens += (hit.tokens + hit.to_compute).value;
  totals_.promised_tokens += read.promised().tokens.value;
  totals_.hit_tokens += hit.tokens.value;
  if (hit.snapshot_blocks > 0) ++totals_.snapshots_used;
  if (!hit.exact) ++totals_.approximate;
  totals_.window_tokens_recomputed += hit.recomputed_tokens();
  return true;
}

bool HitCounters::abandon(HitAccount& account) {
  if (std::exchange(account.counted, true)) return false;
  ++totals_.abandoned;
  return true;
}

}  // namespace trimtab::kv
