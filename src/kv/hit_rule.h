#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/units.h"
#include "model/ids.h"
#include "model/profile.h"

namespace trimtab::kv {

/// What to do when the sliding-window state at the hit's end is nowhere to be had (system facts, section 10).
enum class WindowMode : std::uint8_t {
  kApproximate,  // recompute one block: stacked windows see further back, so logits drift a little
  kExact,        // recompute window x layers tokens: the state at the hit's end is then the true one
};

struct HitQuery {
  std::int64_t prompt_tokens = 0;
  std::int64_t matched_blocks = 0;  // leading full blocks whose KV is present
  /// Sorted block counts at whose end a window snapshot is held; ignored for models without a window.
  std::span<const std::uint32_t> snapshots = {};
  WindowMode mode = WindowMode::kApproximate;
  /// Further pools that must agree, if any: the sorted block counts at which each can resume.
  std::span<const std::span<const std::uint32_t>> pools = {};
};

struct Hit {
  base::TokenCount tokens;           // counted as hit: the computation starts here; a multiple of 128
  base::TokenCount to_compute;       // prompt - tokens, at least 1
  std::int64_t block_kv_blocks = 0;  // block KV to read; >= tokens / 128, the surplus is not written again
  std::int64_t snapshot_blocks = 0;  // window state to load: the one after so many blocks; 0: none
  bool recomputes_window = false;    // tokens before block_kv_blocks * 128 are computed for their window only
  bool exact = true;                 // false: the logits may drift (approximate, snapshot missing)
  std::string reason;

  /// Tokens whose block KV is read and that are computed again, for their window state only.
  std::int64_t recomputed_tokens() const { return block_kv_blocks * model::kBlockTokens - tokens.value; }
};

/// The hit of a prompt. Block KV decides the length; the window decides only how much before its end is
/// computed again.
///
/// - Where further pools must agree, the length is the greatest endpoint that is legal in all of them.
/// - At least one token is computed (the last, for its logits). A prompt that is cached to its very end
///   computes its last block again: whole blocks, because a block of the pool is shared and must not be
///   written, state snapshots exist only at multiples of 128, and the engine resumes there with the same bits
///   as without a hit.
/// - With a snapshot at the end: nothing more. Missing: the last block again (approximate), or window x
///   layers (exact); an older snapshot is used where it costs no more, because it loses nothing.
Hit decide_hit(const HitQuery& query, const model::KvLayout& layout);

/// The greatest block count, at most `limit`, that is legal in every pool; 0 when none is. Each list is
/// sorted, the endpoints at which that pool can resume; the minimum of their maxima would not do (pools {3}
/// and {2} share nothing).
std::uint32_t greatest_common_endpoint(std::span<const std::span<const std::uint32_t>> pools,
                                       std::uint32_t limit = UINT32_MAX);

}  // namespace trimtab::kv
