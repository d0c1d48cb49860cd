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
[[gnu::always_inline]] inline void put(Lanes& into, const Lanes& value, const Lanes& mask) {
  into = (value & mask) | (into & ~mask);
}

/// The best two of every lane, in one sweep; a later rank wins a lane only if it is strictly better, so ties
/// go to the lower position. Compiled once for any processor and once for AVX2; integers, so both agree.
template <class Lanes>
[[gnu::always_inline]] inline DenseBest sweep(const DenseRanks& ranks, const DenseQuery& query) {
  constexpr std::size_t kWidth = sizeof(Lanes) / sizeof(std::int32_t);
  static_assert(DenseRanks::kLanes % kWidth == 0);
  const std::vector<std::int32_t>& keys = query.by_kv ? ranks.kv : ranks.running;
  const std::vector<std::int32_t>& ties = query.by_kv ? ranks.running : ranks.kv;
  const std::vector<std::int32_t>& rooms = query.leased ? ranks.leased_room : ranks.room;
  const Lanes none = Lanes{} + kNone;
  Lanes key1 = none, tie1 = none, at1 = none, key2 = none, tie2 = none, at2 = none, negative = {}, at = {};
  for (std::size_t lane = 0; lane < kWidth; ++lane) at[lane] = static_cast<std::int32_t>(lane);
  for (std::size_t begin = 0; begin < rooms.size();
       begin += kWidth, at += static_cast<std::int32_t>(kWidth)) {
    Lanes kv, room, count, speed, key, tie;
    load(kv, ranks.kv, begin), load(room, rooms, begin), load(count, ranks.count, begin);
    load(speed, ranks.speed_permille, begin), load(key, keys, begin), load(tie, ties, begin);
    const Lanes fits = (room >= query.tokens) & (kv <= query.kv_max) & (count < query.count_max) &
                       (speed == query.speed_permille);
    const Lanes before1 = fits & ((key < key1) | ((key == key1) & (tie < tie1)));
    const Lanes before2 = fits & ~before1 & ((key < key2) | ((key == key2) & (tie < tie2)));
    put(key2, key1, before1), put(tie2, tie1, before1), put(at2, at1, before1);
    put(key2, key, before2), put(tie2, tie, before2), put(at2, at, before2);
    put(key1, key, before1), put(tie1, tie, before1), put(at1, at, before1);
    negative += fits;
  }
  using Candidate = std::tuple<std::int32_t, std::int32_t, std::int32_t>;
  Candidate first{kNone, kNone, kNone}, second = first;
  DenseBest best;
  for (std::size_t lane = 0; lane < kWidth; ++lane) {
    best.fitting -= negative[lane];
    for (const Candidate& candidate :
         {Candidate{key1[lane], tie1[lane], at1[lane]}, Candidate{key2[lane], tie2[lane], at2[lane]}}) {
      if (candidate < first) {
        second = first;
        first = candidate;
      } else if (candidate < second) {
        second = candidate;
      }
    }
  }
  if (std::get<2>(first) != kNone) best.first = std::get<2>(first);
  if (std::get<2>(second) != kNone) best.second = std::get<2>(second);
  return best;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) DenseBest sweep_avx2(const DenseRanks& ranks, const DenseQuery& query) {
  return sweep<Lanes8>(ranks, query);
}
const bool kHasAvx2 = __builtin_cpu_supports("avx2") != 0;
#endif

}  // namespace

DenseBest scan(const DenseRanks& ranks, const DenseQuery& query) {
#if defined(__x86_64__)
  if (kHasAvx2) return sweep_avx2(ranks, query);
#endif
  return sweep<Lanes4>(ranks, query);
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
