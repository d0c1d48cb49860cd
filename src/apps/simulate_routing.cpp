#include "apps/simulate_routing.h"

#include <filesystem>
#include <utility>

#include "io/expert_routing.h"

namespace trimtab::apps {

base::Status read_routing(model::Scenario& scenario, const std::string& scenario_path,
                          bool experts_modelled) {
  model::ExpertModel& model = scenario.experts;
  if (model.routing.empty()) return {};
  if (!experts_modelled) {
    return base::fail(base::Code::kInvalidArgument,
                      "routing is given and no experts are modelled: set policy, or --expert-policy",
                      "simulation.experts");
  }
  const std::filesystem::path path = std::filesystem::path(scenario_path).parent_path() / model.routing;
  auto routing = io::read_expert_routing(path.string(), model.layers, model.experts);
  if (!routing) return tl::unexpected<base::Error>(routing.error());
  model.popularity = std::move(routing->popularity);
  if (model.per_token == 0) model.per_token = routing->per_token;
  return {};
}

}  // namespace trimtab::apps
