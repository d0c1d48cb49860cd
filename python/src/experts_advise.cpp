#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "experts_arrays.h"
#include "experts_eval/advise.h"

namespace trimtab::python {

using namespace nb::literals;
using experts_eval::Advice;
using experts_eval::AdviseOptions;

void bind_experts_advise(nb::module_& m) {
  nb::class_<AdviseOptions>(m, "AdviseOptions")
      .def(nb::init<>())
      .def_rw("ep_sizes", &AdviseOptions::ep_sizes)
      .def_rw("redundant_per_rank", &AdviseOptions::redundant_per_rank)
      .def_rw("model_layers", &AdviseOptions::model_layers)
      .def_rw("expert_bytes", &AdviseOptions::expert_bytes)
      .def_rw("moe_step_share", &AdviseOptions::moe_step_share)
      .def_rw("step_ns", &AdviseOptions::step_ns)
      .def_rw("link_bytes_per_second", &AdviseOptions::link_bytes_per_second)
      .def_rw("moves_stall_share", &AdviseOptions::moves_stall_share)
      .def_rw("window_steps", &AdviseOptions::window_steps)
      .def_rw("period_steps", &AdviseOptions::period_steps)
      .def_rw("recency_steps", &AdviseOptions::recency_steps)
      .def_rw("move_price", &AdviseOptions::move_price)
      .def_rw("layers_max", &AdviseOptions::layers_max);
  nb::class_<Advice>(m, "Advice", "One EP size with one number of slots.")
      .def_ro("ep_size", &Advice::ep_size)
      .def_ro("slots", &Advice::slots)
      .def_ro("slots_per_rank", &Advice::slots_per_rank)
      .def_ro("redundant", &Advice::redundant)
      .def_ro("period_steps", &Advice::period_steps)
      .def_ro("balance_none", &Advice::balance_none)
      .def_ro("balance_static", &Advice::balance_static)
      .def_ro("balance", &Advice::balance)
      .def_ro("memory_bytes", &Advice::memory_bytes)
      .def_ro("memory_bytes_per_rank", &Advice::memory_bytes_per_rank)
      .def_ro("step_saved_ratio", &Advice::step_saved_ratio)
      .def_ro("step_saved_net_ratio", &Advice::step_saved_net_ratio)
      .def_ro("moves_per_layer_step", &Advice::moves_per_layer_step)
      .def_ro("moves_per_plan", &Advice::moves_per_plan)
      .def_ro("first_moves_ns", &Advice::first_moves_ns)
      .def_ro("plan_moves_ns", &Advice::plan_moves_ns)
      .def_ro("break_even_steps", &Advice::break_even_steps)
      .def_ro("period_min_steps", &Advice::period_min_steps)
      .def_ro("knee", &Advice::knee)
      .def("__str__", [](const Advice& self) { return experts_eval::describe(self); });
  m.def(
      "advise",
      [](const experts_eval::Loads& loads, const AdviseOptions& options) {
        experts_eval::AdviseResult result =
            unwrap(unlocked([&] { return experts_eval::advise(loads, options); }));
        return std::pair{std::move(result.rows), result.best_row};
      },
      "loads"_a, "options"_a, "(rows, index of the best one).");
}

}  // namespace trimtab::python
