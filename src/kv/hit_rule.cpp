#include "kv/hit_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/check.h"
#include "model/ids.h"

namespace trimtab::kv {

namespace {

using model::kBlockTokens;

/// The largest element that is at most `limit`; 0 (the start of the prompt, always legal) when none is.
std::int64_t last_at_most(std::span<const std::uint32_t> sorted, std::int64_t limit) {
  const auto after = std::upper_bound(sorted.begin(), sorted.end(), limit);
  return after == sorted.begin() ? 0 : std::int64_t{*(after - 1)};
}

struct Resume {
  std::int64_t blocks = 0;
  bool exact = true;
  std::string reason;
};

/// Where the computation starts, in blocks, when the window state at `end` blocks is missing.
Resume without_snapshot(const HitQuery& query, const model::KvLayout& layout, std::int64_t end) {
  const std::int64_t older = last_at_most(query.snapshots, end);
  std::int64_t back_tokens = kBlockTokens;
  if (query.mode == WindowMode::kExact) back_tokens = layout.window_tokens * layout.window_layers;
  const std::int64_t back = (back_tokens + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t recompute = std::max<std::int64_t>(0, end - back);
  // From an older snapshot, or from the prompt's start, everything is as it was without a hit.
  if (older >= recompute) {
    return {older, true,
            fmt::format("no window snapshot at block {}; the state of block {} is used", end, older)};
  }
  if (query.mode == WindowMode::kExact) {
    return {recompute, true,
            fmt::format("no window snapshot at block {}; window x layers = {} tokens are computed again", end,
                        back_tokens)};
  }
  return {recompute, false,
          fmt::format("no window snapshot at block {}; one block is computed again (approximate)", end)};
}

}  // namespace

Hit decide_hit(const HitQuery& query, const model::KvLayout& layout) {
  TRIMTAB_CHECK(query.prompt_tokens > 0, "an empty prompt has no hit");
  TRIMTAB_CHECK(query.matched_blocks >= 0);
  const std::int64_t usable = (query.prompt_tokens - 1) / kBlockTokens;  // the last token is always computed
  std::int64_t end = std::min(query.matched_blocks, usable);
  if (!query.pools.empty()) {
    const std::int64_t limit = std::min<std::int64_t>(end, UINT32_MAX);
    end = greatest_common_endpoint(query.pools, static_cast<std::uint32_t>(limit));
  }
  Resume resume{end, true, fmt::format("{} blocks present", query.matched_blocks)};
  if (query.matched_blocks > usable)
    resume.reason = fmt::format("cached to its end; computing from block {} for the last logits", usable);
  if (!query.pools.empty())
    resume.reason = fmt::format("{} blocks present; {} is the last place where all pools can resume",
                                query.matched_blocks, end);
  const bool windowed = layout.window_tokens > 0 && layout.window_layers > 0;
  if (windowed && end > 0 && !std::binary_search(query.snapshots.begin(), query.snapshots.end(), end))
    resume = without_snapshot(query, layout, end);

  Hit hit;
  hit.tokens = base::TokenCount{resume.blocks * kBlockTokens};
  hit.to_compute = base::TokenCount{query.prompt_tokens} - hit.tokens;
  hit.block_kv_blocks = end;
  const bool held =
      std::binary_search(query.snapshots.begin(), query.snapshots.end(), resume.blocks, std::less<>());
  if (windowed && resume.blocks > 0 && held) hit.snapshot_blocks = resume.blocks;
  hit.recomputes_window = resume.blocks < end;
  hit.exact = resume.exact;
  hit.reason = std::move(resume.reason);
  return hit;
}

std::uint32_t greatest_common_endpoint(std::span<const std::span<const std::uint32_t>> pools,
                                       std::uint32_t limit) {
  if (pools.empty() || pools.front().empty()) return 0;
  const auto& first = pools.front();
  for (std::size_t i = first.size(); i > 0; --i) {
    const std::uint32_t endpoint = first[i - 1];
    if (endpoint > limit) continue;
    const bool legal = std::all_of(pools.begin() + 1, pools.end(), [endpoint](const auto& pool) {
      return std::binary_search(pool.begin(), pool.end(), endpoint);
    });
    if (legal) return endpoint;
  }
  return 0;
}

}  // namespace trimtab::kv
