#include "policy/experts/plan/copies.h"

#include <algorithm>

#include "policy/experts/plan/kernels.h"

namespace trimtab::experts {
namespace {

std::size_t at(std::int32_t value) { return static_cast<std::size_t>(value); }

class Chooser {
 public:
  Chooser(const Shape& shape, const LayerLoads& loads, const CopyWeights& weights)
      : shape_(shape), loads_(loads), copies_(at(shape.experts), 1), load_(loads.by_step) {
    floor_.resize(at(loads.steps));
    double mean = 0;
    for (std::size_t step = 0; step < floor_.size(); ++step) {
      const double rank_mean = loads.step_totals[step] / shape.ranks;
      floor_[step] = static_cast<float>(weights.peak_floor * rank_mean);
      mean += rank_mean;
    }
    mean /= loads.steps;
    // Squares in tokens, from the loads rather than the Gram matrix, whose unit is the window's.
    square_.resize(at(shape.experts));
    spread_.resize(square_.size());
    for (std::int32_t expert = 0; expert < shape.experts; ++expert) {
      double square = 0;
      for (const float load : loads.of(expert))
        square += static_cast<double>(load) * static_cast<double>(load);
      square_[at(expert)] = mean > 0 ? weights.variance * square / mean : 0;
      spread_[at(expert)] = square_[at(expert)] / 2;
    }
    value_.resize(2 * floor_.size());
    who_.resize(2 * floor_.size());
    for (std::int32_t step = 0; step < loads.steps; ++step) rank_step(step);
  }

  std::vector<std::int32_t> run() {
    gain_.resize(spread_.size());
    for (std::int32_t copy = 0; copy < shape_.redundant(); ++copy) give(best());
    return copies_;
  }

 private:
  void rank_step(std::int32_t step) {
    kernels().top_two(load_.data() + at(step) * at(loads_.experts_padded), loads_.experts_padded,
                      value_.data() + 2 * at(step), who_.data() + 2 * at(step));
  }

  std::int32_t best() {
    gain_ = spread_;
    for (std::size_t step = 0; step < floor_.size(); ++step) {
      // The largest copy falls to its own next share, to the second largest, or out of what counts.
      const auto expert = at(who_[2 * step]);
      const float now = value_[2 * step];
      const auto copies = static_cast<float>(copies_[expert]);
      const float then = std::max({floor_[step], value_[2 * step + 1], now * copies / (copies + 1)});
      if (now > then) gain_[expert] += static_cast<double>(now - then);
    }
    std::int32_t winner = -1;
    for (std::int32_t expert = 0; expert < shape_.experts; ++expert) {
      if (copies_[at(expert)] >= shape_.copies_max()) continue;
      if (winner < 0 || gain_[at(expert)] > gain_[at(winner)] ||
          (gain_[at(expert)] == gain_[at(winner)] && copies_[at(expert)] < copies_[at(winner)]))
        winner = expert;
    }
    return winner;
  }

  void give(std::int32_t expert) {
    const std::int32_t copies = ++copies_[at(expert)];
    spread_[at(expert)] = square_[at(expert)] / (static_cast<double>(copies) * (copies + 1));
    const auto divisor = static_cast<float>(copies);
    for (std::int32_t step = 0; step < loads_.steps; ++step) {
      const std::size_t index = at(step) * at(loads_.experts_padded) + at(expert);
      load_[index] = loads_.by_step[index] / divisor;
      if (who_[2 * at(step)] == expert || who_[2 * at(step) + 1] == expert) rank_step(step);
    }
  }

  const Shape& shape_;
  const LayerLoads& loads_;
  std::vector<std::int32_t> copies_;
  std::vector<float> load_;                     // [steps, experts_padded]: of one copy
  std::vector<float> floor_;                    // [steps]
  std::vector<double> square_, spread_, gain_;  // [experts]
  std::vector<float> value_;                    // [steps, 2]: the two largest copies
  std::vector<std::int32_t> who_;               // [steps, 2]
};

}  // namespace

std::vector<std::int32_t> choose_copies(const Shape& shape, const LayerLoads& loads,
                                        const CopyWeights& weights) {
  return Chooser(shape, loads, weights).run();
}

}  // namespace trimtab::experts
