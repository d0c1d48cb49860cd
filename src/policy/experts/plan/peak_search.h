#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/types.h"

namespace trimtab::experts {

struct PeakOptions {
  double move_price = 1e-3;     // a received copy must lower the peak by this part of the mean rank's load
  std::int32_t moves_max = -1;  // negative: no cap
};

struct PeakResult {
  std::int64_t swaps = 0, replacements = 0;
};

/// Improves a map for loads that are expected, one change at a time, each time the change that lowers the
/// peak most after its price, until none pays.
///
/// The peak is the p-norm of the ranks' loads, (sum of load^p)^(1/p), p = 32, and 16 from 32 ranks up: what
/// the busiest rank of a step will carry once counts scatter by 2 to 3 % about what is expected, so ranks
/// near the top weigh nearly as much as the top. (A sum of squares would spend moves on ranks that are merely
/// idle.) Changes: two ranks exchange copies; an expert with several copies gives a slot to another expert.
/// Copies are received against `before`; undoing one gives its price back. Only ranks that can pay are looked
/// at: one whose whole part of the norm is less than the best change so far is not. Cost: some 50 us a change
/// at 64 ranks x 7 slots, 100 at 8 x 52. Weakness: two changes that pay only together are not found.
class PeakSearch {
 public:
  /// `map`: legal, improved in place. `loads`: expected tokens, [experts] or longer. `before`: a map of the
  /// same shape, duplicates allowed.
  PeakResult run(const Shape& shape, std::span<const float> loads, std::span<const std::int32_t> before,
                 const PeakOptions& options, SlotMap& map);

 private:
  struct Change {
    double score = 0;  // fall of the peak less the price of the copies
    std::int32_t slot = -1, partner = -1, expert = -1;
    std::int32_t received = 0;
  };

  double power(double x) const;  // x^p
  double root(double x) const;
  void start(std::span<const float> loads, std::span<const std::int32_t> before);
  void measure();
  void prepare();
  void look_pair(std::int32_t hot, std::int32_t cool);
  void look_copy_of_hot(std::int32_t expert);
  void look_slots_of(std::int32_t hot);
  void judge_replace(std::int32_t slot, std::int32_t expert);
  double sum_after_replace(std::int32_t slot, std::int32_t expert) const;
  void offer(double sum_after, std::int32_t received, Change change);
  void set_limits();
  void apply(const Change& change, PeakResult& result);

  std::size_t cell(std::int32_t rank, std::int32_t expert) const {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(shape_.experts) +
           static_cast<std::size_t>(expert);
  }
  double share(std::int32_t expert) const { return share_[static_cast<std::size_t>(expert)]; }
  std::int32_t price_of(std::int32_t rank, std::int32_t expert) const {
    return had_[cell(rank, expert)] != 0 ? 0 : 1;
  }

  Shape shape_;
  std::int32_t doublings_ = 5;  // p = 2^doublings
  double price_ = 0;
  std::int64_t moves_left_ = 0;
  SlotMap map_;
  std::vector<double> loads_, share_,
      next_share_;                       // [experts], the mean rank is 1: whole, of a copy, of one more
  std::vector<std::int32_t> copies_;     // [experts]
  std::vector<double> level_, power_;    // [ranks]
  std::vector<double> relief_, burden_;  // [experts]: the sum's change if it gains, loses a copy
  std::vector<float> slot_load_;         // [slots]
  std::vector<double> slot_room_,
      slot_sum_;                          // [slots], of spare ones: without its copy, its rank, all others
  std::vector<std::uint8_t> held_, had_;  // [ranks, experts]
  std::vector<std::uint8_t> changed_;     // [ranks]: may hold other than before
  std::vector<std::vector<std::int32_t>> ranks_of_;  // [experts]
  std::vector<std::int32_t> spare_;                  // slots whose expert has several copies
  bool any_changed_ = false;
  double sum_ = 0, peak_ = 0;  // of the powers; its root
  double limit_[5] = {};       // the sum must fall below this to beat `best_`, by copies received + 2
  Change best_;
};

}  // namespace trimtab::experts
