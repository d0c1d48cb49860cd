#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "policy/eviction/features.h"
#include "policy/eviction/ghosts.h"
#include "policy/eviction/odds.h"
#include "policy/eviction/order.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/shadow.h"

namespace trimtab::eviction {

/// Drops the block that promises least saved recompute per byte and second kept.
///
/// The forecast is made for a run: neighbouring blocks of one request that look alike. `Odds` learns from the
/// stream how soon such runs are used again (features.h); a run's index at its age, times what computing a
/// block again costs, over its bytes, is what each of its blocks is worth, and the end of the run of least
/// worth goes. When the answer to the request is whole, the forecast is made anew with its length, and age
/// counts from there. New blocks compete at once. Cost: O(1) a block told, and O(features x ages + log runs)
/// a run; memory: docs/policies/eviction.md. Weakness: it must see a few hundred requests before it knows
/// better than LRU, and tells runs well only when `Access::prompt_blocks` and answers are told.
class HitDensity final : public Policy {
 public:
  explicit HitDensity(const Settings& settings);
  /// As its own shadow: forecasts by what `teacher` has learned, always by its own order.
  HitDensity(const Settings& settings, Odds& teacher);
  bool remembers(std::uint64_t key) const override { return ghosts_.knows(key); }

 private:
  HitDensity(const Settings& settings, std::unique_ptr<Odds> learned, Odds* teacher);

  using RunId = std::uint32_t;
  static constexpr RunId kNoRun = UINT32_MAX;
  static constexpr std::uint32_t kWorths = 16;
  struct State {
    std::uint64_t key = 0;
    std::uint64_t line = 0;  // the conversation's: key of the first block that it does not share
    Nanos last;
    RunId run = kNoRun;
    Slot before = kNoSlot, behind = kNoSlot;  // in the run
    std::uint32_t position = 0;
    std::uint8_t uses = 0;      // before the last one, at most 255
    std::uint8_t children = 0;  // ever, at most 255
    std::uint8_t pace = 0;      // mean bucket of its gaps, in eighths; 0: none
    std::uint8_t answer = 0;    // bucket of the last answer behind it
    std::uint8_t worth = 0;     // recompute cost per byte, in half octaves
    bool end = false;           // of the prompt it was stored with
    bool leads = false;         // a run is followed by its key
    bool cut_off = false;       // stored last, and without the blocks before it
  };
  struct Run {
    Traits traits;
    Nanos asked, since;         // the request came; age counts from here
    std::uint64_t request = 0;  // its number; 0: of none
    std::uint64_t key = 0;      // of its first block
    Slot end = kNoSlot;         // only this one can be droppable
    std::uint32_t blocks = 0;
    std::uint8_t age = 0, worth = 0;
    bool judged = false, ranked = false;
    bool cut_off = false;  // a block before it is missing: it cannot be hit
    double rank = 0;
    RunId newer = kNoRun, older = kNoRun;  // in the queue of its age
    RunId run_before = kNoRun;             // of the same request, while it has the same number
    Odds::Index index{};
  };
  /// A request that others have followed: some of its blocks may still be on their way into the store.
  struct Earlier {
    Traits traits;
    std::uint64_t request = 0;
    RunId last_run = kNoRun;  // while it has the request's number
    Nanos since;              // ages count from here
    std::uint64_t line = 0;   // of the conversation
  };

  void on_stored(Slot slot, const Block& block, const Access& access) override;
  void on_used(Slot slot, const Access& access) override;
  void on_answered(Slot slot, Nanos asked, std::uint32_t tokens, Nanos now) override;
  void on_gone(Slot slot, bool evicted) override;
  void on_joined(Slot slot) override;
  void on_changed(Slot slot) override;
  Slot candidate(Nanos now) override;
  // Only runs whose end can go have a rank; of the least recently used ones this is not so.
  void postpone(Slot slot) override { recency_.touch(slot); }
  std::size_t order_bytes() const override;

  /// A run is followed twice: from the request on, and from the answer (or a branch) on.
  static std::uint64_t later_key(std::uint64_t key);
  static Traits traits_of(const Access& access);
  void arrive(const Access& access);
  void begin_request(const Access& access);
  void end_request();
  void touch(Slot slot, Nanos gap, const Access& access);
  /// The same of a block whose request came before others that were told.
  void touch_late(Slot slot, Nanos gap, const Access& access);
  Earlier& earlier(Nanos asked);
  void speak_for(Traits& request, State& state, Nanos gap) const;
  void ends_episode(State& state, Nanos now);
  bool joins_saved(Slot slot, const Access& access);
  RunId run_for(Slot slot, std::uint8_t gap);
  void leave_behind(Slot parent, Slot taken, Nanos asked);
  RunId new_run();
  void append(Slot slot, RunId run);
  void take_out(Slot slot);
  void judge(RunId run, Nanos since);
  void rank(RunId run);
  void unrank(RunId run);
  void enqueue(RunId run);
  void dequeue(RunId run);
  void age();
  std::uint8_t worth_of(const Block& block);
  bool sampled(std::uint64_t line) const;
  void tell_shadows(Slot slot, std::uint64_t parent_key, const Access& access, bool late);
  void compare_shadows();
  void place_recent(Slot slot);

  const policy::CostModel* cost_;
  std::int64_t block_tokens_;
  double lead_, lead_to_stay_;
  double worth_unit_ = 0;  // of a prompt's first block, as the first that was stored has it
  std::array<double, kWorths> factors_{};
  std::unique_ptr<Odds> learned_;  // none: a shadow
  Odds& odds_;
  Order recency_;
  Ghosts ghosts_;
  std::vector<State> states_;
  std::vector<Run> runs_;
  std::vector<RunId> free_;
  std::set<std::pair<double, RunId>> by_rank_;
  std::array<RunId, kAges> newest_{}, oldest_{};
  Nanos now_;

  // Which order has hit more of late.
  std::uint64_t sample_mask_ = 0;
  std::unique_ptr<Shadow> by_recency_, by_density_;
  bool prefer_density_ = false;
  bool shadowed_ = false;  // of this request something was told to them

  // The request whose blocks are being told: its runs are judged when all of it is known.
  bool telling_ = false;
  std::uint64_t request_ = 0;
  Nanos asked_;
  Traits traits_;
  Slot last_ = kNoSlot;  // told last
  std::vector<RunId> opened_;
  std::vector<Slot> left_;
  std::map<Nanos, Earlier> earlier_;  // by when they came
};

}  // namespace trimtab::eviction
