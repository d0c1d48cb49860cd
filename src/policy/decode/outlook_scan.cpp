#include "policy/decode/outlook_scan.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <tuple>

namespace trimtab::policy {
namespace {

constexpr std::int32_t kNone = std::numeric_limits<std::int32_t>::max();

using Lanes4 = std::int32_t __attribute__((vector_size(16)));
using Lanes8 = std::int32_t __attribute__((vector_size(32)));

template <class Lanes>
[[gnu::always_inline]] inline void load(Lanes& into, const std::vector<std::int32_t>& from, std::size_t at) {
  std::memcpy(&into, from.data() + at, sizeof into);
}
template <class Lanes>
[[gnu::always_inline]] inline bool any(const Lanes& mask) {
  std::uint64_t words[sizeof(Lanes) / 8], all = 0;
  std::memcpy(words, &mask, sizeof words);
  for (const std::uint64_t word : words) all |= word;
  return all != 0;
}

using Candidate = std::tuple<std::int32_t, std::int32_t, std::int32_t>;  // key, tie, position

/// One sweep: lanes tell whether any of sixteen ranks could be among the best two so far, which is rare, and
/// only then they are looked at one by one. A later rank replaces an equal one never, so ties go to the lower
/// position. Compiled once for any processor and once for AVX2; integers, so both agree.
template <class Lanes, bool kPlain>
[[gnu::always_inline]] inline DenseBest sweep(const DenseRanks& ranks, const DenseQuery& query) {
  constexpr std::size_t kWidth = sizeof(Lanes) / sizeof(std::int32_t), kParts = DenseRanks::kLanes / kWidth;
  const std::vector<std::int32_t>& keys = query.by_kv ? ranks.kv : ranks.running;
  const std::vector<std::int32_t>& ties = query.by_kv ? ranks.running : ranks.kv;
  const std::vector<std::int32_t>& rooms = query.leased ? ranks.leased_room : ranks.room;
  Candidate first{kNone, kNone, kNone}, second = first;
  Lanes negative = {}, bar = Lanes{} + kNone, tie_bar = bar;
  for (std::size_t begin = 0; begin < rooms.size(); begin += DenseRanks::kLanes) {
    Lanes maybe[kParts], some = {};
    for (std::size_t part = 0; part < kParts; ++part) {
      const std::size_t at = begin + part * kWidth;
      Lanes kv, room, key, tie;
      load(kv, ranks.kv, at), load(room, rooms, at), load(key, keys, at), load(tie, ties, at);
      Lanes fits = (room >= query.tokens) & (kv <= query.kv_max);
      if constexpr (!kPlain) {
        Lanes count, speed;
        load(count, ranks.count, at), load(speed, ranks.speed_permille, at);
        fits &= (count < query.count_max) & (speed == query.speed_permille);
      }
      negative += fits;
      maybe[part] = fits & ((key < bar) | ((key == bar) & (tie < tie_bar)));
      some |= maybe[part];
    }
    if (!any(some)) continue;
    for (std::size_t lane = 0; lane < DenseRanks::kLanes; ++lane) {
      if (maybe[lane / kWidth][lane % kWidth] == 0) continue;
      const std::size_t at = begin + lane;
      const Candidate candidate{keys[at], ties[at], static_cast<std::int32_t>(at)};
      if (candidate < first) {
        second = first;
        first = candidate;
      } else if (candidate < second) {
        second = candidate;
      }
    }
    bar = Lanes{} + std::get<0>(second);
    tie_bar = Lanes{} + std::get<1>(second);
  }
  DenseBest best;
  for (std::size_t lane = 0; lane < kWidth; ++lane) best.fitting -= negative[lane];
  if (std::get<2>(first) != kNone) best.first = std::get<2>(first);
  if (std::get<2>(second) != kNone) best.second = std::get<2>(second);
  return best;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) DenseBest sweep_avx2(const DenseRanks& ranks, const DenseQuery& query) {
  return query.plain ? sweep<Lanes8, true>(ranks, query) : sweep<Lanes8, false>(ranks, query);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

DenseBest scan(const DenseRanks& ranks, const DenseQuery& query) {
#if defined(__x86_64__)
  if (kHasAvx2) return sweep_avx2(ranks, query);
#endif
  return query.plain ? sweep<Lanes4, true>(ranks, query) : sweep<Lanes4, false>(ranks, query);
}

std::int32_t peak_kv(const DenseRanks& ranks, std::int32_t speed_permille) {
  std::int32_t peak = 0;
  for (std::size_t i = 0; i < ranks.kv.size(); ++i)
    peak = std::max(peak, ranks.speed_permille[i] == speed_permille ? ranks.kv[i] : 0);
  return peak;
}

void DenseRanks::pad() {
  const std::size_t padded = (size_ + kLanes - 1) / kLanes * kLanes;
  for (auto* values : {&running, &kv, &count, &speed_permille}) values->resize(padded, 0);
  for (auto* rooms : {&room, &leased_room}) rooms->resize(padded, -1);
  for (std::size_t i = size_; i < padded; ++i) {
    running[i] = kv[i] = count[i] = speed_permille[i] = 0;
    room[i] = leased_room[i] = -1;
  }
}

void DenseRanks::insert(std::size_t position) {
  const auto at = static_cast<std::ptrdiff_t>(position);
  for (auto* values : {&running, &kv, &count, &speed_permille}) values->insert(values->begin() + at, 0);
  for (auto* rooms : {&room, &leased_room}) rooms->insert(rooms->begin() + at, -1);
  ++size_;
  pad();
}

void DenseRanks::erase(std::size_t position) {
  const auto at = static_cast<std::ptrdiff_t>(position);
  for (auto* values : {&running, &kv, &room, &leased_room, &count, &speed_permille})
    values->erase(values->begin() + at);
  --size_;
  pad();
}

}  // namespace trimtab::policy
