#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/units.h"

namespace trimtab::eviction {

using base::Nanos;

/// Ages in buckets whose width grows by half an octave: 0 to 1 s, then up to 36 h; the last has no end.
constexpr std::uint32_t kAges = 36;
std::uint32_t age_bucket(Nanos age);
Nanos age_begin(std::uint32_t bucket);

/// What is known of a run of blocks that one request used: one value of each feature, as the rows of the
/// weights that speak for it (features.h).
constexpr std::uint32_t kFeatures = 12;
using Features = std::array<std::uint16_t, kFeatures>;

/// How soon runs of blocks are used again, learned from the stream itself while it passes: the odds that a
/// run which has reached an age is used before it leaves that bucket of age, as a logistic function of a sum
/// of one weight for each feature and group of ages, plus one for the age. Weights move after every bucket
/// that a run has outlived or was used in (stochastic gradient, step by AdaGrad), whether or not it was still
/// stored.
///
/// From the odds follows the index of a run at every age: the most hits per second that keeping one of its
/// blocks from then on can yield, over all times at which one may give up (Gittins).
/// Before anything was seen a tenth of the runs that reach a bucket are used in it, so the hazard falls as
/// 1 / age and the index orders as LRU does.
/// Doubles with + - * / and sqrt only, so that every machine agrees. Cost: O(features) a bucket passed.
class Odds {
 public:
  struct Settings {
    std::uint32_t rows = 1;                   // of weights: features' values all together
    std::uint32_t followed_most = 1U << 16U;  // with more, a part of them is, chosen by their keys
    double step = 0.05;
    double first_square = 4;  // what the sum of squared gradients begins with
  };
  explicit Odds(Settings settings);

  /// Begins to follow a run by the key of its first block. One that is followed by that key is forgotten.
  void begin(std::uint64_t key, const Features& features, Nanos now);
  /// It was used.
  void used(std::uint64_t key, Nanos now) { end(key, now, true); }

  using Index = std::array<double, kAges>;
  Index index(const Features& features) const;
  std::size_t memory_bytes() const;

 private:
  static constexpr std::uint32_t kAgesOfGroup = 3, kGroups = (kAges + kAgesOfGroup - 1) / kAgesOfGroup;
  struct Weight {
    double value = 0, squares = 0;
  };
  struct Episode {
    std::uint64_t key = 0;
    Nanos since;
    Features features{};
    std::uint8_t age = 0;
    std::uint32_t newer = UINT32_MAX, older = UINT32_MAX;  // in the queue of its age
  };
  bool followed(std::uint64_t key) const;
  void end(std::uint64_t key, Nanos now, bool used);
  void advance(Nanos now);
  void enqueue(std::uint32_t at, std::uint8_t age);
  void dequeue(std::uint32_t at);
  void release(std::uint32_t at);
  void thin_out();
  double odds(const Features& features, std::uint32_t age) const;
  void learn(const Features& features, std::uint32_t age, bool used);

  Settings settings_;
  std::array<Weight, kAges> base_;
  std::vector<std::array<Weight, kGroups>> rows_;
  std::vector<Episode> episodes_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, std::uint32_t> at_;  // looked up, never iterated
  std::array<std::uint32_t, kAges> newest_{}, oldest_{};
  std::uint64_t mask_ = 0;
};

}  // namespace trimtab::eviction
