#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "policy/experts/types.h"

namespace trimtab::sim {

/// What falls on one rank of a layer when the group routes one choice: a sum over its copies of popularity x
/// the share that the copy takes, of the share's square and of its cube.
struct RankMoments {
  double first = 0, second = 0, third = 0;
};

/// Of every rank, for copies that take `slot_shares` [slots] of their experts' tokens; `popularity` [experts]
/// adds up to 1. Two copies of an expert on one rank are one.
void rank_moments(const experts::Shape& shape, std::span<const std::int32_t> map,
                  std::span<const double> slot_shares, std::span<const double> popularity,
                  std::span<RankMoments> out);

/// Expected busiest rank over mean when `choices` tokens x experts are drawn, counts being multinomial.
/// `error_ratio`: variance that shares from an estimate add, in parts of a step's own. Method: ranks are
/// taken as independent with their first three moments (Cornish-Fisher), and the maximum's distribution is
/// integrated. Within 1 % of the mean of draws (test). Cost: 32 x ranks table look-ups. Weakness: copies of
/// one expert rise together, which the independence overstates a little.
double expected_peak(std::span<const RankMoments> ranks, double choices, double error_ratio);

/// Busiest rank over mean of counts [experts]; 1 without any.
double drawn_peak(const experts::Shape& shape, std::span<const std::int32_t> map,
                  std::span<const double> slot_shares, std::span<const std::int64_t> counts);

}  // namespace trimtab::sim
