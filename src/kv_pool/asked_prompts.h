#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "model/ids.h"

namespace trimtab::kv_pool {

using model::BlockKey;

/// Prompts that were asked for, so that what is stored of one later, and the end of its answer, can be told
/// to the eviction policies as its own. A hint and no more: the oldest are forgotten when there are too many
/// keys, and then their blocks count as nobody's. O(keys) a prompt, O(1) a block.
class AskedPrompts {
 public:
  struct Prompt {
    base::Nanos at;            // no two have the same
    std::uint32_t blocks = 0;  // of the prompt, the last one that is not full among them
    std::uint32_t known = 0;   // leading ones that the store has or remembers
    bool answered = false;
    std::vector<BlockKey> keys;  // of the prompt, then of its answer as far as it was stored
  };
  struct Place {
    std::uint64_t prompt = 0;
    std::uint32_t position = 0;
  };
  /// Numbers begin behind `before`: those of an earlier life are nobody's.
  AskedPrompts(std::uint64_t before, std::size_t keys_most) : last_(before), keys_most_(keys_most) {}

  /// Its number. `here`: leading keys that are stored already. The latest who asks for a block has it.
  std::uint64_t open(Prompt prompt, std::uint32_t here);
  /// The time for the next prompt.
  base::Nanos time(base::Nanos now);
  /// Null: forgotten, or never given out.
  Prompt* find(std::uint64_t number);
  /// Whose block this is; behind one of a prompt it is its answer's. Nothing: of no prompt that is known.
  std::optional<Place> place(BlockKey key, std::optional<BlockKey> parent);

 private:
  void forget_oldest();
  std::deque<std::pair<std::uint64_t, Prompt>> prompts_;  // numbers without a gap, the oldest first
  std::unordered_map<BlockKey, Place> place_of_;          // looked up, never iterated
  std::uint64_t last_;
  std::size_t keys_ = 0, keys_most_;
  base::Nanos last_time_{0};
};

}  // namespace trimtab::kv_pool
