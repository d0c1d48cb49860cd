#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "experts_arrays.h"
#include "policy/experts/drift.h"
#include "policy/experts/moves/batches.h"
#include "policy/experts/moves/move_plan.h"
#include "policy/experts/statistics.h"

namespace trimtab::python {

namespace {

using namespace nb::literals;
using experts::DriftVerdict;
using experts::MovePlan;
using experts::Shape;
using experts::Statistics;
using experts::StatisticsConfig;
using experts::Worth;

StatisticsConfig preset(const std::string& phase, std::int32_t experts, std::int32_t ranks,
                        std::int32_t layers) {
  if (phase != "prefill" && phase != "decode")
    throw nb::value_error(("phase '" + phase + "' is neither 'prefill' nor 'decode'").c_str());
  return experts::preset(phase == "prefill" ? experts::Phase::kPrefill : experts::Phase::kDecode, experts,
                         ranks, layers);
}

void bind_statistics(nb::module_& m) {
  using Maps = Array<std::int32_t, 2>;
  nb::class_<StatisticsConfig>(m, "StatisticsConfig")
      .def(nb::init<>())
      .def_static("preset", &preset, "phase"_a, "experts"_a, "ranks"_a, "layers"_a)
      .def_rw("shape", &StatisticsConfig::shape)
      .def_rw("layers", &StatisticsConfig::layers)
      .def_rw("window_steps", &StatisticsConfig::window_steps)
      .def_rw("interval_steps", &StatisticsConfig::interval_steps)
      .def_rw("local_rank", &StatisticsConfig::local_rank);
  nb::class_<Statistics>(m, "Statistics")
      .def_static(
          "make",
          [](const StatisticsConfig& config, const Maps& maps) {
            return unwrap(Statistics::make(config, span_of(maps)));
          },
          "config"_a, "maps"_a.noconvert())
      .def(
          "set_map",
          [](Statistics& self, std::int32_t layer, const Array<std::int32_t, 1>& map) {
            unwrap_status(self.set_map(layer, span_of(map)));
          },
          "layer"_a, "map"_a.noconvert())
      .def(
          "reshape",
          [](Statistics& self, const Shape& shape, const Maps& maps) {
            unwrap_status(self.reshape(shape, span_of(maps)));
          },
          "shape"_a, "maps"_a.noconvert())
      .def(
          "add",
          [](Statistics& self, std::int32_t rank, const Maps& counts, const Maps& padding) {
            unwrap_status(self.add(rank, span_of(counts), span_of(padding)));
          },
          "rank"_a, "counts"_a.noconvert(), "padding"_a.noconvert())
      .def(
          "end_step",
          [](Statistics& self, bool counts) {
            switch (self.end_step(counts ? experts::StepUse::kCount : experts::StepUse::kIgnore)) {
              case experts::StepOutcome::kRecorded:
                return "recorded";
              case experts::StepOutcome::kIgnored:
                return "ignored";
              case experts::StepOutcome::kIncomplete:
                return "incomplete";
            }
            return "";
          },
          "counts"_a)
      .def("due", &Statistics::due)
      .def("restart_interval", &Statistics::restart_interval)
      .def("windows",
           [](const Statistics& self) {
             return to_numpy(self.windows(), {extent(self.steps()), extent(self.config().layers),
                                              extent(self.config().shape.experts)});
           })
      .def("measured_balance", &Statistics::measured_balance, "steps"_a)
      .def_prop_ro("steps", &Statistics::steps)
      .def_prop_ro("overdue_steps", &Statistics::overdue_steps)
      .def_prop_ro("counted_steps", &Statistics::counted_steps)
      .def_prop_ro("ignored_steps", &Statistics::ignored_steps)
      .def_prop_ro("incomplete_steps", &Statistics::incomplete_steps)
      .def_prop_ro("config", &Statistics::config);
}

void bind_drift(nb::module_& m) {
  nb::class_<DriftVerdict>(m, "DriftVerdict")
      .def_ro("alarm", &DriftVerdict::alarm)
      .def_ro("promised", &DriftVerdict::promised)
      .def_ro("noise_floor", &DriftVerdict::noise_floor)
      .def_ro("held_out", &DriftVerdict::held_out)
      .def_ro("standard_error", &DriftVerdict::standard_error)
      .def_ro("threshold", &DriftVerdict::threshold)
      .def_ro("steps", &DriftVerdict::steps)
      .def("__str__", [](const DriftVerdict& self) { return experts::describe(self); });
  nb::class_<experts::DriftDetector>(m, "DriftDetector")
      .def_static(
          "make",
          [](std::int32_t ranks, std::int32_t steps_max, std::int32_t steps_min, double tolerance,
             double sigmas, std::int32_t confirm_steps, std::int32_t quiet_steps) {
            return unwrap(experts::DriftDetector::make(
                {steps_max, steps_min, tolerance, sigmas, confirm_steps, quiet_steps}, ranks));
          },
          "ranks"_a, "steps_max"_a, "steps_min"_a, "tolerance"_a, "sigmas"_a, "confirm_steps"_a,
          "quiet_steps"_a)
      .def(
          "promise",
          [](experts::DriftDetector& self, double balance) { unwrap_status(self.promise(balance)); },
          "balance"_a)
      .def("dismiss", &experts::DriftDetector::dismiss)
      .def(
          "observe",
          [](experts::DriftDetector& self, double busiest_tokens, double mean_tokens) {
            return unwrap(self.observe(busiest_tokens, mean_tokens));
          },
          "busiest_tokens"_a, "mean_tokens"_a)
      .def("verdict", [](const experts::DriftDetector& self) { return self.verdict(); });
  nb::class_<Worth>(m, "Worth")
      .def_ro("pays", &Worth::pays)
      .def_ro("gain_ns_per_step", &Worth::gain_ns_per_step)
      .def_ro("gain_ns", &Worth::gain_ns)
      .def_ro("cost_ns", &Worth::cost_ns)
      .def_ro("break_even_steps", &Worth::break_even_steps);
  m.def(
      "worth",
      [](double balance_now, double balance_planned, double gain_kept_ratio, double noise_floor,
         double step_ns, double steps_until_next, double bytes_busiest_rank, double bandwidth_bytes_per_s,
         double stall_ratio, double payback_ratio) {
        return unwrap(experts::worth({balance_now, balance_planned, gain_kept_ratio, noise_floor, step_ns,
                                      steps_until_next, bytes_busiest_rank, bandwidth_bytes_per_s,
                                      stall_ratio, payback_ratio}));
      },
      "balance_now"_a, "balance_planned"_a, "gain_kept_ratio"_a, "noise_floor"_a, "step_ns"_a,
      "steps_until_next"_a, "bytes_busiest_rank"_a, "bandwidth_bytes_per_s"_a, "stall_ratio"_a,
      "payback_ratio"_a);
  m.def("noise_floor", &experts::noise_floor, "ranks"_a, "mean_tokens"_a);
}

MovePlan plan_moves(const Shape& before, const Array<std::int32_t, 1>& map_before, const Shape& after,
                    const Array<std::int32_t, 1>& map_after, const Array<std::int32_t, 1>& rank_before,
                    const Array<std::int32_t, 1>& lost, const experts::MoveOptions& options) {
  experts::MoveRequest request;
  request.before = before;
  request.after = after;
  request.map_before = span_of(map_before);
  request.map_after = span_of(map_after);
  request.rank_before = span_of(rank_before);
  request.lost = span_of(lost);
  request.options = options;
  return unwrap(experts::plan_moves(request));
}

/// kind, expert, (host, slot) it comes from, (host, slot) it goes to.
using MoveTuple = std::tuple<const char*, std::int32_t, std::tuple<std::int32_t, std::int32_t>,
                             std::tuple<std::int32_t, std::int32_t>>;

std::vector<std::vector<MoveTuple>> batches(const MovePlan& self) {
  std::vector<std::vector<MoveTuple>> out;
  for (const experts::MoveBatch& batch : self.batches) {
    out.emplace_back();
    for (const experts::Move& move : batch) {
      const char* kind = move.kind == experts::MoveKind::kLocal  ? "local"
                         : move.kind == experts::MoveKind::kSend ? "send"
                                                                 : "reload";
      out.back().push_back(
          {kind, move.expert, {move.from.host, move.from.slot}, {move.to.host, move.to.slot}});
    }
  }
  return out;
}

void bind_moves(nb::module_& m) {
  using experts::MoveOptions;
  nb::class_<MoveOptions>(m, "MoveOptions")
      .def(nb::init<>())
      .def_rw("staging_slots", &MoveOptions::staging_slots)
      .def_rw("keep_old_map", &MoveOptions::keep_old_map)
      .def_rw("same_node_first", &MoveOptions::same_node_first)
      .def_prop_rw(
          "bytes_per_copy", [](const MoveOptions& self) { return self.budget.bytes_per_copy; },
          [](MoveOptions& self, std::int64_t value) { self.budget.bytes_per_copy = value; })
      .def_prop_rw(
          "link_bytes_per_s", [](const MoveOptions& self) { return self.budget.link_bytes_per_s; },
          [](MoveOptions& self, std::int64_t value) { self.budget.link_bytes_per_s = value; })
      .def_prop_rw(
          "stall_ns", [](const MoveOptions& self) { return self.budget.stall_ns; },
          [](MoveOptions& self, std::int64_t value) { self.budget.stall_ns = value; });
  nb::class_<MovePlan>(m, "MovePlan")
      .def_prop_ro("batches", &batches)
      .def_ro("hosts", &MovePlan::hosts)
      .def_ro("width", &MovePlan::width)
      .def_ro("staging", &MovePlan::staging)
      .def_ro("slices", &MovePlan::slices)
      .def_ro("bytes_per_copy", &MovePlan::bytes_per_copy)
      .def_ro("sends_max_bound", &MovePlan::sends_max_bound)
      .def_ro("stall_ns", &MovePlan::stall_ns)
      .def_ro("reloaded", &MovePlan::reloaded)
      .def_prop_ro("sends_max", &MovePlan::sends_max)
      .def_prop_ro("receives_max", &MovePlan::receives_max)
      .def_prop_ro("received", &MovePlan::received)
      .def("by_host",
           [](const MovePlan& self) {
             std::vector<std::int64_t> out;
             for (const experts::HostMoves& host : self.by_host)
               out.insert(out.end(), {host.sends, host.receives, host.locals, host.reloads});
             return to_numpy(std::move(out), {self.by_host.size(), 4});
           })
      .def(
          "valid_places",
          [](const MovePlan& self, std::int32_t batch, bool running) {
            if (batch < 0 || extent(batch) > self.batches.size()) {
              throw nb::value_error(("batch " + std::to_string(batch) + " is not one of 0 to " +
                                     std::to_string(self.batches.size()))
                                        .c_str());
            }
            return to_numpy(experts::valid_places(self, batch, running),
                            {extent(self.hosts), extent(self.places_per_host())});
          },
          "batch"_a, "running"_a)
      .def("__str__", [](const MovePlan& self) { return experts::describe(self); });
  m.def("plan_moves", &plan_moves, "before"_a, "map_before"_a.noconvert(), "after"_a,
        "map_after"_a.noconvert(), "rank_before"_a.noconvert(), "lost"_a.noconvert(), "options"_a);
}

}  // namespace

void bind_experts_runtime(nb::module_& m) {
  bind_statistics(m);
  bind_drift(m);
  bind_moves(m);
}

}  // namespace trimtab::python
