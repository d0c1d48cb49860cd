#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "base/units.h"
#include "model/ids.h"

namespace trimtab::policy {

/// Who yields when a decode rank runs out of memory.
enum class VictimRule : std::uint8_t {
  kBestFit,        // the smallest request that frees enough; see choose_victim
  kLongestOutput,  // the request that has generated most, as DeepInfer does
};

/// A running request of the rank.
struct VictimCandidate {
  model::RequestId id;
  base::TokenCount tokens;       // its KV
  base::TokenCount generated;    // since it was placed here
  base::Nanos admitted_at;       // to this rank
  std::int64_t preemptions = 0;  // how often it had to yield before
};

struct DecodeVictim {
  model::RequestId id;
  base::TokenCount tokens;
  base::TokenCount generated;
  base::TokenCount wanted;  // what should become free
  std::int64_t others = 0;  // candidates beside it that could have yielded
  std::int64_t preempted_before = 0;
};

/// **Best fit.** The oldest request on the rank never yields; among the others those that yielded least often
/// come first; among these the smallest whose KV is at least `wanted`, or the largest when none is that large
/// (ties: lowest id). None when fewer than two run: the last one is never sent away.
///
/// *Why.* A victim resumes from the pool, which has all its full blocks, so nothing is recomputed but a part
/// of a block; what it costs is moving its KV there and back, one client's stall, and finding it a place. The
/// smallest sufficient one disturbs one client, moves the fewest bytes and is the easiest to place again. The
/// oldest stays so that the rank always finishes something and requests cannot evict each other for ever;
/// counting earlier preemptions spreads the stalls. *Source.* Own. DeepInfer evicts the longest output, which
/// under its recompute-or-stop handling frees most per victim, but hits the same long requests again and
/// again; vLLM evicts the last admitted, which may free next to nothing. *Cost.* O(candidates). *Weakness.*
/// Remaining lengths are unknown: the victim may have been one token from its end.
std::optional<DecodeVictim> choose_victim(VictimRule rule, std::span<const VictimCandidate> running,
                                          base::TokenCount wanted);

}  // namespace trimtab::policy
