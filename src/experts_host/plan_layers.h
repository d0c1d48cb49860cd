#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/error.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/types.h"

namespace trimtab::experts_host {

/// Threads for `layers` layers: `asked` of them, all cores for 0, never more than layers, at least one.
std::int32_t threads_for(std::int32_t asked, std::int32_t layers);

/// Calls work(layer) once for each layer, from `threads` threads (see threads_for), this one included. When
/// the machine refuses a thread, those that run do all the work. `work` must not throw and must touch nothing
/// but its layer's.
void each_layer(std::int32_t layers, std::int32_t threads, const std::function<void(std::int32_t)>& work);

/// experts::plan_layer for every layer, layers in parallel: the same bytes at every number of threads, and
/// the same as layer by layer with the same options.
///
/// loads: [steps, layers, experts], tokens per step and expert. current: [layers, slots], the maps in force,
/// or empty; slots may differ from the shape's for a fresh plan. Errors are those of LoadWindow::make and
/// plan_layer, with the layer in front (the lowest layer at fault); no layer; a size of `current` that layers
/// do not divide; negative threads.
base::Result<std::vector<experts::Plan>> plan_layers(const experts::Shape& shape, const std::int32_t* loads,
                                                     std::int32_t steps, std::int32_t layers,
                                                     std::span<const std::int32_t> current,
                                                     const experts::PlanOptions& options,
                                                     std::int32_t threads);
base::Result<std::vector<experts::Plan>> plan_layers(const experts::Shape& shape, const std::int64_t* loads,
                                                     std::int32_t steps, std::int32_t layers,
                                                     std::span<const std::int32_t> current,
                                                     const experts::PlanOptions& options,
                                                     std::int32_t threads);
base::Result<std::vector<experts::Plan>> plan_layers(const experts::Shape& shape, const float* loads,
                                                     std::int32_t steps, std::int32_t layers,
                                                     std::span<const std::int32_t> current,
                                                     const experts::PlanOptions& options,
                                                     std::int32_t threads);
base::Result<std::vector<experts::Plan>> plan_layers(const experts::Shape& shape, const double* loads,
                                                     std::int32_t steps, std::int32_t layers,
                                                     std::span<const std::int32_t> current,
                                                     const experts::PlanOptions& options,
                                                     std::int32_t threads);

/// The maps of plans one after another, [layers, slots].
std::vector<std::int32_t> maps_of(std::span<const experts::Plan> plans);

}  // namespace trimtab::experts_host
