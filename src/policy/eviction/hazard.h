#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "base/units.h"

namespace trimtab::eviction {

using base::Nanos;

/// Ages in buckets whose width grows by half an octave: 0 to 1 s, then up to 2.3 h; the last has no end.
constexpr std::uint32_t kAges = 28;
std::uint32_t age_bucket(Nanos age);
Nanos age_begin(std::uint32_t bucket);

/// What kind of block a block is, as far as its next use can be told from it. Fine kinds have a coarse one
/// behind them, which answers while they have seen little.
struct Kind {
  std::uint16_t fine = 0;
  std::uint8_t coarse = 0;
};

/// How soon blocks of each kind are used again, learned from the stream itself while it passes.
///
/// Every use of a block begins an episode of its kind. It ends by the next use (a hit, whether or not the
/// block was still stored), by a branch (a request went on from the block before, but not with this one), or
/// never. Episodes are counted as they cross from one bucket of age to the next, so those that have not ended
/// weigh as they should, and old counts decay. From the hazards follows the index of a kind at an age: the
/// most hits per second that keeping such a block from now on can yield, over all times at which one may give
/// up (Gittins). With too many blocks to follow, only a part of them is, chosen by their keys.
/// Source: the hit density of LHD (NSDI 2018), with Gittins' index instead of its fixed horizon. Cost: O(1)
/// amortised a use, kinds x ages every `kEvery` uses.
class Hazards {
 public:
  struct Settings {
    std::vector<std::uint8_t> coarse_of;  // of each fine kind
    std::uint32_t coarse_kinds = 1;
    std::uint32_t followed_most = 1U << 16U;
    std::uint32_t every = 2'048;  // uses between two updates of the index
    double decay = 0.97;          // of the counts, each time
    double weight = 60;           // of the coarser answer, in episodes
  };
  explicit Hazards(Settings settings);

  /// A use: it ends the key's episode, if there is one, and begins the next. True when the index changed.
  bool use(std::uint64_t key, Kind kind, Nanos now);
  /// A request went another way.
  void branch(std::uint64_t key, Kind kind, Nanos now);

  double index(std::uint16_t fine, std::uint32_t age) const { return index_[fine][age]; }
  std::size_t memory_bytes() const;

 private:
  struct Counts {
    std::array<double, kAges> hit{}, ended{}, passed{};  // episodes that ended in, or outlived, the bucket
    double seen = 0;                                     // all of them
    void add(std::array<double, kAges> Counts::*what, std::uint32_t age) {
      (this->*what)[age] += 1;
      seen += 1;
    }
    void fade(double factor);
  };
  void count(std::uint32_t at, std::array<double, kAges> Counts::*what, std::uint32_t age);
  struct Episode {
    std::uint64_t key = 0;
    Nanos since;
    std::uint16_t fine = 0;
    std::uint8_t coarse = 0, age = 0;
    std::uint32_t newer = UINT32_MAX, older = UINT32_MAX;  // in the queue of its age
  };
  bool followed(std::uint64_t key) const;
  void begin(std::uint64_t key, Kind kind, Nanos now);
  void end(std::uint64_t key, Nanos now, bool hit);
  void advance(Nanos now);
  void enqueue(std::uint32_t at, std::uint8_t age);
  void dequeue(std::uint32_t at);
  void thin_out();
  struct Rates;
  static Rates blend(const Counts& counts, const Rates& behind, double weight);
  void index_kind(std::size_t kind, const Rates& rates);
  void update();

  Settings settings_;
  std::vector<Counts> fine_, coarse_;
  Counts all_;
  std::vector<std::array<double, kAges>> index_;
  std::vector<Episode> episodes_;
  std::vector<std::uint32_t> free_;
  std::unordered_map<std::uint64_t, std::uint32_t> at_;  // looked up, never iterated
  std::array<std::uint32_t, kAges> newest_{}, oldest_{};
  std::uint64_t mask_ = 0;
  std::uint32_t uses_ = 0;
};

}  // namespace trimtab::eviction
