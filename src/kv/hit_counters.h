#pragma once

#include <cstdint>

#include "kv/hit_read.h"

namespace trimtab::kv {

/// Kept beside a request, as long as it lives: says that the request was counted. A request that is asked
/// about again (its rank died, it yielded) is the same request.
struct HitAccount {
  bool counted = false;
};

/// What became of the hits of all requests. Every request is in exactly one of the six outcomes, once:
/// `requests() == skipped + misses + hits + stale + fallbacks + abandoned`. Requests that could not hit are
/// no misses, and one that its client left before its hit was read is none either.
struct HitTotals {
  std::uint64_t skipped = 0;    // prompts without a whole block before their last token
  std::uint64_t misses = 0;     // nothing was promised
  std::uint64_t hits = 0;       // all that was promised was read
  std::uint64_t stale = 0;      // some of it was gone; what was not read is computed
  std::uint64_t fallbacks = 0;  // some of it could not be read; the same
  std::uint64_t abandoned = 0;  // ended before its reads did

  std::int64_t prompt_tokens = 0;    // of all but the abandoned
  std::int64_t promised_tokens = 0;  // that the index said need no computing
  std::int64_t hit_tokens = 0;       // that were not computed; the rest of the promised ones were

  std::uint64_t snapshots_used = 0;           // requests that began from a window state
  std::uint64_t approximate = 0;              // began without one, so that their logits may drift
  std::int64_t window_tokens_recomputed = 0;  // computed again for their window state only

  std::uint64_t requests() const { return skipped + misses + hits + stale + fallbacks + abandoned; }
};

class HitCounters {
 public:
  /// Once the reads of a request have ended. False, and nothing counted, when it was counted before.
  bool settle(HitAccount& account, const HitRead& read);
  /// A request that ends before its reads do.
  bool abandon(HitAccount& account);

  const HitTotals& totals() const { return totals_; }

 private:
  HitTotals totals_;
};

}  // namespace trimtab::kv
