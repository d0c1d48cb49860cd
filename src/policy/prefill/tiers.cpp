#include "policy/prefill/tiers.h"

#include <algorithm>

namespace trimtab::policy {

namespace {

constexpr std::size_t kBoundsMax = 15;

std::string tokens_text(std::int64_t tokens) {
  if (tokens % 1024 == 0 && tokens > 0) return std::to_string(tokens / 1024) + "K";
  return std::to_string(tokens);
}

}  // namespace

base::Result<TierMap> TierMap::make(std::span<const std::int64_t> bounds_tokens) {
  if (bounds_tokens.size() > kBoundsMax) {
    return base::fail(
        base::Code::kInvalidArgument,
        std::to_string(bounds_tokens.size()) + " tier bounds; at most " + std::to_string(kBoundsMax),
        "prefill");
  }
  for (std::size_t i = 0; i < bounds_tokens.size(); ++i) {
    const std::int64_t before = i == 0 ? 0 : bounds_tokens[i - 1];
    if (bounds_tokens[i] <= before) {
      return base::fail(base::Code::kInvalidArgument,
                        "tier bounds must ascend from above 0; " + std::to_string(bounds_tokens[i]) +
                            " follows " + std::to_string(before),
                        "prefill");
    }
  }
  return TierMap(std::vector<std::int64_t>(bounds_tokens.begin(), bounds_tokens.end()));
}

model::TierId TierMap::tier_of(base::TokenCount context) const {
  const auto above = std::upper_bound(bounds_.begin(), bounds_.end(), context.value);
  return model::TierId{static_cast<std::uint32_t>(above - bounds_.begin())};
}

std::string TierMap::name(model::TierId tier) const {
  if (bounds_.empty()) return "all";
  if (tier.value == 0) return "<" + tokens_text(bounds_[0]);
  if (tier.value == bounds_.size()) return ">=" + tokens_text(bounds_.back());
  return tokens_text(bounds_[tier.value - 1]) + "-" + tokens_text(bounds_[tier.value]);
}

}  // namespace trimtab::policy
