#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <tuple>

#include "experts_arrays.h"
#include "policy/experts/dispatch/estimator.h"
#include "policy/experts/dispatch/replica.h"
#include "policy/experts/dispatch/share_table.h"
#include "policy/experts/dispatch/shares.h"
#include "policy/experts/dispatch/tables.h"
#include "policy/experts/plan/repair.h"

namespace trimtab::python {

namespace {

using namespace nb::literals;
using experts::Shape;
using Map = Array<std::int32_t, 1>;  // [slots]

std::tuple<nb::object, nb::object, nb::object> tables(const Shape& shape, const Array<std::int32_t, 2>& maps,
                                                      bool tightest) {
  const auto width = tightest ? experts::TableWidth::kTightest : experts::TableWidth::kEngine;
  experts::DispatchTables made = unwrap(experts::dispatch_tables(shape, span_of(maps), width));
  const std::size_t layers = extent(made.layers), experts = extent(made.experts);
  return {to_numpy(std::move(made.physical_to_logical), {layers, extent(made.slots)}),
          to_numpy(std::move(made.logical_to_physical), {layers, experts, extent(made.copies_max)}),
          to_numpy(std::move(made.logical_count), {layers, experts})};
}

/// Solver and table of one layer, made for the same map.
struct Shares {
  experts::ShareSolver solver;
  experts::ShareTable table;

