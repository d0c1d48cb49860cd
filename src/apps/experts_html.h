#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/experts_rolling.h"
#include "apps/experts_view.h"
#include "experts_eval/advise.h"
#include "io/expert_loads.h"

namespace trimtab::apps {

/// What a page about maps shows: one map, or one before another, of all layers.
struct MapsPage {
  std::string title, subtitle;
  std::string before_name, after_name;  // empty `after_name`: there is only one map
  std::vector<LayerScore> scores;       // by layer
  std::vector<experts::SlotMap> before, after;
  experts::Shape shape_before, shape;  // slots may differ
  std::int32_t layer = 0;              // drawn in full
};
/// Balance by layer, ranks by layer, the copies on every rank of one layer, and its balance step by step.
std::string maps_html(const MapsPage& page, const io::ExpertLoads& loads);

/// Planning rules beside one another (evaluate --rolling, --heldout).
std::string rules_html(const std::vector<RuleScore>& rules, const std::string& title,
                       const std::string& subtitle);

/// Balance and saving against slots, by EP size.
std::string advice_html(const experts_eval::AdviseResult& result, const std::string& subtitle);

}  // namespace trimtab::apps
