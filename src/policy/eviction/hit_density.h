#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "policy/eviction/cells.h"
#include "policy/eviction/ghosts.h"
#include "policy/eviction/hazard.h"
#include "policy/eviction/policies.h"

namespace trimtab::eviction {

/// Drops the block that promises least saved recompute per byte and second kept: the index of its kind at its
/// age (hazard.h, kinds.h), times what computing it again costs, over its bytes. New blocks compete at once,
/// so what nobody is likely to ask for again is hardly admitted. All is learned from the stream as it passes.
/// Cost: O(log cells) an operation; memory: docs/policies/eviction.md. Weakness: it must see a few hundred
/// requests before it knows better than LRU, and tells kinds well only when `Access::prompt_blocks` is given.
class HitDensity final : public Policy {
 public:
  explicit HitDensity(const Settings& settings);
  bool remembers(std::uint64_t key) const override { return ghosts_.knows(key); }

 private:
  static constexpr std::uint32_t kWorths = 16;
  struct State {
    std::uint64_t key = 0;
    Nanos last;
    std::uint32_t position = 0;
    Kind kind;
    std::uint8_t uses = 0;      // before the last one, at most 255
    std::uint8_t worth = 0;     // recompute cost per byte, in half octaves
    std::uint8_t children = 0;  // ever, at most 255
    std::uint8_t turn = 0;      // of the conversation when it was stored
    bool branch = false;        // a request went another way since it was used
  };

  void on_stored(Slot slot, const Block& block, const Access& access) override;
  void on_used(Slot slot, const Access& access) override;
  void on_gone(Slot slot, bool evicted) override;
  void on_changed(Slot slot) override;
  Slot candidate(Nanos now) override;
  void postpone(Slot /*slot*/) override {}  // only who can go is in a cell
  std::size_t order_bytes() const override;

  void touch(Slot slot, Nanos gap, const Access& access);
  void leave_behind(Slot parent, Slot taken);
  void place(Slot slot, bool at_end);
  void age();
  std::uint8_t worth_of(const Block& block);
  Cells::Cell cell_of(const State& state) const;
  double worth_of(Cells::Cell cell) const;

  const policy::CostModel* cost_;
  std::int64_t block_tokens_;
  double worth_unit_ = 0;  // of a prompt's first block, as the first that was stored has it
  std::array<double, kWorths> factors_{};
  Hazards hazards_;
  Cells cells_;
  Ghosts ghosts_;
  std::vector<State> states_;
  std::vector<Cells::Cell> filled_;
  std::vector<Slot> open_;
  Nanos now_, aged_{-1};
};

}  // namespace trimtab::eviction
