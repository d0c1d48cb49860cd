#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "model/profile.h"

namespace trimtab::engine {

/// What prefill steps cost on this machine, fitted to timed steps.
struct Calibration {
  model::QuadraticCost cost;
  std::string machine;  // processor and instruction set
  std::int64_t samples = 0;
  double error_ratio_mean = 0;  // mean |predicted - actual| / actual over the samples
  double error_ratio_worst = 0;
};

/// Times steps of several (q, c), each the least of a few repeats, and fits the quadratic. Takes some seconds
/// of one core and about 200 MB.
base::Result<Calibration> calibrate(const std::string& model_path, std::uint32_t ffn_experts);

}  // namespace trimtab::engine
