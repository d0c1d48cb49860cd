#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"

namespace trimtab::policy {

/// What one way of moving blocks from host to device memory costs, as measured on the machine (system facts,
/// section 12: copies one by one, copies in batches, a gather kernel, the network card).
struct SwapBackendCost {
  std::string name;
  double call_ns = 0;           // on the submitting thread, per call
  double submit_copy_ns = 0;    // on the submitting thread, per copy of a call
  double device_copy_ns = 0;    // on the device, per copy
  double bytes_per_ns = 1;      // on the device
  std::uint32_t batch_max = 1;  // copies that one call takes
  double compute_share = 0;     // computing loses this part of its speed while the device copies
};

/// What two kinds of runs tell: each of `calls` calls with `copies` copies of `bytes` bytes.
struct SwapSample {
  std::uint32_t calls = 0, copies = 0;
  std::uint64_t bytes = 0;
  double submit_ns = 0;  // until the last call had returned
  double total_ns = 0;   // until the last byte had landed
};
/// Least squares without negative parts, of submit = calls x call_ns + copies x submit_copy_ns and of
/// total - first call's submitting = copies x device_copy_ns + bytes / bytes_per_ns. Where nearly all the
/// time is spent within the calls, the submitting thread itself copies: all of it then counts as the
/// device's. Errors: fewer than three samples; samples that all have one shape, so that a copy's cost and a
/// byte's cannot be told apart.
base::Result<SwapBackendCost> fit_swap_cost(std::string name, std::span<const SwapSample> samples,
                                            std::uint32_t batch_max, double compute_share);

/// One layer of one forward pass that has blocks to swap in.
struct SwapLayer {
  std::uint32_t copies = 0;  // blocks, scattered on both sides
  std::uint64_t bytes = 0;   // of all of them
  double ready_ns = 0;       // when they lie in host memory, after the start of the pass
  double compute_ns = 0;     // of the forward pass from this layer up to the next one in the list
};

struct SwapOutcome {
  double total_ns = 0;     // of the pass
  double stalled_ns = 0;   // of it, computing waited for a layer
  double submit_ns = 0;    // of the submitting thread
  double slowed_ns = 0;    // of it, computing was slower because the copies used its processors
  double overlap() const;  // 1: the copies cost nothing; 0: as much as copying everything first
  double alone_ns = 0;     // copies without anything to hide behind
};
/// Plays the pass: layer after layer is submitted in calls of `batch` copies as soon as it is ready, the
/// device works them off in order, and a layer is computed when it is there. Linear in the calls.
SwapOutcome play_swap(const SwapBackendCost& backend, std::uint32_t batch, std::span<const SwapLayer> layers);

struct SwapChoice {
  std::size_t backend = 0;  // which of those offered
  std::uint32_t batch = 1;
  SwapOutcome outcome;
  std::string reason;  // "copy_engine_batch, 64 per call: 1 % stalled; next best gather: 3 %"
};
/// Which backend, and how many copies in one call. A call's first byte moves only when the whole call has
/// been submitted, and calls cost: large batches make the first layer late, small ones the submitting thread
/// busy.
///
/// Algorithm: every backend with batches of 1, 2, 4 .. batch_max is played; the least total time wins, then
/// the least submitting, then the order offered. Exact for its model. Weakness: one copy queue; other
/// transfers on the same link (hand-overs, all-to-all) are not in it, so costs should be measured under load.
/// Errors: no backend; a cost that is negative or not a number (named).
base::Result<SwapChoice> choose_swap(std::span<const SwapBackendCost> backends,
                                     std::span<const SwapLayer> layers);

}  // namespace trimtab::policy
