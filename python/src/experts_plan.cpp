#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "experts_arrays.h"
#include "experts_host/plan_layers.h"
#include "policy/experts/load_window.h"
#include "policy/experts/plan/planner.h"
#include "policy/experts/types.h"

namespace trimtab::python {

namespace {

using namespace nb::literals;
using experts::Plan;
using experts::PlanOptions;
using experts::PlanReason;
using experts::Shape;
using Maps = Array<std::int32_t, 2>;  // [layers, slots]

std::pair<nb::object, std::vector<PlanReason>> out(std::vector<Plan> plans) {
  std::vector<PlanReason> reasons;
  reasons.reserve(plans.size());
  for (const Plan& plan : plans) reasons.push_back(plan.reason);
  const std::size_t slots = plans.empty() ? 0 : plans.front().map.size();
  return {to_numpy(experts_host::maps_of(plans), {plans.size(), slots}), std::move(reasons)};
}

/// The window of every layer; experts are the array's.
template <class T>
experts::LoadWindow window_of(const Array<T, 3>& loads, std::int32_t layer) {
  const std::int32_t experts = size_of(loads, 2);
  const auto stride = static_cast<std::ptrdiff_t>(loads.shape(1) * loads.shape(2));
  return unwrap(experts::LoadWindow::make(loads.data() + static_cast<std::ptrdiff_t>(layer) * experts,
                                          size_of(loads, 0), experts, stride));
}

template <class T>
std::pair<nb::object, std::vector<PlanReason>> plan_layers(const Shape& shape, const Array<T, 3>& loads,
                                                           const Maps& current, const PlanOptions& options,
                                                           std::int32_t threads) {
  const std::int32_t steps = size_of(loads, 0), layers = size_of(loads, 1);
  auto plans = unlocked([&] {
    return experts_host::plan_layers(shape, loads.data(), steps, layers, span_of(current), options, threads);
  });
  return out(unwrap(std::move(plans)));
}

template <class T>
std::pair<nb::object, std::vector<PlanReason>> replan_ranks(const Shape& old_shape, const Maps& before,
                                                            const Shape& shape,
                                                            const Array<std::int32_t, 1>& survivors,
                                                            const Array<T, 3>& loads,
                                                            const PlanOptions& options) {
  std::vector<Plan> plans;
  const std::span<const std::int32_t> maps = span_of(before);
  const std::size_t width = before.shape(1);
  for (std::int32_t layer = 0; layer < size_of(loads, 1); ++layer) {
    const experts::LoadWindow window = window_of(loads, layer);
    auto plan = unlocked([&] {
      return experts::replan_ranks(old_shape, maps.subspan(extent(layer) * width, width), shape,
                                   span_of(survivors), window, options);
    });
    plans.push_back(unwrap(std::move(plan)));
  }
  return out(std::move(plans));
}

/// of_sums and mean_ratio of each layer, [layers, 2].
template <class T>
nb::object balance(const Shape& shape, const Maps& maps, const Array<T, 3>& loads) {
  std::vector<double> figures;
  const std::span<const std::int32_t> all = span_of(maps);
  const std::size_t width = maps.shape(1);
  for (std::int32_t layer = 0; layer < size_of(loads, 1); ++layer) {
    const experts::LoadWindow window = window_of(loads, layer);
    const std::span<const std::int32_t> map = all.subspan(extent(layer) * width, width);
    unwrap_status(experts::check(shape, map, false));
    const experts::Balance found = unlocked([&] { return experts::balance_of(shape, map, window); });
    figures.insert(figures.end(), {found.of_sums, found.mean_ratio});
  }
  return to_numpy(std::move(figures), {loads.shape(1), 2});
}

template <class T>
void bind_for(nb::module_& m) {
  m.def("plan_layers", &plan_layers<T>, "shape"_a, "loads"_a.noconvert(), "current"_a.noconvert(),
        "options"_a, "threads"_a,
        "[steps, layers, experts], [layers, slots] or [0, 0] -> ([layers, slots], reasons).");
  m.def("replan_ranks", &replan_ranks<T>, "old_shape"_a, "before"_a.noconvert(), "shape"_a,
        "survivors"_a.noconvert(), "loads"_a.noconvert(), "options"_a,
        "[layers, old slots], [ranks], [steps, layers, experts] -> ([layers, slots], reasons).");
  m.def("balance", &balance<T>, "shape"_a, "maps"_a.noconvert(), "loads"_a.noconvert(),
        "[layers, slots], [steps, layers, experts] -> [layers, 2]: sum of peaks over sum of means, mean "
        "ratio.");
}

void bind_values(nb::module_& m) {
  nb::class_<Shape>(m, "Shape", "One MoE layer on its EP group: counts of what there is.")
      .def(
          "__init__",
          [](Shape* self, std::int32_t experts, std::int32_t slots, std::int32_t ranks, std::int32_t nodes,
             std::int32_t groups) {
            new (self) Shape{experts, slots, ranks, nodes, groups};
            unwrap_status(experts::check(*self));
          },
          "experts"_a, "slots"_a, "ranks"_a, "nodes"_a = 1, "groups"_a = 1)
      .def_ro("experts", &Shape::experts)
      .def_ro("slots", &Shape::slots)
      .def_ro("ranks", &Shape::ranks)
      .def_ro("nodes", &Shape::nodes)
      .def_ro("groups", &Shape::groups)
      .def("__repr__", [](const Shape& self) {
        return "Shape(experts=" + std::to_string(self.experts) + ", slots=" + std::to_string(self.slots) +
               ", ranks=" + std::to_string(self.ranks) + ", nodes=" + std::to_string(self.nodes) +
               ", groups=" + std::to_string(self.groups) + ")";
      });
  nb::enum_<experts::Start>(m, "Start")
      .value("fresh", experts::Start::kFresh)
      .value("incremental", experts::Start::kIncremental);
  nb::enum_<experts::Scope>(m, "Scope")
      .value("global_", experts::Scope::kGlobal)
      .value("hierarchical", experts::Scope::kHierarchical);
  nb::enum_<experts::Effort>(m, "Effort")
      .value("fast", experts::Effort::kFast)
      .value("default", experts::Effort::kDefault)
      .value("quality", experts::Effort::kQuality);
  nb::class_<PlanOptions>(m, "PlanOptions")
      .def(nb::init<>())
      .def_rw("start", &PlanOptions::start)
      .def_rw("scope", &PlanOptions::scope)
      .def_rw("effort", &PlanOptions::effort)
      .def_rw("move_price", &PlanOptions::move_price)
      .def_rw("moves_max", &PlanOptions::moves_max)
      .def_rw("recency_steps", &PlanOptions::recency_steps)
      .def_rw("seed", &PlanOptions::seed)
      .def_rw("period_steps", &PlanOptions::period_steps);
  nb::class_<PlanReason>(m, "PlanReason", "The numbers that led to one layer's plan.")
      .def_ro("balance_before", &PlanReason::balance_before,
              "Of the current map on the window; 0 without one.")
      .def_ro("balance", &PlanReason::balance, "Of the plan on the window: what it promises.")
      .def_ro("received", &PlanReason::received, "Copies that ranks must receive from the current map.")
      .def_ro("swaps", &PlanReason::swaps)
      .def_ro("replacements", &PlanReason::replacements)
      .def_ro("walk_steps", &PlanReason::walk_steps)
      .def("__str__", &experts::describe)
      .def("__repr__", [](const PlanReason& self) { return "<PlanReason " + experts::describe(self) + ">"; });
}

}  // namespace

void bind_experts_plan(nb::module_& m) {
  bind_values(m);
  bind_for<std::int32_t>(m);
  bind_for<std::int64_t>(m);
  bind_for<float>(m);
  bind_for<double>(m);
  m.def("physical_slots", &experts::physical_slots, "experts"_a, "redundant"_a, "ranks"_a);
  m.def("initial_map",
        [](const Shape& shape) { return to_numpy(experts::initial_map(shape), {extent(shape.slots)}); });
  m.def(
      "check_map",
      [](const Shape& shape, const Array<std::int32_t, 1>& map, bool distinct) {
        unwrap_status(experts::check(shape, span_of(map), distinct));
      },
      "shape"_a, "map"_a.noconvert(), "distinct"_a);
  m.def(
      "received_copies",
      [](const Shape& shape, const Array<std::int32_t, 1>& before, const Array<std::int32_t, 1>& after) {
        unwrap_status(experts::check(shape, span_of(before), false));
        unwrap_status(experts::check(shape, span_of(after), false));
        return experts::received_copies(shape, span_of(before), span_of(after));
      },
      "shape"_a, "before"_a.noconvert(), "after"_a.noconvert());
  m.def(
      "duplicate_copies",
      [](const Shape& shape, const Array<std::int32_t, 1>& map) {
        unwrap_status(experts::check(shape, span_of(map), false));
        return experts::duplicate_copies(shape, span_of(map));
      },
      "shape"_a, "map"_a.noconvert());
}

}  // namespace trimtab::python
