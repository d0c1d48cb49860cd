#pragma once

#include <cstdint>
#include <vector>

namespace trimtab::policy {

/// The numbers of the ranks, one array each, narrow, dense and in the order of the ranks' ids, so that a
/// question over thousands of ranks is a few sweeps of eight lanes. Padded with ranks that never fit.
struct DenseRanks {
  static constexpr std::size_t kLanes = 16;

  std::vector<std::int32_t> running, kv;  // expected: in 1/4,096 of a request; in tokens
  std::vector<std::int32_t> room;         // longest request that fits; negative: none, or not open
  std::vector<std::int32_t> leased_room;  // the same, negative where it is not leased
  std::vector<std::int32_t> count;        // running now
  std::vector<std::int32_t> speed_permille;

  void insert(std::size_t position);
  void erase(std::size_t position);
  std::size_t size() const { return size_; }

 private:
  void pad();
  std::size_t size_ = 0;
};

/// Ranks of one speed with room for `tokens`, at most `kv_max` of expected KV and fewer than `count_max`
/// running.
struct DenseQuery {
  std::int32_t speed_permille = 1000;
  std::int32_t tokens = 0, kv_max = 0, count_max = 0;
  bool by_kv = false;   // least (KV, running) instead of least (running, KV); then the lower position
  bool leased = false;  // only leased ranks
  bool plain = false;   // all ranks have this speed and any count will do: fewer numbers are read
};
struct DenseBest {
  std::int32_t first = -1, second = -1;  // positions; -1: none
  std::int64_t fitting = 0;
};
DenseBest scan(const DenseRanks& ranks, const DenseQuery& query);
/// The most expected KV of the ranks of a speed; 0 without any.
std::int32_t peak_kv(const DenseRanks& ranks, std::int32_t speed_permille);

}  // namespace trimtab::policy
