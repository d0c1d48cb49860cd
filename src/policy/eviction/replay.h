#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "model/trace.h"
#include "policy/eviction/policy.h"

namespace trimtab::eviction {

/// A trace as prompts in the order in which they arrive, their blocks numbered densely. The conversations of
/// a closed loop start evenly over `starts_over`, in the order of the trace, and keep their recorded times;
/// loops beside one another over the same blocks (agents) are one conversation.
class Prompts {
 public:
  Prompts(const model::Trace& trace, base::Nanos starts_over);

  struct Prompt {
    base::Nanos at;
    std::uint64_t begin = 0, end = 0;  // of `blocks`
    base::Nanos answered;              // when its answer is whole
    std::uint32_t answer_tokens = 0;
  };
  const std::vector<Prompt>& prompts() const { return prompts_; }
  const std::vector<std::uint32_t>& blocks() const { return blocks_; }
  std::uint32_t unique() const { return unique_; }
  base::Nanos span() const { return prompts_.empty() ? base::Nanos{} : prompts_.back().at; }

 private:
  std::vector<Prompt> prompts_;
  std::vector<std::uint32_t> blocks_;
  std::uint32_t unique_ = 0;
};

struct Replayed {
  std::uint64_t asked = 0;    // blocks of all prompts
  std::uint64_t hit = 0;      // of them, leading ones that were stored
  std::uint64_t written = 0;  // blocks that were stored, each time
  double ratio() const { return asked == 0 ? 0 : static_cast<double>(hit) / static_cast<double>(asked); }
};

/// What the replay takes for the time of an answer: traces record its length, and not all its end.
constexpr base::Nanos kAnswerBegins{3'000'000'000}, kAnswerPerToken{15'000'000};

/// Every prompt hits its leading stored blocks, is stored whole, and then the policy chooses who leaves. The
/// length of an answer is told when it is whole, never before, and only with `answers`.
Replayed replay(const Prompts& prompts, Policy& policy, std::uint64_t capacity_blocks, bool answers = true);
/// What a serving pool can be told, and when. Every prompt hits its leading stored blocks when it comes; its
/// other blocks are stored one by one while it is computed, until kAnswerBegins, while others come and go.
struct Telling {
  bool answers = true;
  bool requests = true;  // of a block that is stored: whose it is
};
Replayed replay_served(const Prompts& prompts, Policy& policy, std::uint64_t capacity_blocks,
                       const Telling& telling);
/// What who knows the future hits: the block that is asked for last leaves, and what is never asked for again
/// is not stored (Belady). O(log blocks) a block.
Replayed replay_clairvoyant(const Prompts& prompts, std::uint64_t capacity_blocks);

}  // namespace trimtab::eviction
