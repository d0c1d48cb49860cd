#pragma once

#include "config/strict_table.h"
#include "model/scenario.h"

namespace trimtab::config {

/// `[simulation.experts]`: loads of experts and what balances them.
void read_experts(StrictTable table, model::ExpertModel& out);
/// `[simulation.verify]`: drafts, and who decides how many are verified.
void read_verify(StrictTable table, model::VerifyModel& out);

}  // namespace trimtab::config
