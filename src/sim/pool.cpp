#include "sim/pool.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "model/ids.h"
#include "sim/host.h"

namespace trimtab::sim {

base::Result<Pool> Pool::make(const model::Scenario& scenario, std::int64_t block_tokens) {
  Pool pool(scenario, block_tokens);
  const std::int64_t nodes = std::max<std::int64_t>(scenario.storage.nodes, 1);
  std::int64_t capacity = 0;
  if (block_tokens > 0 && scenario.pool.capacity_blocks > 0) {
    const std::int64_t whole = scenario.pool.capacity_blocks * model::kBlockTokens / block_tokens;
    capacity = std::max<std::int64_t>(whole / nodes, 1);
  }
  for (std::int64_t node = 0; node < nodes; ++node) {
    auto eviction = make_eviction(scenario.storage.eviction, capacity, pool.cost_.get(), block_tokens);
    if (!eviction) return tl::unexpected<base::Error>(eviction.error());
    pool.caches_.emplace_back(capacity, std::move(*eviction));
  }
  return pool;
}

Pool::Pool(const model::Scenario& scenario, std::int64_t block_tokens)
    : block_tokens_(block_tokens),
      cost_(std::make_unique<policy::CostModel>(scenario.profile)),
      bytes_per_token_(kv_bytes_per_token(scenario)),
      node_bytes_per_s_(scenario.storage.read_bytes_per_s),
      engine_bytes_per_s_(scenario.pool.read_bytes_per_s),
      owners_(std::max<std::int64_t>(static_cast<std::int64_t>(scenario.profile.kv.layer_bytes.size()), 1)),
      layerwise_(scenario.pool.layerwise),
      down_(scenario.storage.nodes),
      wiped_(scenario.storage.nodes, Nanos{-1}),
      read_free_(scenario.storage.nodes),
      engine_free_(scenario.cluster.prefill.engines),
      node_bytes_(scenario.storage.nodes),
      reading_(scenario.storage.nodes),
      node_outcomes_(scenario.storage.nodes) {}

std::uint32_t Pool::node_of(std::uint64_t id) const {
  if (nodes() < 2) return 0;
  return static_cast<std::uint32_t>(base::mix(0x9001, id) % nodes());
}

/// Ids of the trace are far below: repeats of it use the upper 16 bits up to 65,535.
std::uint64_t Pool::own_id(const Prefix& prefix, std::int64_t block) const {
  return base::mix(prefix.owner, static_cast<std::uint64_t>(block));
}

Pool::Matched Pool::match(std::span<const model::BlockRun> runs, Nanos now) {
  if (nodes() < 1) return {caches_[0].match(runs, now) * block_tokens_, 0};
  std::int64_t reachable = 0, stored = 0;
  bool cut = false;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      const std::uint32_t node = node_of(run.first + i);
      StorageNode& outcome = node_outcomes_[node];
      ++outcome.asked;
      if (!caches_[node].use(run.first + i, now))
        return {reachable * block_tokens_, (stored - reachable) * block_tokens_};
      ++stored;
      cut = cut || down_[node] > 0;
      if (cut) continue;
      ++reachable;
      ++outcome.found;
    }
  }
  return {reachable * block_tokens_, (stored - reachable) * block_tokens_};
}

void Pool::store(std::span<const model::BlockRun> runs, std::int64_t blocks, Nanos now) {
  if (nodes() < 1) return caches_[0].store(runs, blocks, now);
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count; ++i) {
      if (blocks-- <= 0) return;
      const std::uint32_t node = node_of(run.first + i);
      if (down_[node] == 0) caches_[node].put(run.first + i, now);
    }
  }
}

