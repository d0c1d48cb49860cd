#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "base/units.h"

namespace trimtab::model {

/// cost(q, c) = fixed + token * q + pair * q * (c + q/2), the seeds' quadratic. Picoseconds keep it exact in
/// integers: ns = fixed_ns + floor((2 * token_ps * q + pair_ps * q * (2c + q)) / 2000).
struct QuadraticCost {
  std::int64_t fixed_ns = 0;  // once a step, not per request
  std::int64_t token_ps = 0;  // linear layers and MoE, per token computed
  std::int64_t pair_ps = 0;   // attention, per query-key pair
};

/// One sum of the exact V4.1 form: `flops` per visible item of a query at position t, where a query sees
/// min(ceil_or_floor(t / ratio), cap) items (cap 0 = uncapped). Summed over the queries of a chunk (floor
/// sums).
struct AttentionTerm {
  std::string name;
  std::int64_t flops = 0;
  std::int64_t ratio = 1;
  std::int64_t cap = 0;
  bool round_up = false;
  bool windowed = false;  // compact mode, consumer terms: keys before the kept rows are not there to be seen
};

/// The exact FLOPs form of DeepSeek-V4.1 (public engine facts, section 3), in FP8-equivalent FLOPs, over an
/// assumed rate.
struct FlopsCost {
  std::int64_t fixed_ns = 0;
  double flops_per_second = 0;  // effective rate: an assumption until it is calibrated
  bool compact = false;         // YOCO truncation: only the prompt's last `keep` rows run the consumer layers
  std::int64_t keep = 0;
  std::int64_t attention_row = 0;           // q/o projections etc. per row (mode off: all layers)
  std::int64_t attention_row_producer = 0;  // compact: per row, producer layers
  std::int64_t attention_row_consumer = 0;  // compact: per consumer row
  std::int64_t other_row_producer = 0;      // MoE, router, hyper-connections, engram
  std::int64_t other_row_consumer = 0;
  std::int64_t other_moved = 0;  // compact moves this much per row across the producer/consumer boundary
  std::int64_t logits_row = 0;   // one row per prefill chunk
  std::vector<AttentionTerm> producer_terms;  // summed over all rows
  std::vector<AttentionTerm> consumer_terms;  // summed over consumer rows (mode off: over all rows)
  std::int64_t key_projection_ratio2 = 0;     // per completed group of 2 tokens
  std::int64_t key_projection_ratio1 = 0;     // per token
};

using CostSpec = std::variant<QuadraticCost, FlopsCost>;

/// Time of one decode step of a group whose ranks wait for one another in every layer (system facts, section
/// 7):
///   fixed + attention x max over ranks of KV tokens + dispatch x max over ranks of requests
///         + moe x expert balance x mean of requests,
/// with requests padded to the next captured graph size.
struct DecodeStepCost {
  base::Nanos fixed{15'000'000};
  double attention_ns_per_kv_token = 21.0;
  double dispatch_ns_per_request = 70'000.0;
  double moe_ns_per_request = 70'000.0;
  std::vector<std::int64_t> graph_sizes;  // ascending; empty: no padding
};

/// What a step's budget bounds.
enum class QuotaScope : std::uint8_t { kAttention, kWholeStep };

/// Bytes of one request's KV.
struct KvLayout {
  base::Bytes block_bytes;  // one block of 128 tokens, all layers
  std::vector<base::Bytes>
      layer_bytes;                 // per KV-owning layer, in storage order; sums to block_bytes less padding
  std::int64_t window_tokens = 0;  // sliding window; 0 = the model has none
  std::int64_t window_layers = 0;
  std::int64_t ring_slots = 0;  // 134 = window + rejected drafts
  base::Bytes state_bytes;      // one state slot
};

/// How an image becomes tokens and patches.
struct VisionSpec {
  enum class Formula : std::uint8_t { kNone, kGrid, kDeepSeekV41 } formula = Formula::kNone;
  std::int64_t patch = 16;  // pixels; patches = ceil(w / patch) * ceil(h / patch)
  std::int64_t downsample =
      1;  // kGrid: tokens = ceil(pw / downsample) * ceil(ph / downsample), at most max_tokens
  std::int64_t max_tokens = 1024;
  std::int64_t min_pixels = 0;
  std::int64_t pixels_max = 0;  // width * height beyond this is refused
  std::int32_t image_token = -1;
};

/// Everything the decisions need to know of a model on a kind of hardware. Loaded from `profiles/*.toml`.
struct Profile {
  std::string name;
  std::string source;  // where the numbers come from; assumptions are marked there
  base::TokenCount context_limit;
  CostSpec cost;
  QuotaScope quota_scope = QuotaScope::kAttention;
  DecodeStepCost decode_step;
  KvLayout kv;
  VisionSpec vision;
  std::int64_t experts = 0, experts_per_token = 0, moe_layers = 0;
};

}  // namespace trimtab::model