  static Shares make(const Shape& shape, const Map& map, std::int32_t copies_max, std::int32_t parts) {
    return {unwrap(experts::ShareSolver::make(shape, span_of(map))),
            unwrap(experts::ShareTable::make(shape, span_of(map), copies_max, parts))};
  }
  template <class T>
  experts::ShareResult solve(const Array<T, 1>& tokens) {
    return unwrap(solver.solve(span_of(tokens)));
  }
  nb::object shares() const {
    std::vector<double> out(extent(solver.shape().slots));
    solver.shares(out);
    const std::size_t slots = out.size();
    return to_numpy(std::move(out), {slots});
  }
  nb::object parts() const {
    const std::span<const std::uint16_t> all = table.table();
    return to_numpy(std::vector<std::uint16_t>(all.begin(), all.end()),
                    {extent(solver.shape().experts), extent(table.copies_max())});
  }
  void check_choice(std::int64_t expert, std::int64_t rank) const {
    if (expert < 0 || expert >= solver.shape().experts || rank < 0 || rank >= solver.shape().ranks) {
      throw nb::value_error(("expert " + std::to_string(expert) + " on rank " + std::to_string(rank) +
                             ": there are " + std::to_string(solver.shape().experts) + " experts and " +
                             std::to_string(solver.shape().ranks) + " ranks")
                                .c_str());
    }
  }
  nb::object split(std::int32_t expert, std::int32_t rank, std::int64_t tokens) const {
    check_choice(expert, rank);
    if (tokens < 0 || tokens > 0x7fffffff) {
      throw nb::value_error((std::to_string(tokens) + " tokens: use 0 to 2**31 - 1").c_str());
    }
    std::vector<std::int64_t> out(extent(table.copies_max()));
    table.split(expert, rank, tokens, out);
    const std::size_t width = out.size();
    return to_numpy(std::move(out), {width});
  }
  /// The slot of each choice that a rank's batch makes, in the order of the batch.
  nb::object route(std::int32_t rank, const Array<std::int32_t, 2>& choices) const {
    const std::span<const std::int32_t> all = span_of(choices);
    std::vector<std::int64_t> tokens(extent(solver.shape().experts)), seen(tokens.size());
    for (const std::int32_t expert : all) {
      check_choice(expert, rank);
      ++tokens[extent(expert)];
    }
    std::vector<std::int32_t> slots;
    slots.reserve(all.size());
    for (const std::int32_t expert : all)
      slots.push_back(table.slot_of(expert, rank, seen[extent(expert)]++, tokens[extent(expert)]));
    return to_numpy(std::move(slots), {choices.shape(0), choices.shape(1)});
  }
};

void bind_shares(nb::module_& m) {
  nb::class_<experts::ShareResult>(m, "ShareResult")
      .def_ro("peak_tokens", &experts::ShareResult::peak_tokens, "Busiest rank under the shares.")
      .def_ro("bound_tokens", &experts::ShareResult::bound_tokens, "What no shares can beat.")
      .def_ro("mean_tokens", &experts::ShareResult::mean_tokens);
  nb::class_<Shares>(m, "Shares")
      .def_static("make", &Shares::make, "shape"_a, "map"_a.noconvert(), "copies_max"_a, "parts"_a)
      .def("solve", &Shares::solve<std::int64_t>, "tokens"_a.noconvert())
      .def("solve", &Shares::solve<double>, "tokens"_a.noconvert())
      .def("shares", &Shares::shares)
      .def("quantise", [](Shares& self) { self.table.set(self.solver); })
      .def("parts", &Shares::parts)
      .def("split", &Shares::split, "expert"_a, "rank"_a, "tokens"_a)
      .def("route", &Shares::route, "rank"_a, "choices"_a.noconvert())
      .def("tight_ranks", [](const Shares& self) {
        const std::span<const std::int32_t> tight = self.solver.tight_ranks();
        return std::vector<std::int32_t>(tight.begin(), tight.end());
      });
}

void bind_estimator(nb::module_& m) {
  nb::enum_<experts::Estimate>(m, "Estimate")
      .value("last", experts::Estimate::kLast)
      .value("mean", experts::Estimate::kMean)
      .value("adaptive", experts::Estimate::kAdaptive);
  nb::class_<experts::LoadEstimator>(m, "LoadEstimator")
      .def(
          "__init__",
          [](experts::LoadEstimator* self, std::int32_t experts, experts::Estimate kind,
             double memory_steps) {
            new (self) experts::LoadEstimator(experts, {.kind = kind, .memory_steps = memory_steps});
          },
          "experts"_a, "kind"_a, "memory_steps"_a)
      .def(
          "observe",
          [](experts::LoadEstimator& self, const Array<std::int64_t, 1>& tokens) {
            self.observe(span_of(tokens));
          },
          "tokens"_a.noconvert())
      .def(
          "observe",
          [](experts::LoadEstimator& self, const Array<double, 1>& tokens) { self.observe(span_of(tokens)); },
          "tokens"_a.noconvert())
      .def_prop_ro("restarts", &experts::LoadEstimator::restarts)
      .def("estimate", [](const experts::LoadEstimator& self) {
        const std::span<const double> mean = self.estimate();
        return to_numpy(std::vector<double>(mean.begin(), mean.end()), {mean.size()});
      });
}

void bind_repair(nb::module_& m) {
  nb::class_<experts::Repair>(m, "Repair")
      .def_prop_ro("map", [](const experts::Repair& self) { return to_numpy(self.map, {self.map.size()}); })
      .def_ro("value_before", &experts::Repair::value_before)
      .def_ro("value", &experts::Repair::value)
      .def_ro("overload_before", &experts::Repair::overload_before)
      .def_ro("overload", &experts::Repair::overload)
      .def_ro("received", &experts::Repair::received)
      .def_ro("trials", &experts::Repair::trials);
  nb::class_<experts::Repairer>(m, "Repairer")
      .def(
          "__init__",
          [](experts::Repairer* self, double tolerance, double gain_min, std::int32_t moves_max) {
            experts::RepairOptions options;
            options.tolerance = tolerance;
            options.gain_min = gain_min;
            options.moves_max = moves_max;
            new (self) experts::Repairer(options);
          },
          "tolerance"_a, "gain_min"_a, "moves_max"_a)
      .def(
          "repair",
          [](experts::Repairer& self, const Shape& shape, const Array<double, 1>& tokens,
             const Map& current) {
            auto repaired = unlocked([&] { return self.repair(shape, span_of(tokens), span_of(current)); });
            return unwrap(std::move(repaired));
          },
          "shape"_a, "tokens"_a.noconvert(), "current"_a.noconvert());
}

}  // namespace

void bind_experts_dispatch(nb::module_& m) {
  m.def("tables", &tables, "shape"_a, "maps"_a.noconvert(), "tightest"_a);
  m.def("replica_of", &experts::replica_of, "rank"_a, "token"_a, "copies"_a);
  bind_shares(m);
  bind_estimator(m);
  bind_repair(m);
}

}  // namespace trimtab::python
