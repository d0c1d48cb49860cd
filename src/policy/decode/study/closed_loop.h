#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "policy/decode/types.h"

/// The request study's decode model: a decode group at full concurrency, where every request that ends is
/// replaced by the next one of an endless queue. It judges a policy by the steps that its choices lead to,
/// from a truth of its own that the policy never sees.
///
///   T = 20 % fixed + 40 % attention (most KV) + 20 % dispatch (most requests) + 20 % MoE (mean)
///
/// are shares of a step in which all ranks are even; the weights are assumed. The queue is a recorded trace
/// in shuffled order, again and again, so it is stationary.
namespace trimtab::policy {

struct StudyRequest {
  std::int64_t prompt_tokens = 1, output_tokens = 1;
};

struct StudyCase {
  std::string name;
  std::int64_t ranks = 32, batch = 16;  // requests per rank, in the mean
  DecodeConfig config;
  /// Steps between reports, and how old they are when they come. 0 and `sees_streams`: the placer needs none.
  std::int64_t report_every = 0, report_age = 0;
  /// The placer carries the streams: it sees tokens and ends of its own requests.
  bool sees_streams = true;
  std::int64_t placers = 1;
  bool slow_half = false;       // every second rank has 0.7 of the speed
  std::int64_t graph_step = 1;  // batches padded to multiples, MoE pays for the largest
  std::int64_t tokens_per_step = 1;
  std::int64_t kv_cap_permille = 0;  // KV of a rank, of the mean of a full one; 0: no limit
  std::int64_t move_lost_steps = 4;
  std::int64_t fills = 10, fills_dropped = 3;  // one fill: as many requests as the group runs
  std::uint64_t seed = 1;
};

struct StudyResult {
  double share = 0;                      // tokens per time over those of the ideal step at full occupancy
  double live = 0;                       // share of the places that ran a request
  double kv_peak = 0, running_peak = 0;  // greatest over mean, averaged over steps
  double moves_per_request = 0;
  std::int64_t overtaken_max = 0;
  std::int64_t hold_steps_max = 0;  // the longest that the head of a queue was held
  std::int64_t placed = 0, steps = 0;
};

StudyResult run_study(const StudyCase& study, std::span<const StudyRequest> trace);

/// Lengths like those of the Mooncake conversation trace, for machines without it: fitted quantiles of prompt
/// and output, drawn independently.
std::vector<StudyRequest> synthetic_conversation(std::size_t requests, std::uint64_t seed);

}  // namespace trimtab::policy
