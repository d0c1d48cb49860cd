#pragma once

#include <string_view>
#include <vector>

#include "config/strict_table.h"
#include "model/scenario.h"

namespace trimtab::config {

/// The words for the values of model::ExpertPolicy and model::VerifyPolicy, in their order.
const std::vector<std::string_view>& expert_policy_words();
const std::vector<std::string_view>& verify_policy_words();

/// `[simulation.experts]`: loads of experts and what balances them.
void read_experts(StrictTable table, model::ExpertModel& out);
/// `[simulation.verify]`: drafts, and who decides how many are verified.
void read_verify(StrictTable table, model::VerifyModel& out);

}  // namespace trimtab::config
