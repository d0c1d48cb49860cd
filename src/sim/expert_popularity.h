#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/error.h"
#include "base/prng.h"
#include "model/expert_model.h"

namespace trimtab::sim {

/// The model's popularity where it is recorded, else drawn from its skew: the logarithm of an expert's share
/// is a part that all kinds of text have in common and a part of each kind's own (`domain_share` of the
/// variance), lognormal or Zipf in random order. The same seed draws the same. Errors: recorded shares that
/// do not add up; fewer experts than a token chooses.
base::Result<model::ExpertPopularity> make_popularity(const model::ExpertModel& model, std::uint64_t seed);

/// What a group's batch is made of, text by text, over time: the logarithms of the weights are independent
/// Ornstein-Uhlenbeck processes of deviation `mix_spread` that forget themselves in `drift_steps` steps. The
/// mix stays for an epoch, so that both speeds of a simulation see the same loads. Of recorded windows
/// `routing_windows` are read at a time: each is drawn from a text by its weight, and read to its end.
class TextMix {
 public:
  TextMix(const model::ExpertModel& model, const model::ExpertSide& side, std::uint64_t seed,
          std::uint64_t stream);

  /// One epoch on.
  void advance();
  /// [domains], adding up to 1.
  std::span<const double> weights() const { return weights_; }
  /// Shares of a layer's experts under the mix, [experts].
  void shares(const model::ExpertPopularity& popularity, std::int32_t layer, std::span<double> out) const;

 private:
  void weigh();
  void draw_windows(double replaced);

  base::Prng prng_;
  double keep_ = 1, shock_ = 0, replaced_ = 0;
  std::vector<double> logs_, weights_;
  // Of recorded windows.
  std::vector<double> texts_;                        // weights of the texts
  std::vector<std::vector<std::uint32_t>> windows_;  // of each text
  std::vector<std::uint32_t> reading_;
};

/// The same of weights that were kept.
void mixed_shares(const model::ExpertPopularity& popularity, std::int32_t layer,
                  std::span<const double> weights, std::span<double> out);

}  // namespace trimtab::sim
