#include "experts_eval/rolling.h"

namespace trimtab::experts_eval {

Rule own_rule(std::string name, const experts::PlanOptions& options) {
  const auto plan = [](const experts::PlanOptions& with) {
    return [with](const experts::Shape& shape, const experts::LoadWindow& window,
                  std::span<const std::int32_t> current) -> base::Result<experts::SlotMap> {
      auto made = experts::plan_layer(shape, window, current, with);
      if (!made) return tl::unexpected(made.error());
      return std::move(made->map);
    };
  };
  experts::PlanOptions first = options;
  first.start = experts::Start::kFresh;
  return {std::move(name), plan(first), plan(options)};
}

}  // namespace trimtab::experts_eval
