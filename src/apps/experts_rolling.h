#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "experts_eval/rolling.h"
#include "io/expert_loads.h"
#include "policy/experts/types.h"

namespace trimtab::apps {

/// How a rule did over all layers.
struct RuleScore {
  std::string name;
  experts_eval::Score score;
};

struct RollingArguments {
  std::int32_t window = 40, every = 5, peer_every = 20, delay = 0,
               first_step = 0;  // 0: after the first window
  std::int32_t threads = 0;
  experts::PlanOptions options;
};

/// One layer, or all, in whole tokens. Errors: counts that are no whole numbers up to 2^31 - 1.
base::Result<experts_eval::Loads> layer_tokens(const io::ExpertLoads& loads, std::int32_t layer);
base::Result<experts_eval::Loads> all_tokens(const io::ExpertLoads& loads);

/// Rolls through the loads: by number for ever, DeepInfer's rule every `peer_every` steps, our incremental
/// plans every `every` steps. Layers in parallel. Errors: counts that are no whole numbers up to 2^31 - 1,
/// too few steps (the message says how many are needed).
base::Result<std::vector<RuleScore>> roll_rules(const io::ExpertLoads& loads, const experts::Shape& shape,
                                                const RollingArguments& arguments);
/// Three windows: the first plan, the next plan, and the one that is scored.
base::Result<std::vector<RuleScore>> hold_out_rules(const io::ExpertLoads& loads, const experts::Shape& shape,
                                                    const RollingArguments& arguments);

}  // namespace trimtab::apps
