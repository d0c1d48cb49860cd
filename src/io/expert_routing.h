#pragma once

#include <cstdint>
#include <string>

#include "base/error.h"
#include "model/expert_model.h"

namespace trimtab::io {

/// Recorded routing as popularity by window: each domain is one window of text (a request's, or a step's).
struct ExpertRouting {
  model::ExpertPopularity popularity;
  std::int32_t recorded_layers = 0;  // in the file
  std::int32_t per_token = 0;        // experts that a token chose; 0: the file holds counts only
};

/// Reads a .npz whose arrays are ids of the chosen experts, [windows, tokens, layers, choices], one array a
/// kind of text; or any dump of counts that read_expert_loads takes (.npz, .npy, .csv, .json, .pt), each step
/// of which is a window of one text. `layers` of the recorded ones are kept, evenly spaced. `experts`: how
/// many the model has; 0: the counts say it, and ids are taken to reach the last. Errors name the file and
/// the fix: no such file, fewer layers or another number of experts, arrays of different models, ids that are
/// not whole.
base::Result<ExpertRouting> read_expert_routing(const std::string& path, std::int32_t layers,
                                                std::int32_t experts);

}  // namespace trimtab::io