void Pool::answered(std::span<const model::BlockRun> runs, std::int64_t blocks, const Told& told,
                    std::int64_t tokens, Nanos now) {
  if (!caches_[0].bounded()) return;
  if (nodes() < 1) {
    caches_[0].answered(runs, std::min(blocks, told.matched_blocks), told.matched, tokens, now);
    if (blocks > told.matched_blocks) caches_[0].answered(runs, blocks, told.stored, tokens, now);
    return;
  }
  std::int64_t at = 0;
  for (const model::BlockRun& run : runs) {
    for (std::uint32_t i = 0; i < run.count && at < blocks; ++i, ++at) {
      PrefixCache& cache = caches_[node_of(run.first + i)];
      cache.answered(run.first + i, at < told.matched_blocks ? told.matched : told.stored, tokens, now);
    }
  }
}

/// Calls `visit(node, tokens, id, own)` for each block of the leading `tokens`, until it returns false.
template <class Visit>
void Pool::each_block(const Prefix& prefix, std::int64_t tokens, const Visit& visit) const {
  std::int64_t at = 0;
  for (const model::BlockRun& run : prefix.runs) {
    for (std::uint32_t i = 0; i < run.count && at + block_tokens_ <= tokens; ++i) {
      if (!visit(node_of(run.first + i), block_tokens_, run.first + i, false)) return;
      at += block_tokens_;
    }
  }
  for (std::int64_t block = at / model::kBlockTokens; at < tokens; ++block) {
    const std::int64_t part = std::min(tokens - at, model::kBlockTokens);
    const std::uint64_t id = own_id(prefix, block);
    if (!visit(node_of(id), part, id, true)) return;
    at += part;
  }
}

std::int64_t Pool::readable(const Prefix& prefix, std::int64_t tokens) const {
  if (nodes() < 1) return tokens;
  std::int64_t whole = 0;
  each_block(prefix, tokens, [&](std::uint32_t node, std::int64_t part, std::uint64_t id, bool own) {
    if (down_[node] > 0) return false;
    if (own ? wiped_[node] >= prefix.since : !caches_[node].contains(id)) return false;
    whole += part;
    return true;
  });
  return whole;
}

Pool::Read Pool::read(std::uint32_t engine, const Prefix& prefix, std::int64_t tokens, Nanos now) {
  Read read{now, now};
  const auto queue = [&](Nanos& free, double bytes, double bytes_per_s) {
    const Nanos begins = std::max(free, now);
    const Nanos span{static_cast<std::int64_t>(bytes / bytes_per_s * 1e9)};
    free = begins + span;
    read.first = std::max(read.first, begins + (layerwise_ ? Nanos{span.value / owners_} : span));
    read.all = std::max(read.all, free);
  };
  queue(engine_free_[engine], static_cast<double>(tokens) * bytes_per_token_, engine_bytes_per_s_);
  if (nodes() < 1) return read;
  std::ranges::fill(reading_, 0.0);
  each_block(prefix, tokens, [&](std::uint32_t node, std::int64_t part, std::uint64_t /*id*/, bool /*own*/) {
    reading_[node] += static_cast<double>(part) * bytes_per_token_;
    return true;
  });
  for (std::uint32_t node = 0; node < nodes(); ++node) {
    if (reading_[node] <= 0) continue;
    queue(read_free_[node], reading_[node], node_bytes_per_s_);
    node_bytes_[node] += reading_[node];
    ++node_outcomes_[node].reads;
    node_outcomes_[node].delay.add(read_free_[node] - now);
  }
  return read;
}

void Pool::lose(std::uint32_t node, Nanos now) {
  ++down_[node];
  ++epoch_;
  read_free_[node] = now;  // what was being read has failed
}

void Pool::restore(std::uint32_t node, bool empty, Nanos now) {
  --down_[node];
  if (!empty) return;
  ++epoch_;
  wiped_[node] = now;
  caches_[node].clear();
}

std::int64_t Pool::evicted() const {
  std::int64_t all = 0;
  for (const PrefixCache& cache : caches_) all += cache.evicted();
  return all;
}

}  // namespace trimtab::sim
