#pragma once

#include <cstdint>

#include "model/scenario.h"
#include "policy/overlap/phases.h"
#include "sim/step_times.h"

namespace trimtab::sim {

/// What two micro-batches of one step can share, all layers together, on the rank that the group waits for,
/// in nanoseconds. What else the step takes stays as it is.
struct OverlapParts {
  double attention = 0, experts = 0;  // computing, in proportion to the batch
  double experts_least = 0;           // of a micro-batch: their weights are read whatever it holds
  double weights = 0;                 // read by each micro-batch beside that
  double network = 0;                 // in proportion to the batch
};

/// Time that the step saves as two micro-batches; 0 where it would cost time: then it runs as one. The
/// decision is the published estimate (policy::worth) on the step's own parts, less what the split costs.
/// `batch`: rows or tokens of that rank. Weakness: stages follow one another without gaps, which
/// policy/overlap/phases.h would know and is too slow for every step.
double overlap_saving(const OverlapParts& parts, double batch, double layers,
                      const policy::OverlapCosts& costs);

/// Every part but the moves of experts shrinks alike, so that they still add up and say where time goes.
void save(StepTimes& times, double saving);

/// Layers whose stages are launched once more.
double moe_layers(const model::Scenario& scenario);
/// Reading the weights of a rank's experts once, of a group of so many ranks; 0 without
/// memory_bytes_per_s.
double expert_weights_ns(const model::Scenario& scenario, double ranks);

}  // namespace trimtab::sim
