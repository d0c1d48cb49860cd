#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/expert_array.h"

namespace trimtab::io {

/// Tokens per step, layer and logical expert, as a dump recorded them.
struct ExpertLoads {
  std::int32_t steps = 0, layers = 0, experts = 0;
  std::vector<double> counts;      // [steps, layers, experts]
  std::vector<std::string> notes;  // how the files were understood, where more than one reading exists
};

/// What a two-dimensional array means.
enum class Matrix : std::uint8_t {
  kLayers,  // [layers, experts]: one step (totals)
  kSteps,   // [steps, experts]: one layer
};

struct LoadsOptions {
  Matrix matrix = Matrix::kLayers;
  std::string array;         // of a file with several arrays; empty: the one whose name says counts
  std::string physical_map;  // file with the physical_to_logical map of counts by physical slot
  std::int32_t window = 0;   // keep the last so many steps; 0: all
  std::int64_t elements_max = kExpertElementsMax;
};

/// Reads dumps of expert counts; what a file is, its first bytes say:
/// - .npy and .npz: [steps, layers, experts], [layers, experts] or [steps, experts] (see Matrix), [experts];
/// - .csv: columns named step, layer, expert, count (step and layer may lack; absent rows are zero), a header
///   with one column per expert (e0, e1, ... or expert_0, ...), or a plain matrix;
/// - .json: {"logical_count": nested lists}, or nested lists;
/// - .pt: SGLang's expert distribution recorder (`logical_count` of the modes stat and stat_approx; `records`
/// of
///   per_pass and per_token, physical counts folded by the map beside them), vLLM's `expert_load_window` with
///   `physical_to_logical_map`, or one tensor.
/// Per-pass records of several files (one a rank) are summed by forward pass; other files follow one another
/// in time. Errors name the file, the place and the value: NaN, negative or infinite counts, files of
/// different layers or experts, no step at all.
base::Result<ExpertLoads> read_expert_loads(const std::vector<std::string>& paths,
                                            const LoadsOptions& options);

}  // namespace trimtab::io
