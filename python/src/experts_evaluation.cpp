#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>

#include "experts_arrays.h"
#include "experts_eval/nodes_per_token.h"
#include "experts_eval/published.h"
#include "experts_eval/rolling.h"
#include "experts_eval/seed_routing.h"
#include "experts_eval/synthetic_loads.h"
#include "experts_eval/weighted_rolling.h"

namespace trimtab::python {

namespace {

using namespace nb::literals;
using experts::Shape;
using experts_eval::Loads;
using experts_eval::RankedLoads;
using experts_eval::Rule;
using experts_eval::Score;
using experts_eval::SyntheticConfig;
using experts_eval::WeightedOptions;
using experts_eval::WeightedOutcome;

Loads loads_of(const Array<std::int32_t, 3>& counts) {
  const std::span<const std::int32_t> all = span_of(counts);
  return {size_of(counts, 0), size_of(counts, 1), size_of(counts, 2), {all.begin(), all.end()}};
}

void bind_loads(nb::module_& m) {
  nb::class_<SyntheticConfig>(m, "SyntheticConfig")
      .def(nb::init<>())
      .def_rw("steps", &SyntheticConfig::steps)
      .def_rw("layers", &SyntheticConfig::layers)
      .def_rw("experts", &SyntheticConfig::experts)
      .def_rw("top_k", &SyntheticConfig::top_k)
      .def_rw("tokens", &SyntheticConfig::tokens)
      .def_rw("sigma", &SyntheticConfig::sigma)
      .def_rw("zipf", &SyntheticConfig::zipf)
      .def_rw("drift", &SyntheticConfig::drift)
      .def_rw("burst_probability", &SyntheticConfig::burst_probability)
      .def_rw("burst_mean_steps", &SyntheticConfig::burst_mean_steps)
      .def_rw("burst_amplitude", &SyntheticConfig::burst_amplitude)
      .def_rw("burst_share", &SyntheticConfig::burst_share)
      .def_rw("seed", &SyntheticConfig::seed)
      .def_rw("draw", &SyntheticConfig::draw);
  nb::class_<Loads>(m, "Loads")
      .def_static("of", &loads_of, "counts"_a.noconvert())
      .def_static(
          "generate",
          [](const SyntheticConfig& config) { return unwrap(unlocked([&] { return generate(config); })); },
          "config"_a)
      .def_ro("steps", &Loads::steps)
      .def_ro("layers", &Loads::layers)
      .def_ro("experts", &Loads::experts)
      .def("counts", [](const Loads& self) {
        return to_numpy(self.counts, {extent(self.steps), extent(self.layers), extent(self.experts)});
      });
}

template <class F>
nb::object maps_of(const Shape& shape, std::int32_t layers, F&& plan) {
  std::vector<std::int32_t> maps;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    const experts::SlotMap map = unwrap(unlocked([&] { return plan(layer); }));
    maps.insert(maps.end(), map.begin(), map.end());
  }
  return to_numpy(std::move(maps), {extent(layers), extent(shape.slots)});
}

template <class T>
nb::object deepinfer_plan(const Shape& shape, const Array<T, 3>& loads) {
  const std::int32_t steps = size_of(loads, 0), layers = size_of(loads, 1), experts = size_of(loads, 2);
  const auto stride = static_cast<std::ptrdiff_t>(layers) * experts;
  return maps_of(shape, layers, [&](std::int32_t layer) -> base::Result<experts::SlotMap> {
    auto window = experts::LoadWindow::make(loads.data() + static_cast<std::ptrdiff_t>(layer) * experts,
                                            steps, experts, stride);
    if (!window) return tl::unexpected(window.error());
    return experts_eval::deepinfer_plan(shape, *window);
  });
}

void bind_rules(nb::module_& m) {
  m.def("deepinfer_plan", &deepinfer_plan<std::int32_t>, "shape"_a, "loads"_a.noconvert());
  m.def("deepinfer_plan", &deepinfer_plan<std::int64_t>, "shape"_a, "loads"_a.noconvert());
  m.def("deepinfer_plan", &deepinfer_plan<float>, "shape"_a, "loads"_a.noconvert());
  m.def("deepinfer_plan", &deepinfer_plan<double>, "shape"_a, "loads"_a.noconvert());
  m.def(
      "deepseek_plan",
      [](const Shape& shape, const Array<double, 2>& totals) {
        return maps_of(shape, size_of(totals, 0), [&](std::int32_t layer) {
          return experts_eval::deepseek_plan(
              shape, span_of(totals).subspan(extent(layer) * totals.shape(1), totals.shape(1)));
        });
      },
      "shape"_a, "totals"_a.noconvert());
  nb::class_<Rule>(m, "Rule")
      .def_static("none", &experts_eval::no_balancing)
      .def_static("deepinfer", &experts_eval::deepinfer_rule)
      .def_static("deepseek", &experts_eval::deepseek_rule)
      .def_static("own", &experts_eval::own_rule, "name"_a, "options"_a);
}

void bind_scores(nb::module_& m) {
  nb::class_<Score>(m, "Score", "Busiest rank against mean rank, copies sharing evenly.")
      .def_ro("of_sums", &Score::of_sums, "Sum of peaks over sum of means, over steps and layers.")
      .def_ro("mean_ratio", &Score::mean_ratio)
      .def_ro("moves", &Score::moves,
              "Received copies for each layer and step scored, the first plan's not counted.")
      .def_ro("moves_per_plan", &Score::moves_per_plan)
      .def_ro("slots_moved_ratio", &Score::slots_moved_ratio)
      .def_ro("plans", &Score::plans)
      .def_ro("duplicates", &Score::duplicates, "Second copies on a rank, of all plans.");
  m.def(
      "roll",
      [](const Loads& loads, const Shape& shape, const Rule& rule, std::int32_t window_steps,
         std::int32_t first_window_steps, std::int32_t period_steps, std::int32_t delay_steps,
         std::int32_t first_plan_step, std::int32_t end_step) {
        const experts_eval::RollingOptions options{window_steps, first_window_steps, period_steps,
                                                   delay_steps,  first_plan_step,    end_step};
        return unwrap(unlocked([&] { return roll(loads, shape, rule, options); }));
      },
      "loads"_a, "shape"_a, "rule"_a, "window_steps"_a, "first_window_steps"_a, "period_steps"_a,
      "delay_steps"_a, "first_plan_step"_a, "end_step"_a);
  m.def(
      "hold_out",
      [](const Loads& loads, const Shape& shape, const Rule& rule, std::int32_t window_steps, bool stale) {
        return unwrap(unlocked([&] { return hold_out(loads, shape, rule, window_steps, stale); }));
      },
      "loads"_a, "shape"_a, "rule"_a, "window_steps"_a, "stale"_a);
  m.def(
      "in_window",
      [](const Loads& loads, const Loads& scored, const Shape& shape, const Rule& rule,
         std::int32_t window_steps) {
        return unwrap(unlocked([&] { return in_window(loads, scored, shape, rule, window_steps); }));
      },
      "loads"_a, "scored"_a, "shape"_a, "rule"_a, "window_steps"_a);
  nb::class_<experts_eval::Paired>(m, "Paired")
      .def_ro("mean", &experts_eval::Paired::mean)
      .def_ro("standard_error", &experts_eval::Paired::standard_error)
      .def_ro("upper95", &experts_eval::Paired::upper95)
      .def_ro("seeds", &experts_eval::Paired::seeds);
  m.def(
      "paired",
      [](const std::vector<double>& a, const std::vector<double>& b) {
        if (a.size() != b.size() || a.size() < 2) {
          throw nb::value_error((std::to_string(a.size()) + " and " + std::to_string(b.size()) +
                                 " values: pairs need two or more of both")
                                    .c_str());
        }
        return experts_eval::paired(a, b);
      },
      "a"_a, "b"_a);
}

/// The handbook's simulation: its tokens' experts, [tokens, top_k].
nb::object seed_routing() {
  const experts_eval::SeedRouting routing = unlocked([] { return experts_eval::seed_routing(); });
  std::vector<std::int32_t> all;
  for (const auto& token : routing.tokens) all.insert(all.end(), token.begin(), token.end());
  return to_numpy(std::move(all), {routing.tokens.size(), experts_eval::SeedRouting::kTopK});
}

double nodes_per_token(const Shape& shape, const Array<std::int32_t, 1>& map,
                       const Array<std::int32_t, 2>& routing) {
  unwrap_status(experts::check(shape, span_of(map), false));
  for (const std::int32_t expert : span_of(routing)) {
    if (expert < 0 || expert >= shape.experts) {
      throw nb::value_error(("the routing names expert " + std::to_string(expert) + ": there are " +
                             std::to_string(shape.experts))
                                .c_str());
    }
  }
  return experts_eval::nodes_per_token(shape, span_of(map), span_of(routing), size_of(routing, 1));
}

void bind_weighted_options(nb::module_& m) {
  nb::enum_<experts_eval::RollingPlanner>(m, "RollingPlanner")
      .value("keep", experts_eval::RollingPlanner::kKeep)
      .value("published", experts_eval::RollingPlanner::kPublished)
      .value("incremental", experts_eval::RollingPlanner::kIncremental)
      .value("repair", experts_eval::RollingPlanner::kRepair);
  nb::class_<WeightedOptions>(m, "WeightedOptions")
      .def(nb::init<>())
      .def_rw("planner", &WeightedOptions::planner)
      .def_rw("every_steps", &WeightedOptions::every_steps)
      .def_rw("window_steps", &WeightedOptions::window_steps)
      .def_rw("recency_steps", &WeightedOptions::recency_steps)
      .def_rw("move_price", &WeightedOptions::move_price)
      .def_rw("delay_steps", &WeightedOptions::delay_steps)
      .def_rw("first_step", &WeightedOptions::first_step)
      .def_rw("first_window_steps", &WeightedOptions::first_window_steps)
      .def_rw("parts", &WeightedOptions::parts)
      .def_prop_rw(
          "repair_tolerance", [](const WeightedOptions& self) { return self.repair.tolerance; },
          [](WeightedOptions& self, double value) { self.repair.tolerance = value; })
      .def_prop_rw(
          "repair_gain_min", [](const WeightedOptions& self) { return self.repair.gain_min; },
          [](WeightedOptions& self, double value) { self.repair.gain_min = value; })
      .def_prop_rw(
          "estimate", [](const WeightedOptions& self) { return self.estimator.kind; },
          [](WeightedOptions& self, experts::Estimate value) { self.estimator.kind = value; })
      .def_prop_rw(
          "memory_steps", [](const WeightedOptions& self) { return self.estimator.memory_steps; },
          [](WeightedOptions& self, double value) { self.estimator.memory_steps = value; });
}

void bind_weighted(nb::module_& m) {
  nb::class_<RankedLoads>(m, "RankedLoads")
      .def_static(
          "spread",
          [](const Loads& loads, std::int32_t layer, std::int32_t ranks, std::uint64_t seed) {
            if (layer < 0 || layer >= loads.layers || ranks < 1)
              throw nb::value_error(("layer " + std::to_string(layer) + ", " + std::to_string(ranks) +
                                     " ranks: there are " + std::to_string(loads.layers) + " layers")
                                        .c_str());
            return unlocked([&] {
              return RankedLoads::spread(loads.at(0, layer), loads.steps, loads.experts, loads.step_stride(),
                                         ranks, seed);
            });
          },
          "loads"_a, "layer"_a, "ranks"_a, "seed"_a)
      .def_static(
          "serve_mix",
          [](const std::vector<Array<std::uint8_t, 4>>& texts, std::int32_t layer, std::int32_t experts,
             std::int32_t ranks, std::int32_t requests, std::int32_t steps, std::int32_t shift_steps,
             std::uint64_t seed) {
            std::vector<experts_eval::RoutedText> routed;
            for (const auto& text : texts)
              routed.push_back(
                  {text.data(), size_of(text, 0), size_of(text, 1), size_of(text, 2), size_of(text, 3)});
            const experts_eval::ServedMix mix{requests, steps, shift_steps, seed};
            return unwrap(
                unlocked([&] { return experts_eval::serve_mix(routed, layer, experts, ranks, mix); }));
          },
          "texts"_a, "layer"_a, "experts"_a, "ranks"_a, "requests"_a, "steps"_a, "shift_steps"_a, "seed"_a)
      .def("counts", [](const RankedLoads& self) {
        const std::size_t size = extent(self.steps()) * extent(self.experts());
        return to_numpy(std::vector<std::int32_t>(self.data(), self.data() + size),
                        {extent(self.steps()), extent(self.experts())});
      });
  nb::class_<WeightedOutcome>(m, "WeightedOutcome")
      .def(nb::init<>())
      .def("add", [](WeightedOutcome& self, const WeightedOutcome& other) { self += other; })
      .def_prop_ro("even", [](const WeightedOutcome& self) { return self.ratio(self.even); })
      .def_prop_ro("weighted", [](const WeightedOutcome& self) { return self.ratio(self.weighted); })
      .def_prop_ro("integer", [](const WeightedOutcome& self) { return self.ratio(self.integer); })
      .def_prop_ro("bound", [](const WeightedOutcome& self) { return self.ratio(self.bound); })
      .def_ro("received", &WeightedOutcome::received)
      .def_ro("steps", &WeightedOutcome::steps)
      .def_prop_ro("moves", &WeightedOutcome::moves_per_step, "Received copies for each layer and step.");
  m.def(
      "weighted_rolling",
      [](const Shape& shape, const RankedLoads& loads, const WeightedOptions& options) {
        return unwrap(unlocked([&] { return weighted_rolling(shape, loads, options); }));
      },
      "shape"_a, "loads"_a, "options"_a);
}

}  // namespace

void bind_experts_evaluation(nb::module_& m) {
  bind_loads(m);
  bind_rules(m);
  bind_scores(m);
  bind_weighted_options(m);
  bind_weighted(m);
  m.def("seed_routing", &seed_routing);
  m.def("nodes_per_token", &nodes_per_token, "shape"_a, "map"_a.noconvert(), "routing"_a.noconvert());
}

}  // namespace trimtab::python
