#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "policy/eviction/replay.h"
#include "policy/eviction/slots.h"

namespace trimtab::eviction {
namespace {

class Served {
 public:
  Served(const Prompts& prompts, Policy& policy, std::uint64_t capacity_blocks, const Telling& telling)
      : prompts_(prompts),
        policy_(policy),
        capacity_blocks_(capacity_blocks),
        telling_(telling),
        slots_(prompts.unique(), kNoSlot),
        asked_(prompts.prompts().size()) {}

  Replayed run() {
    for (std::size_t number = 0; number < prompts_.prompts().size(); ++number) {
      until(prompts_.prompts()[number].at);
      arrive(number);
    }
    return out_;
  }

 private:
  struct Due {
    std::int64_t at_ns;
    std::size_t prompt;
    std::uint64_t block;  // the place of what is stored then; the prompt's end: its answer is whole
    auto operator<=>(const Due&) const = default;
  };
  struct Asked {
    Access access;
    std::uint64_t first_missing = 0;
  };

  /// Of the block at that place; 0 is nobody's.
  std::uint64_t key_of(std::uint64_t place) const { return prompts_.blocks()[place] + std::uint64_t{1}; }

  void until(Nanos now) {
    while (!due_.empty() && due_.begin()->at_ns <= now.value) {
      const Due due = *due_.begin();
      due_.erase(due_.begin());
      const Prompts::Prompt& prompt = prompts_.prompts()[due.prompt];
      if (due.block == prompt.end) {
        answer(due.prompt);
      } else {
        store(due);
        follow(due.prompt, due.block + 1);
      }
    }
  }

  /// The prompt's next block will be stored, the last of them when its answer begins.
  void follow(std::size_t number, std::uint64_t block) {
    const Prompts::Prompt& prompt = prompts_.prompts()[number];
    if (block == prompt.end) return;
    const std::uint64_t first = asked_[number].first_missing;
    const double share = static_cast<double>(block + 1 - first) / static_cast<double>(prompt.end - first);
    const auto takes = static_cast<std::int64_t>(share * static_cast<double>(kAnswerBegins.value));
    due_.insert({prompt.at.value + takes, number, block});
  }

  void arrive(std::size_t number) {
    const Prompts::Prompt& prompt = prompts_.prompts()[number];
    const auto blocks = std::span(prompts_.blocks()).subspan(prompt.begin, prompt.end - prompt.begin);
    std::size_t hit = 0;
    while (hit < blocks.size() && slots_[blocks[hit]] != kNoSlot) ++hit;
    std::size_t known = hit;
    while (known < blocks.size() &&
           (slots_[blocks[known]] != kNoSlot || policy_.remembers(key_of(prompt.begin + known))))
      ++known;
    out_.asked += blocks.size();
    out_.hit += hit;
    // Requests are told apart by their times, as a pool's clock does.
    last_ = std::max(prompt.at, last_ + Nanos{1});
    Asked& asked = asked_[number];
    asked.access = {last_, static_cast<std::uint32_t>(blocks.size()), static_cast<std::uint32_t>(known)};
    asked.first_missing = prompt.begin + hit;
    for (const std::uint32_t id : blocks.first(hit)) policy_.used(slots_[id], asked.access);
    if (telling_.answers) due_.insert({prompt.answered.value, number, prompt.end});
    follow(number, asked.first_missing);
  }

  void store(const Due& due) {
    const Prompts::Prompt& prompt = prompts_.prompts()[due.prompt];
    Slot& slot = slots_[prompts_.blocks()[due.block]];
    if (slot != kNoSlot) return;  // another request's, meanwhile
    const Nanos now{due.at_ns};
    slot = taken_.take(prompts_.blocks()[due.block]);
    Block block;
    block.key = key_of(due.block);
    block.parent = due.block == prompt.begin ? kNoSlot : slots_[prompts_.blocks()[due.block - 1]];
    if (due.block > prompt.begin) block.parent_key = key_of(due.block - 1);
    block.position = telling_.requests ? static_cast<std::uint32_t>(due.block - prompt.begin) : 0;
    policy_.stored(slot, block, telling_.requests ? asked_[due.prompt].access : Access{now});
    ++out_.written;
    if (policy_.count() <= capacity_blocks_) return;
    for (const Slot gone :
         policy_.victims(Bytes{static_cast<std::int64_t>(policy_.count() - capacity_blocks_)}, now)) {
      slots_[taken_.key_of(gone)] = kNoSlot;
      taken_.give_back(gone);
    }
  }

  void answer(std::size_t number) {
    const Prompts::Prompt& prompt = prompts_.prompts()[number];
    std::uint64_t last = prompt.end;
    while (last > prompt.begin && slots_[prompts_.blocks()[last - 1]] == kNoSlot) --last;
    if (last > prompt.begin)
      policy_.answered(slots_[prompts_.blocks()[last - 1]], asked_[number].access.now, prompt.answer_tokens,
                       prompt.answered);
  }

  const Prompts& prompts_;
  Policy& policy_;
  std::uint64_t capacity_blocks_;
  Telling telling_;
  std::vector<Slot> slots_;
  std::vector<Asked> asked_;
  Slots<std::uint32_t> taken_;
  std::set<Due> due_;
  Nanos last_;
  Replayed out_;
};

}  // namespace

Replayed replay_served(const Prompts& prompts, Policy& policy, std::uint64_t capacity_blocks,
                       const Telling& telling) {
  return Served(prompts, policy, capacity_blocks, telling).run();
}

}  // namespace trimtab::eviction
