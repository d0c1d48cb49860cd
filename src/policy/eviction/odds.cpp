#include "policy/eviction/odds.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/hash.h"

namespace trimtab::eviction {
namespace {

constexpr std::uint32_t kNone = UINT32_MAX;

/// 1 s x 2^((b - 1) / 2): square roots of two by a table of integers, so that every machine agrees.
constexpr std::array<std::int64_t, kAges + 1> kBegins = [] {
  std::array<std::int64_t, kAges + 1> begins{};
  for (std::uint32_t b = 1; b <= kAges; ++b) {
    const std::int64_t octave = std::int64_t{1'000'000'000} << ((b - 1) / 2);
    begins[b] = (b - 1) % 2 == 0 ? octave : octave / 10'000 * 14'142;
  }
  return begins;
}();

/// 1 / (1 + e^-x), by halving: e^x = (e^(x / 256))^256, whose Taylor series needs five terms. Libraries
/// differ in the last bit of theirs.
double logistic(double x) {
  const double small = std::clamp(x, -30.0, 30.0) / 256;
  double power = 1 + small * (1 + small / 2 * (1 + small / 3 * (1 + small / 4 * (1 + small / 5))));
  for (int i = 0; i < 8; ++i) power *= power;
  return power / (1 + power);
}

constexpr double kFirstScore = -2.1972245773362196;  // of odds of a tenth

}  // namespace

Nanos age_begin(std::uint32_t bucket) { return Nanos{kBegins[bucket]}; }

std::uint32_t age_bucket(Nanos age) {
  std::uint32_t low = 0, high = kAges;  // kBegins[low] <= age < kBegins[high], the last one endless
  while (high - low > 1) {
    const std::uint32_t middle = (low + high) / 2;
    (kBegins[middle] <= age.value ? low : high) = middle;
  }
  return low;
}

Odds::Odds(Settings settings) : settings_(settings), rows_(settings_.rows) {
  newest_.fill(kNone);
  oldest_.fill(kNone);
  for (Weight& weight : base_) weight = {kFirstScore, settings_.first_square};
  for (auto& row : rows_) row.fill({0, settings_.first_square});
}

bool Odds::followed(std::uint64_t key) const { return (base::mix(0x4a5d, key) & mask_) == 0; }

void Odds::enqueue(std::uint32_t at, std::uint8_t age) {
  Episode& episode = episodes_[at];
  episode.age = age;
  episode.newer = kNone;
  episode.older = newest_[age];
  (newest_[age] == kNone ? oldest_[age] : episodes_[newest_[age]].newer) = at;
  newest_[age] = at;
}

void Odds::dequeue(std::uint32_t at) {
  const Episode& episode = episodes_[at];
  (episode.newer == kNone ? newest_[episode.age] : episodes_[episode.newer].older) = episode.older;
  (episode.older == kNone ? oldest_[episode.age] : episodes_[episode.older].newer) = episode.newer;
}

void Odds::release(std::uint32_t at) {
  at_.erase(episodes_[at].key);
  free_.push_back(at);
}

/// Who has grown out of a bucket has outlived it. Buckets from the oldest on, so that nobody moves twice.
void Odds::advance(Nanos now) {
  for (std::uint32_t age = kAges; age-- > 0;) {
    while (oldest_[age] != kNone) {
      const std::uint32_t at = oldest_[age];
      if ((now - episodes_[at].since).value < kBegins[age + 1]) break;
      dequeue(at);
      learn(episodes_[at].features, age, false);
      if (age + 1 < kAges) {
        enqueue(at, static_cast<std::uint8_t>(age + 1));
      } else {
        release(at);
      }
    }
  }
}

void Odds::begin(std::uint64_t key, const Features& features, Nanos now) {
  advance(now);
  end(key, now, false);
  if (at_.size() >= settings_.followed_most) thin_out();
  if (!followed(key)) return;
  auto at = static_cast<std::uint32_t>(episodes_.size());
  if (free_.empty()) {
    episodes_.emplace_back();
  } else {
    at = free_.back();
    free_.pop_back();
  }
  episodes_[at] = {key, now, features, 0, kNone, kNone};
  at_.emplace(key, at);
  enqueue(at, 0);
}

void Odds::end(std::uint64_t key, Nanos now, bool used) {
  const auto found = at_.find(key);
  if (found == at_.end()) return;
  const std::uint32_t at = found->second;
  Episode& episode = episodes_[at];
  const std::uint32_t age = age_bucket(now - episode.since);
  dequeue(at);
  for (std::uint32_t passed = episode.age; passed < age; ++passed) learn(episode.features, passed, false);
  if (used) learn(episode.features, std::max<std::uint32_t>(age, episode.age), true);
  release(at);
}

/// Half of the keys are followed from now on.
void Odds::thin_out() {
  mask_ = mask_ * 2 + 1;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    for (std::uint32_t at = oldest_[age]; at != kNone;) {
      const std::uint32_t next = episodes_[at].newer;
      if (!followed(episodes_[at].key)) {
        dequeue(at);
        release(at);
      }
      at = next;
    }
  }
}

double Odds::odds(const Features& features, std::uint32_t age) const {
  double score = base_[age].value;
  for (const std::uint16_t row : features) score += rows_[row][age / kAgesOfGroup].value;
  return logistic(score);
}

void Odds::learn(const Features& features, std::uint32_t age, bool used) {
  const double gradient = odds(features, age) - (used ? 1.0 : 0.0);
  const auto move = [&](Weight& weight) {
    weight.squares += gradient * gradient;
    weight.value -= settings_.step * gradient / std::sqrt(weight.squares);
  };
  move(base_[age]);
  for (const std::uint16_t row : features) move(rows_[row][age / kAgesOfGroup]);
}

Odds::Index Odds::index(const Features& features) const {
  std::array<double, kAges> hazard{};
  for (std::uint32_t age = 0; age < kAges; ++age) hazard[age] = odds(features, age);
  Index out{};
  for (std::uint32_t from = 0; from < kAges; ++from) {
    double left = 1, hits = 0, seconds = 0, best = 0;
    for (std::uint32_t age = from; age < kAges; ++age) {
      hits += left * hazard[age];
      seconds += left * (1 - hazard[age] / 2) * static_cast<double>(kBegins[age + 1] - kBegins[age]) * 1e-9;
      left *= 1 - hazard[age];
      best = std::max(best, hits / seconds);
    }
    out[from] = best;
  }
  return out;
}

std::size_t Odds::memory_bytes() const {
  return rows_.size() * sizeof(rows_[0]) + sizeof(base_) + episodes_.capacity() * sizeof(Episode) +
         free_.capacity() * 4 + at_.size() * 40;
}

}  // namespace trimtab::eviction
