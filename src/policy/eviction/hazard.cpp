#include "policy/eviction/hazard.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
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

Hazards::Hazards(Settings settings)
    : settings_(std::move(settings)),
      fine_(settings_.coarse_of.size()),
      coarse_(settings_.coarse_kinds),
      index_(settings_.coarse_of.size()) {
  newest_.fill(kNone);
  oldest_.fill(kNone);
  update();
}

bool Hazards::followed(std::uint64_t key) const { return (base::mix(0x4a5d, key) & mask_) == 0; }

void Hazards::enqueue(std::uint32_t at, std::uint8_t age) {
  Episode& episode = episodes_[at];
  episode.age = age;
  episode.newer = kNone;
  episode.older = newest_[age];
  (newest_[age] == kNone ? oldest_[age] : episodes_[newest_[age]].newer) = at;
  newest_[age] = at;
}

void Hazards::dequeue(std::uint32_t at) {
  const Episode& episode = episodes_[at];
  (episode.newer == kNone ? newest_[episode.age] : episodes_[episode.newer].older) = episode.older;
  (episode.older == kNone ? oldest_[episode.age] : episodes_[episode.older].newer) = episode.newer;
}

/// Who has grown out of a bucket has outlived it. Buckets from the oldest on, so that nobody moves twice.
void Hazards::advance(Nanos now) {
  for (std::uint32_t age = kAges; age-- > 0;) {
    while (oldest_[age] != kNone) {
      const std::uint32_t at = oldest_[age];
      if ((now - episodes_[at].since).value < kBegins[age + 1]) break;
      dequeue(at);
      count(at, &Counts::passed, age);
      if (age + 1 < kAges) {
        enqueue(at, static_cast<std::uint8_t>(age + 1));
      } else {
        at_.erase(episodes_[at].key);
        free_.push_back(at);
      }
    }
  }
}

void Hazards::begin(std::uint64_t key, Kind kind, Nanos now) {
  if (at_.size() >= settings_.followed_most) thin_out();
  if (!followed(key)) return;
  std::uint32_t at = static_cast<std::uint32_t>(episodes_.size());
  if (free_.empty()) {
    episodes_.emplace_back();
  } else {
    at = free_.back();
    free_.pop_back();
  }
  episodes_[at] = {key, now, kind.fine, kind.coarse, 0, kNone, kNone};
  at_.emplace(key, at);
  enqueue(at, 0);
}

void Hazards::end(std::uint64_t key, Nanos now, bool hit) {
  const auto found = at_.find(key);
  if (found == at_.end()) return;
  const Episode& episode = episodes_[found->second];
  const std::uint32_t age = std::max<std::uint32_t>(age_bucket(now - episode.since), episode.age);
  count(found->second, hit ? &Counts::hit : &Counts::ended, age);
  dequeue(found->second);
  free_.push_back(found->second);
  at_.erase(found);
}

bool Hazards::use(std::uint64_t key, Kind kind, Nanos now) {
  if (followed(key)) {
    advance(now);
    end(key, now, true);
    begin(key, kind, now);
  }
  if (++uses_ < settings_.every) return false;
  uses_ = 0;
  update();
  return true;
}

void Hazards::branch(std::uint64_t key, Kind kind, Nanos now) {
  if (!followed(key)) return;
  advance(now);
  end(key, now, false);
  begin(key, kind, now);
}

/// Half of the keys are followed from now on.
void Hazards::thin_out() {
  mask_ = mask_ * 2 + 1;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    for (std::uint32_t at = oldest_[age]; at != kNone;) {
      const std::uint32_t next = episodes_[at].newer;
      if (!followed(episodes_[at].key)) {
        dequeue(at);
        at_.erase(episodes_[at].key);
        free_.push_back(at);
      }
      at = next;
    }
  }
}

struct Hazards::Rates {
  std::array<double, kAges> hit, ended;  // of those who reach the bucket
};

Hazards::Rates Hazards::blend(const Counts& counts, const Rates& behind, double weight) {
  Rates rates;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    const double seen = counts.hit[age] + counts.ended[age] + counts.passed[age] + weight;
    rates.hit[age] = (counts.hit[age] + weight * behind.hit[age]) / seen;
    rates.ended[age] = (counts.ended[age] + weight * behind.ended[age]) / seen;
  }
  return rates;
}

/// The best ratio of expected hits to expected seconds over all times to give up. One that cannot end within
/// the last bucket counts as kept to its end.
void Hazards::index_kind(std::size_t kind, const Rates& rates) {
  for (std::uint32_t from = 0; from < kAges; ++from) {
    double left = 1, hits = 0, seconds = 0, best = 0;
    for (std::uint32_t age = from; age < kAges; ++age) {
      const double gone = std::min(rates.hit[age] + rates.ended[age], 1.0);
      hits += left * rates.hit[age];
      seconds += left * (1 - gone / 2) * static_cast<double>(kBegins[age + 1] - kBegins[age]) * 1e-9;
      left *= 1 - gone;
      best = std::max(best, hits / seconds);
    }
    index_[kind][from] = best;
  }
}

void Hazards::Counts::fade(double factor) {
  if (seen < 1e-3) return;
  seen *= factor;
  for (std::uint32_t age = 0; age < kAges; ++age) {
    hit[age] *= factor;
    ended[age] *= factor;
    passed[age] *= factor;
  }
}

/// Before anything was seen: a tenth of those who reach a bucket are hit in it, so the hazard falls as 1 /
/// age and the index orders as LRU does.
void Hazards::update() {
  Rates prior;
  prior.hit.fill(0.1);
  prior.ended.fill(0);
  const Rates all = blend(all_, prior, 1);
  std::vector<Rates> coarse;
  for (const Counts& counts : coarse_) coarse.push_back(blend(counts, all, settings_.weight));
  // Of kinds that were not seen the coarse one speaks: it is computed once.
  constexpr double kSeen = 0.5;
  std::vector<std::size_t> unseen(coarse_.size(), fine_.size());
  for (std::size_t kind = 0; kind < fine_.size(); ++kind) {
    const std::uint8_t behind = settings_.coarse_of[kind];
    if (fine_[kind].seen < kSeen && unseen[behind] < kind) {
      index_[kind] = index_[unseen[behind]];
      continue;
    }
    if (fine_[kind].seen < kSeen) unseen[behind] = kind;
    index_kind(kind, fine_[kind].seen < kSeen ? coarse[behind]
                                              : blend(fine_[kind], coarse[behind], settings_.weight));
  }
  for (Counts& counts : fine_) counts.fade(settings_.decay);
  for (Counts& counts : coarse_) counts.fade(settings_.decay);
  all_.fade(settings_.decay);
}

void Hazards::count(std::uint32_t at, std::array<double, kAges> Counts::*what, std::uint32_t age) {
  fine_[episodes_[at].fine].add(what, age);
  coarse_[episodes_[at].coarse].add(what, age);
  all_.add(what, age);
}

std::size_t Hazards::memory_bytes() const {
  return (fine_.size() + coarse_.size() + 1) * sizeof(Counts) + index_.size() * kAges * sizeof(double) +
         episodes_.capacity() * sizeof(Episode) + free_.capacity() * 4 + at_.size() * 40;
}

}  // namespace trimtab::eviction
