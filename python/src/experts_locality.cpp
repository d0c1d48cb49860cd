#include <nanobind/stl/pair.h>

#include <span>
#include <utility>
#include <vector>

#include "experts_arrays.h"
#include "policy/experts/dispatch/locality.h"

namespace trimtab::python {

using namespace nb::literals;
using experts::Shape;
using Map = Array<std::int32_t, 1>;  // [slots]

void bind_experts_locality(nb::module_& m) {
  m.def(
      "count_nodes",
      [](const Shape& shape, const Array<std::int32_t, 2>& slots, const Map& source_rank) {
        const experts::NodeCount found =
            experts::count_nodes(shape, span_of(slots), size_of(slots, 1), span_of(source_rank));
        return std::pair{found.nodes_per_token, found.remote_nodes_per_token};
      },
      "shape"_a, "slots"_a.noconvert(), "source_rank"_a.noconvert());
  nb::enum_<experts::Near>(m, "Near").value("node", experts::Near::kNode).value("rank", experts::Near::kRank);
  nb::class_<experts::LocalityResult>(m, "LocalityResult")
      .def_ro("optimum_tokens", &experts::LocalityResult::optimum_tokens)
      .def_ro("peak_tokens", &experts::LocalityResult::peak_tokens)
      .def_ro("on_rank_tokens", &experts::LocalityResult::on_rank_tokens)
      .def_ro("on_node_tokens", &experts::LocalityResult::on_node_tokens)
      .def_ro("on_rank_blind", &experts::LocalityResult::on_rank_blind)
      .def_ro("on_node_blind", &experts::LocalityResult::on_node_blind)
      .def_ro("total_tokens", &experts::LocalityResult::total_tokens);
  nb::class_<experts::LocalShares>(m, "LocalShares")
      .def_static(
          "make",
          [](const Shape& shape, const Map& map, experts::Near near, double slack, std::int32_t parts) {
            return unwrap(experts::LocalShares::make(shape, span_of(map), {near, slack, parts}));
          },
          "shape"_a, "map"_a.noconvert(), "near"_a, "slack"_a, "parts"_a)
      .def_prop_ro("sources", &experts::LocalShares::sources)
      .def(
          "solve",
          [](experts::LocalShares& self, const Array<double, 1>& tokens) {
            return unwrap(self.solve(span_of(tokens)));
          },
          "tokens"_a.noconvert())
      .def(
          "solve",
          [](experts::LocalShares& self, const Array<double, 2>& tokens) {
            return unwrap(self.solve_sources(span_of(tokens)));
          },
          "tokens"_a.noconvert())
      .def("table", [](const experts::LocalShares& self, std::int32_t source) {
        if (source < 0 || source >= self.sources()) {
          throw nb::value_error(("source " + std::to_string(source) + " is not one of 0 to " +
                                 std::to_string(self.sources() - 1))
                                    .c_str());
        }
        const experts::ShareTable& table = self.table(source);
        const std::span<const std::uint16_t> parts = table.table();
        return to_numpy(std::vector<std::uint16_t>(parts.begin(), parts.end()),
                        {parts.size() / extent(table.copies_max()), extent(table.copies_max())});
      });
}

}  // namespace trimtab::python
