#include "kv_pool/pool_stats.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

namespace trimtab::kv_pool {

std::string to_json(const PoolStats& s) {
  const std::pair<std::string_view, std::uint64_t> fields[] = {
      {"memory_entries", s.memory_entries},
      {"memory_slots", s.memory_slots},
      {"file_entries", s.file_entries},
      {"file_slots", s.file_slots},
      {"block_bytes", s.block_bytes},
      {"dirty_entries", s.dirty_entries},
      {"pins", s.pins},
      {"clients", s.clients},
      {"memory_only", s.memory_only},
      {"match_requests", s.match_requests},
      {"blocks_queried", s.blocks_queried},
      {"blocks_hit", s.blocks_hit},
      {"blocks_missed", s.blocks_missed},
      {"gets_memory", s.gets_memory},
      {"gets_file", s.gets_file},
      {"gets_stale", s.gets_stale},
      {"gets_refused", s.gets_refused},
      {"corrupt", s.corrupt},
      {"puts_stored", s.puts_stored},
      {"puts_present", s.puts_present},
      {"puts_refused", s.puts_refused},
      {"puts_abandoned", s.puts_abandoned},
      {"memory_evictions", s.memory_evictions},
      {"file_evictions", s.file_evictions},
      {"file_writes", s.file_writes},
      {"file_errors", s.file_errors},
      {"recovered_entries", s.recovered_entries},
      {"log_records_dropped", s.log_records_dropped},
      {"degraded_reads", s.degraded_reads},
      {"shards_bad", s.shards_bad},
      {"shards_repaired", s.shards_repaired},
      {"targets", s.targets},
      {"targets_dead", s.targets_dead},
      {"store_reads", s.store_reads},
      {"fetch_plans", s.fetch_plans},
      {"fetch_plans_cancelled", s.fetch_plans_cancelled},
      {"fetch_plans_late", s.fetch_plans_late},
      {"fetch_plans_refused", s.fetch_plans_refused},
      {"loads_shared", s.loads_shared},
      {"loads_cancelled", s.loads_cancelled},
      {"plans_open", s.plans_open},
      {"blocks_held", s.blocks_held},
      {"ring_waiting", s.ring_waiting},
      {"answers_told", s.answers_told},
      {"answers_unknown", s.answers_unknown},
  };
  std::string json = "{";
  for (const auto& [name, value] : fields)
    json += fmt::format("{}\"{}\": {}", json.size() > 1 ? ", " : "", name, value);
  return json + "}";
}

}  // namespace trimtab::kv_pool
