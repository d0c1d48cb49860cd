#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/prng.h"
#include "model/verify_model.h"

namespace trimtab::sim {

/// How readily a request's drafts are accepted: its part of the logit, drawn from its number.
double draw_acceptance(const model::VerifyModel& model, base::Prng& prng);
/// One round of drafts: rates [drafts], cumulative. Entry j is the chance that drafts 0 to j are all
/// accepted.
void draw_round(const model::VerifyModel& model, double acceptance, base::Prng& prng, std::span<float> rates);

/// The same in expectation, for the closed form: of requests as a batch holds them (those that are rarely
/// accepted stay longer), tabulated from seeded draws. When the likeliest drafts are verified, all of one
/// batch that are likelier than a threshold are.
class DraftTable {
 public:
  explicit DraftTable(const model::VerifyModel& model);

  /// Tokens of a request and step when so many drafts a request are verified on average, the likeliest.
  double tokens(double drafts) const;
  /// The least rate that is then verified.
  double threshold(double drafts) const;
  /// Of the number of drafts of one request that are then verified, from round to round and request to
  /// request.
  double variance(double drafts) const;
  /// Tokens a step of a request of this acceptance, when what is above the threshold is verified.
  double tokens_of(double acceptance, double threshold) const;
  /// When all drafts are verified.
  double tokens_of_all() const { return tokens_.back(); }

 private:
  struct Class {
    double acceptance = 0, weight = 0;
    std::vector<float> rounds;  // rates of its rounds, [rounds, drafts]
    std::vector<float> rates;   // the same, likeliest first
    std::vector<double> sums;   // of the first k
  };
  double tokens_of(const Class& of, double threshold) const;
  double variance_at(double threshold) const;

  std::int32_t rounds_ = 0, drafts_ = 0;
  std::vector<Class> classes_;  // by acceptance
  // At kKnots + 1 even steps of drafts a request.
  std::vector<double> tokens_, thresholds_, variances_;
};

}  // namespace trimtab::sim
