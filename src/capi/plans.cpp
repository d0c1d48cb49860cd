#include <algorithm>
#include <vector>

#include "capi/bridge.h"
#include "experts_host/plan_layers.h"
#include "policy/experts/load_window.h"

namespace {

using trimtab::base::Result;
using trimtab::base::Status;
using trimtab::experts::LoadWindow;
using trimtab::experts::Plan;
using trimtab::experts::PlanOptions;
using trimtab::experts::Scope;
using trimtab::experts::Shape;
namespace capi = trimtab::capi;
namespace experts = trimtab::experts;

constexpr std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

struct Options {
  PlanOptions plan;
  std::int32_t threads;
};

Result<Options> options_of(const trimtab_plan_options* given) {
  const auto filled = capi::options_of(given, capi::default_plan_options(), "trimtab_plan_options_default");
  if (!filled) return tl::unexpected(filled.error());
  const auto plan = capi::plan_options_of(*filled);
  if (!plan) return tl::unexpected(plan.error());
  return Options{*plan, filled->threads};
}

Status check_sizes(std::int32_t layers, std::int32_t current_slots, const std::int32_t* current) {
  if (layers < 1) return capi::bad(fmt::format("{} layers: there is at least one", layers));
  if (current_slots < 0 || (current != nullptr && current_slots == 0))
    return capi::bad(fmt::format("current maps of {} slots: pass their slots, or NULL and 0", current_slots));
  if (current_slots > 0) return capi::need(current, "current");
  return {};
}

Result<std::vector<Plan>> plan(const Shape& shape, const void* loads, std::int32_t load_type,
                               std::int32_t steps, std::int32_t layers, std::span<const std::int32_t> current,
                               const Options& options) {
  Result<std::vector<Plan>> plans;
  const Status status = capi::with_loads(loads, load_type, [&](const auto* typed) -> Status {
    plans = trimtab::experts_host::plan_layers(shape, typed, steps, layers, current, options.plan,
                                               options.threads);
    if (!plans) return tl::unexpected(plans.error());
    return {};
  });
  if (!status) return tl::unexpected(status.error());
  return plans;
}

Result<LoadWindow> window_of(const Shape& shape, const void* loads, std::int32_t load_type,
                             std::int32_t steps, std::int64_t step_stride) {
  if (step_stride < shape.experts && steps > 1) {
    return capi::bad(fmt::format("rows {} elements apart overlap: {} experts need step_stride {} or more",
                                 step_stride, shape.experts, shape.experts));
  }
  std::vector<LoadWindow> window;
  const Status status = capi::with_loads(loads, load_type, [&](const auto* typed) -> Status {
    auto made = LoadWindow::make(typed, steps, shape.experts, static_cast<std::ptrdiff_t>(step_stride));
    if (!made) return tl::unexpected(made.error());
    window.push_back(std::move(*made));
    return {};
  });
  if (!status) return tl::unexpected(status.error());
  return std::move(window.front());
}

Status write_plan(const Plan& plan, std::int32_t* map, trimtab_plan_reason* reason) {
  std::ranges::copy(plan.map, map);
  capi::write_reason(plan.reason, reason);
  return {};
}

/// Plans and writes DeepSeek's three results.
Status rebalance(const Shape& shape, const void* loads, std::int32_t load_type, std::int32_t steps,
                 std::int32_t layers, const Options& options, std::int32_t* physical_to_logical,
                 std::int32_t* logical_to_physical, std::int32_t copies_max, std::int32_t* logical_count) {
  TRIMTAB_TRY(check_sizes(layers, 0, nullptr));
  TRIMTAB_TRY(capi::need(physical_to_logical, "physical_to_logical"));
  const auto plans = plan(shape, loads, load_type, steps, layers, {}, options);
  if (!plans) return tl::unexpected(plans.error());
  const std::vector<std::int32_t> maps = trimtab::experts_host::maps_of(*plans);
  TRIMTAB_TRY(capi::write_tables(shape, maps, copies_max, logical_to_physical, logical_count));
  std::ranges::copy(maps, physical_to_logical);
  return {};
}

}  // namespace

