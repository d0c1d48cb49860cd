#include "policy/prefill/assignment.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "base/nearest.h"

namespace trimtab::policy {
namespace {

constexpr std::array<std::string_view, 7> kNames = {
    "pull", "random", "round_robin", "power_of_two", "least_requests", "least_work", "dualpath"};

/// The open rank with the smallest key.
template <class Key>
std::optional<std::uint32_t> least(std::span<const AssignedLoad> ranks, const Key& key) {
  std::optional<std::uint32_t> best;
  for (std::uint32_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].open && (!best || key(ranks[i]) < key(ranks[*best]))) best = i;
  }
  return best;
}

auto work_of(const AssignedLoad& load) { return std::tuple(load.work, load.requests); }

}  // namespace

std::span<const std::string_view> prefill_assignment_names() { return kNames; }

base::Result<PrefillAssignment> prefill_assignment(std::string_view name) {
  const auto found = std::ranges::find(kNames, name);
  if (found != kNames.end()) return static_cast<PrefillAssignment>(found - kNames.begin());
  std::string message = "there is no prefill assignment \"" + std::string(name) + "\"";
  const std::string close = base::nearest(name, kNames);
  if (!close.empty()) message += "; did you mean \"" + close + "\"?";
  message += " Known: ";
  for (const std::string_view known : kNames)
    message += std::string(known) + (known == kNames.back() ? "" : ", ");
  return base::fail(base::Code::kInvalidArgument, std::move(message), "policy/prefill");
}

PrefillAssigner::PrefillAssigner(PrefillAssignment rule, std::uint64_t seed, std::int64_t ceiling_tokens)
    : rule_(rule), prng_(seed, 0xa5519), ceiling_tokens_(ceiling_tokens) {}

std::optional<std::uint32_t> PrefillAssigner::random(std::span<const AssignedLoad> ranks) {
  const auto open = static_cast<std::uint64_t>(std::ranges::count_if(ranks, &AssignedLoad::open));
  if (open == 0) return std::nullopt;
  std::uint64_t skip = prng_.below(open);
  for (std::uint32_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i].open && skip-- == 0) return i;
  }
  return std::nullopt;
}

std::optional<std::uint32_t> PrefillAssigner::choose(std::span<const AssignedLoad> ranks) {
  switch (rule_) {
    case PrefillAssignment::kPull:
      return std::nullopt;
    case PrefillAssignment::kRandom:
      return random(ranks);
    case PrefillAssignment::kRoundRobin:
      for (std::uint32_t tried = 0; tried < ranks.size(); ++tried) {
        const std::uint32_t rank = next_ % static_cast<std::uint32_t>(ranks.size());
        next_ = rank + 1;
        if (ranks[rank].open) return rank;
      }
      return std::nullopt;
    case PrefillAssignment::kPowerOfTwo: {
      const auto one = random(ranks), two = random(ranks);
      if (!one || !two) return one;
      return std::tuple(work_of(ranks[*two]), *two) < std::tuple(work_of(ranks[*one]), *one) ? two : one;
    }
    case PrefillAssignment::kLeastRequests:
      return least(ranks, [](const AssignedLoad& load) { return load.requests; });
    case PrefillAssignment::kLeastWork:
      return least(ranks, work_of);
    case PrefillAssignment::kDualPath: {
      const auto rank = least(ranks, [](const AssignedLoad& load) { return load.tokens; });
      if (!rank || ranks[*rank].tokens > ceiling_tokens_) return std::nullopt;
      return rank;
    }
  }
  return std::nullopt;
}

}  // namespace trimtab::policy
