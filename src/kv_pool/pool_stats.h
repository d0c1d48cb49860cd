#pragma once

#include <cstdint>
#include <string>

namespace trimtab::kv_pool {

/// The loader's counters. Blocks of a prompt are counted once, by its counted `match`: hit + missed =
/// queried. What follows (`get`) moves data and has counters of its own, so that no request shows up twice.
struct PoolStats {
  // Gauges.
  std::uint64_t memory_entries = 0, memory_slots = 0;
  std::uint64_t file_entries = 0, file_slots = 0;
  std::uint64_t block_bytes = 0;
  std::uint64_t dirty_entries = 0;  // in memory, not yet durable
  std::uint64_t pins = 0;
  std::uint64_t clients = 0;
  std::uint64_t memory_only = 0;  // 1: no file tier, or its writes failed and it takes no more
  // Counters since start.
  std::uint64_t match_requests = 0;
  std::uint64_t blocks_queried = 0, blocks_hit = 0, blocks_missed = 0;
  std::uint64_t gets_memory = 0, gets_file = 0;  // served; by the tier the block was found in
  std::uint64_t gets_stale = 0;                  // asked for, no longer there: the caller recomputes
  std::uint64_t gets_refused = 0;                // present, but no memory slot could be freed to read it into
  std::uint64_t corrupt = 0;                     // content did not match its checksum; withdrawn
  std::uint64_t puts_stored = 0, puts_present = 0, puts_refused = 0, puts_abandoned = 0;
  std::uint64_t memory_evictions = 0, file_evictions = 0;
  std::uint64_t file_writes = 0, file_errors = 0;
  std::uint64_t recovered_entries = 0, log_records_dropped = 0;  // at start
  // Of the store: reads that computed a shard; shards found bad, and written again.
  std::uint64_t degraded_reads = 0, shards_bad = 0, shards_repaired = 0;
  std::uint64_t targets = 0, targets_dead = 0;  // gauges
  std::uint64_t store_reads = 0;                // of blocks
  // Of fetch plans. `loads_shared`: blocks that were being loaded for another already.
  std::uint64_t fetch_plans = 0, fetch_plans_cancelled = 0, fetch_plans_late = 0, fetch_plans_refused = 0;
  std::uint64_t loads_shared = 0, loads_cancelled = 0;
  std::uint64_t plans_open = 0, blocks_held = 0, ring_waiting = 0;  // gauges
  // Ends of answers: of requests that are known, and of others (told twice, too late, or to another loader).
  std::uint64_t answers_told = 0, answers_unknown = 0;

  template <class A>
  void visit(A& a) {
    a(memory_entries, memory_slots, file_entries, file_slots, block_bytes, dirty_entries, pins, clients,
      memory_only, match_requests, blocks_queried, blocks_hit, blocks_missed, gets_memory, gets_file,
      gets_stale, gets_refused, corrupt, puts_stored, puts_present, puts_refused, puts_abandoned,
      memory_evictions, file_evictions, file_writes, file_errors, recovered_entries, log_records_dropped,
      degraded_reads, shards_bad, shards_repaired, targets, targets_dead, store_reads, fetch_plans,
      fetch_plans_cancelled, fetch_plans_late, fetch_plans_refused, loads_shared, loads_cancelled, plans_open,
      blocks_held, ring_waiting, answers_told, answers_unknown);
  }
};

/// One JSON object, a member per field.
std::string to_json(const PoolStats& stats);

}  // namespace trimtab::kv_pool