extern "C" {

const char* trimtab_experts_version(void) { return TRIMTAB_VERSION; }
int32_t trimtab_experts_abi(void) { return TRIMTAB_EXPERTS_ABI; }

int64_t trimtab_physical_slots(int64_t expert_count, int64_t redundant, int64_t ranks) {
  constexpr std::int64_t kMax = std::int64_t{1} << 40;
  if (expert_count < 0 || redundant < 0 || ranks < 1 || expert_count > kMax || redundant > kMax ||
      ranks > kMax)
    return -1;
  return experts::physical_slots(expert_count, redundant, ranks);
}

int32_t trimtab_shape_check(const trimtab_shape* shape, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    TRIMTAB_TRY(capi::checked_shape(shape));
    return {};
  });
}

int32_t trimtab_initial_map(const trimtab_shape* shape, int32_t* map, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    TRIMTAB_TRY(capi::need(map, "map"));
    std::ranges::copy(experts::initial_map(*checked), map);
    return {};
  });
}

void trimtab_plan_options_default(trimtab_plan_options* options) {
  if (options != nullptr) *options = capi::default_plan_options();
}

int32_t trimtab_plan_layers(const trimtab_shape* shape, const void* loads, int32_t load_type, int32_t steps,
                            int32_t layers, const int32_t* current, int32_t current_slots,
                            const trimtab_plan_options* options, int32_t* maps, trimtab_plan_reason* reasons,
                            char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    const auto chosen = options_of(options);
    if (!chosen) return tl::unexpected(chosen.error());
    TRIMTAB_TRY(check_sizes(layers, current_slots, current));
    TRIMTAB_TRY(capi::need(maps, "maps"));
    const std::span<const std::int32_t> old(current, current == nullptr ? 0 : at(layers) * at(current_slots));
    const auto plans = plan(*checked, loads, load_type, steps, layers, old, *chosen);
    if (!plans) return tl::unexpected(plans.error());
    for (std::size_t layer = 0; layer < plans->size(); ++layer) {
      TRIMTAB_TRY(write_plan((*plans)[layer], maps + layer * at(checked->slots),
                             reasons == nullptr ? nullptr : reasons + layer));
    }
    return {};
  });
}

int32_t trimtab_plan_layer(const trimtab_shape* shape, const void* loads, int32_t load_type, int32_t steps,
                           int64_t step_stride, const int32_t* current, int32_t current_slots,
                           const trimtab_plan_options* options, int32_t* map, trimtab_plan_reason* reason,
                           char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    const auto chosen = options_of(options);
    if (!chosen) return tl::unexpected(chosen.error());
    TRIMTAB_TRY(check_sizes(1, current_slots, current));
    TRIMTAB_TRY(capi::need(map, "map"));
    const auto window = window_of(*checked, loads, load_type, steps, step_stride);
    if (!window) return tl::unexpected(window.error());
    const auto made = experts::plan_layer(*checked, *window, {current, at(current_slots)}, chosen->plan);
    if (!made) return tl::unexpected(made.error());
    return write_plan(*made, map, reason);
  });
}

int32_t trimtab_replan_ranks(const trimtab_shape* old, const int32_t* before, const trimtab_shape* shape,
                             const int32_t* survivors, const void* loads, int32_t load_type, int32_t steps,
                             int64_t step_stride, const trimtab_plan_options* options, int32_t* map,
                             trimtab_plan_reason* reason, char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto old_shape = capi::checked_shape(old, "old");
    if (!old_shape) return tl::unexpected(old_shape.error());
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    const auto chosen = options_of(options);
    if (!chosen) return tl::unexpected(chosen.error());
    TRIMTAB_TRY(capi::need(before, "before"));
    TRIMTAB_TRY(capi::need(survivors, "survivors"));
    TRIMTAB_TRY(capi::need(map, "map"));
    const auto window = window_of(*checked, loads, load_type, steps, step_stride);
    if (!window) return tl::unexpected(window.error());
    const auto made = experts::replan_ranks(*old_shape, {before, at(old_shape->slots)}, *checked,
                                            {survivors, at(checked->ranks)}, *window, chosen->plan);
    if (!made) return tl::unexpected(made.error());
    return write_plan(*made, map, reason);
  });
}

