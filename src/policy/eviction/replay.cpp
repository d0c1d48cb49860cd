#include "policy/eviction/replay.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>

#include "policy/eviction/slots.h"

namespace trimtab::eviction {

Prompts::Prompts(const model::Trace& trace, base::Nanos starts_over) {
  // Block ids are of the trace; the blocks of one request are its leading runs up to the prompt's end.
  struct Arrival {
    base::Nanos at;
    std::size_t request;
  };
  // The upper half of a block's id tells whose it is: the loops of one conversation share it.
  std::unordered_map<std::uint64_t, std::uint32_t> spaces;  // looked up, never iterated
  std::vector<std::uint32_t> conversation_of(trace.requests.size());
  for (std::size_t i = 0; trace.closed_loop && i < trace.requests.size(); ++i) {
    const auto runs = trace.runs_of(trace.requests[i]);
    const std::uint64_t space = runs.empty() ? 0 : runs.front().first >> 32U;
    conversation_of[i] = spaces.emplace(space, static_cast<std::uint32_t>(spaces.size())).first->second;
  }
  std::vector<Arrival> order;
  for (std::size_t i = 0; i < trace.requests.size(); ++i) {
    base::Nanos at = trace.requests[i].arrival;
    if (trace.closed_loop) at += starts_over / static_cast<std::int64_t>(spaces.size()) * conversation_of[i];
    order.push_back({at, i});
  }
  std::ranges::stable_sort(order, {}, &Arrival::at);
  std::unordered_map<std::uint64_t, std::uint32_t> numbers;  // looked up, never iterated
  for (const Arrival& arrival : order) {
    const auto tokens =
        std::clamp<std::int64_t>(trace.requests[arrival.request].output_tokens, 0, 10'000'000);
    Prompt prompt{arrival.at, blocks_.size(), 0, arrival.at + kAnswerBegins + kAnswerPerToken * tokens,
                  static_cast<std::uint32_t>(tokens)};
    for (const model::BlockRun& run : trace.runs_of(trace.requests[arrival.request])) {
      for (std::uint32_t i = 0; i < run.count; ++i)
        blocks_.push_back(
            numbers.emplace(run.first + i, static_cast<std::uint32_t>(numbers.size())).first->second);
    }
    prompt.end = blocks_.size();
    prompts_.push_back(prompt);
  }
  unique_ = static_cast<std::uint32_t>(numbers.size());
}

Replayed replay(const Prompts& prompts, Policy& policy, std::uint64_t capacity_blocks, bool answers_told) {
  Replayed out;
  std::vector<Slot> slots(prompts.unique(), kNoSlot);
  Slots<std::uint32_t> taken;
  std::set<std::pair<std::int64_t, std::size_t>> answers;  // that are being generated
  const auto tell_answers = [&](Nanos now) {
    while (!answers.empty() && answers.begin()->first <= now.value) {
      const Prompts::Prompt& asked = prompts.prompts()[answers.begin()->second];
      answers.erase(answers.begin());
      std::uint64_t last = asked.end;
      while (last > asked.begin && slots[prompts.blocks()[last - 1]] == kNoSlot) --last;
      if (last > asked.begin)
        policy.answered(slots[prompts.blocks()[last - 1]], asked.at, asked.answer_tokens, asked.answered);
    }
  };
  for (std::size_t number = 0; number < prompts.prompts().size(); ++number) {
    const Prompts::Prompt& prompt = prompts.prompts()[number];
    tell_answers(prompt.at);
    if (answers_told) answers.emplace(prompt.answered.value, number);
    const auto blocks = std::span(prompts.blocks()).subspan(prompt.begin, prompt.end - prompt.begin);
    std::size_t hit = 0;
    while (hit < blocks.size() && slots[blocks[hit]] != kNoSlot) ++hit;
    std::size_t known = hit;
    while (known < blocks.size() && (slots[blocks[known]] != kNoSlot || policy.remembers(blocks[known])))
      ++known;
    out.asked += blocks.size();
    out.hit += hit;
    const Access access{prompt.at, static_cast<std::uint32_t>(blocks.size()),
                        static_cast<std::uint32_t>(known)};
    Block block;
    for (const std::uint32_t id : blocks) {
      Slot& slot = slots[id];
      if (slot != kNoSlot) {
        policy.used(slot, access);
      } else {
        slot = taken.take(id);
        block.key = id;
        policy.stored(slot, block, access);
        ++out.written;
      }
      block.parent = slot;
      ++block.position;
    }
    if (policy.count() <= capacity_blocks) continue;
    for (const Slot gone :
         policy.victims(Bytes{static_cast<std::int64_t>(policy.count() - capacity_blocks)}, prompt.at)) {
      slots[taken.key_of(gone)] = kNoSlot;
      taken.give_back(gone);
    }
  }
  return out;
}

Replayed replay_clairvoyant(const Prompts& prompts, std::uint64_t capacity_blocks) {
  constexpr std::uint32_t kNever = UINT32_MAX;
  const auto& blocks = prompts.blocks();
  const auto& all = prompts.prompts();
  std::vector<std::uint32_t> next(blocks.size(), kNever), last(prompts.unique(), kNever);  // prompts
  for (std::size_t p = all.size(); p-- > 0;) {
    for (std::uint64_t i = all[p].begin; i < all[p].end; ++i) next[i] = last[blocks[i]];
    for (std::uint64_t i = all[p].begin; i < all[p].end; ++i) last[blocks[i]] = static_cast<std::uint32_t>(p);
  }
  Replayed out;
  std::vector<std::uint32_t> due(prompts.unique(), kNever);  // of what is stored: the prompt that asks next
  std::set<std::pair<std::uint32_t, std::uint32_t>> stored;
  for (const Prompts::Prompt& prompt : all) {
    out.asked += prompt.end - prompt.begin;
    bool leads = true;
    for (std::uint64_t i = prompt.begin; i < prompt.end; ++i) {
      leads = leads && due[blocks[i]] != kNever;
      out.hit += leads ? 1 : 0;
    }
    for (std::uint64_t i = prompt.end; i-- > prompt.begin;) {
      const std::uint32_t block = blocks[i];
      if (due[block] != kNever)
        stored.erase({due[block], block});
      else if (next[i] != kNever)
        ++out.written;
      due[block] = next[i];
      if (next[i] == kNever) continue;
      stored.emplace(next[i], block);
      if (stored.size() <= capacity_blocks) continue;
      due[stored.rbegin()->second] = kNever;
      stored.erase(std::prev(stored.end()));
    }
  }
  return out;
}

}  // namespace trimtab::eviction
