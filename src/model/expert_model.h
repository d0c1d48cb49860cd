#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"

namespace trimtab::model {

/// What balances the experts of a simulated group.
enum class ExpertPolicy : std::uint8_t {
  kConstant,     // nothing is modelled: the balance is the scenario's number
  kOff,          // every expert once, by number, for ever
  kRedundancy,   // the redundant slots hold copies by number, for ever; copies share evenly
  kDeepInfer,    // every interval a fresh plan from the window's counts, published rule; copies share evenly
  kIncremental,  // ours: plans from the map in force with few moves; copies share by load
  kRepair,       // ours: the map is mended where no shares level it; copies share by load
};

enum class ExpertSkew : std::uint8_t { kLognormal, kZipf };

/// How often each expert of a layer is asked for, by kind of text: share of the layer's choices, [domains,
/// layers, experts], each row adding up to 1.
struct ExpertPopularity {
  std::int32_t domains = 0, layers = 0, experts = 0;
  std::vector<double> shares;
  /// Recorded windows: each domain is a window of the text that it names here (0, 1, ...), `window_tokens`
  /// long (0: not known). Empty: a domain is a kind of text.
  std::vector<std::int32_t> texts;
  std::int64_t window_tokens = 0;

  const double* of(std::int32_t domain, std::int32_t layer) const {
    return shares.data() + (static_cast<std::size_t>(domain) * static_cast<std::size_t>(layers) +
                            static_cast<std::size_t>(layer)) *
                               static_cast<std::size_t>(experts);
  }
};

/// The experts of the groups of one side.
struct ExpertSide {
  std::int32_t redundant_slots_per_rank = 0;
  std::int64_t interval_steps = 0;  // between plans; 0: the published preset, an epoch for our policies
  std::int32_t window_steps = 0;  // whose counts a plan sees; 0: the preset, the epoch (at most 40) for ours
  std::int64_t epoch_steps = 64;  // the mix of texts stays for so many steps
  double drift_steps = 20'000;    // and forgets itself in so many; 0: it never changes
  /// Recorded windows: a step computes whole ones, as prefill does, so each epoch has others. Else a window
  /// is read token by token, and others come as its tokens end.
  bool whole_windows = false;
};

/// Loads of the experts, the policy that balances them, and what moving copies costs. The published presets
/// are 1,000 steps with a window of 100 for prefill, 10,000 and 200 for decode (1,000 there in production).
struct ExpertModel {
  ExpertPolicy policy = ExpertPolicy::kConstant;
  std::int32_t experts = 0, per_token = 0;  // 0: the profile's, where it has them, else 384 and 6
  std::int32_t model_layers = 0;            // 0: the profile's, where it has them, else 40
  std::int32_t layers = 4;                  // that are simulated; they stand for all of the model's
  ExpertSide prefill{4, 0, 0, 8, 2'000, true}, decode{1, 0, 0, 64, 20'000};

  ExpertSkew skew = ExpertSkew::kLognormal;
  double skew_amount = 0.8;     // deviation of the logarithm, or Zipf's exponent
  std::int32_t domains = 8;     // kinds of text
  double domain_share = 0.5;    // of the skew's variance that differs between kinds of text
  double mix_spread = 1.0;      // deviation of the logarithm of a text's weight in the mix
  ExpertPopularity popularity;  // of it; empty: drawn from the skew
  std::string routing;          // file that the popularity was recorded in: whoever simulates has read it
  std::int32_t routing_windows = 64;  // of the recorded ones, that a group computes at a time

  std::int32_t estimate_steps = 32;  // that sharing by load looks back, at most

  double bytes_per_copy = 18.8e6;       // one expert of one layer with its scales
  double move_bytes_per_s = 50e9;       // into one rank
  double memory_bytes_per_s = 3.35e12;  // reads of redundant copies, once a step; 0: not charged
  std::int64_t stall_us = 10'000;  // moves hold a step up by at most so much (0: all at once, as published)
};

}  // namespace trimtab::model