int32_t trimtab_rebalance_experts(const void* weight, int32_t load_type, int32_t layers, int32_t expert_count,
                                  int32_t num_replicas, int32_t num_groups, int32_t num_nodes,
                                  int32_t num_gpus, int32_t allow_global, int32_t threads,
                                  int32_t* physical_to_logical, int32_t* logical_to_physical,
                                  int32_t copies_max, int32_t* logical_count, char* error,
                                  size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    Shape shape{.experts = expert_count,
                .slots = num_replicas,
                .ranks = num_gpus,
                .nodes = num_nodes,
                .groups = num_groups};
    Options options{PlanOptions{}, threads};
    options.plan.scope = Scope::kHierarchical;
    if (allow_global != 0 && num_nodes > 0 && (num_groups < 1 || num_groups % num_nodes != 0)) {
      options.plan.scope = Scope::kGlobal;
      shape.groups = shape.nodes = 1;
    }
    // One node is the global problem.
    if (num_nodes == 1) options.plan.scope = Scope::kGlobal;
    TRIMTAB_TRY(experts::check(shape));
    return rebalance(shape, weight, load_type, 1, layers, options, physical_to_logical, logical_to_physical,
                     copies_max, logical_count);
  });
}

int32_t trimtab_rebalance_global(const void* tokens_per_expert, int32_t load_type, int32_t steps,
                                 int32_t layers, int32_t expert_count, int32_t num_physical,
                                 int32_t num_local_physical, int32_t threads, int32_t* physical_to_logical,
                                 int32_t* logical_to_physical, int32_t copies_max, int32_t* logical_count,
                                 char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    if (num_local_physical < 1 || num_physical % num_local_physical != 0) {
      return capi::bad(
          fmt::format("{} physical slots do not divide into ranks of {}: num_local_physical is slots per "
                      "rank",
                      num_physical, num_local_physical));
    }
    const Shape shape{.experts = expert_count,
                      .slots = num_physical,
                      .ranks = num_physical / num_local_physical,
                      .nodes = 1,
                      .groups = 1};
    TRIMTAB_TRY(experts::check(shape));
    return rebalance(shape, tokens_per_expert, load_type, steps, layers, {PlanOptions{}, threads},
                     physical_to_logical, logical_to_physical, copies_max, logical_count);
  });
}

int32_t trimtab_balance_of(const trimtab_shape* shape, const int32_t* maps, const void* loads,
                           int32_t load_type, int32_t steps, int32_t layers, trimtab_balance* out,
                           char* error, size_t error_bytes) {
  return capi::guarded(error, error_bytes, [&]() -> Status {
    const auto checked = capi::checked_shape(shape);
    if (!checked) return tl::unexpected(checked.error());
    TRIMTAB_TRY(check_sizes(layers, 0, nullptr));
    TRIMTAB_TRY(capi::need(maps, "maps"));
    TRIMTAB_TRY(capi::need(out, "out"));
    return capi::with_loads(loads, load_type, [&](const auto* typed) -> Status {
      const auto stride = static_cast<std::ptrdiff_t>(layers) * checked->experts;
      for (std::int32_t layer = 0; layer < layers; ++layer) {
        const std::span<const std::int32_t> map(maps + at(layer) * at(checked->slots), at(checked->slots));
        if (const auto legal = experts::check(*checked, map, false); !legal)
          return capi::bad(fmt::format("layer {}: {}", layer, legal.error().message));
        const auto window = LoadWindow::make(typed + std::ptrdiff_t{layer} * checked->experts, steps,
                                             checked->experts, stride);
        if (!window) return capi::bad(fmt::format("layer {}: {}", layer, window.error().message));
        const experts::Balance balance = experts::balance_of(*checked, map, *window);
        out[layer] = {balance.of_sums, balance.mean_ratio};
      }
      return {};
    });
  });
}

}  // extern "C"
