#include "policy/decode/study/study_cases.h"

namespace trimtab::policy {
namespace {

constexpr std::int64_t kStepNs = 33'333'333;

using Shapes = std::vector<StudyRow::Shape>;

/// Placer with its own accounting of what it places, blind to streams: reports every 32 steps.
StudyCase blind() {
  StudyCase made;
  made.report_every = 32;
  made.sees_streams = false;
  return made;
}
/// The gateway's own placer: the same reports, and every token and end of its streams.
StudyCase streams() {
  StudyCase made;
  made.report_every = 32;
  return made;
}
StudyCase four_placers(bool leases) {
  StudyCase made;
  made.placers = 4;
  made.config.placers = leases ? 4 : 1;
  made.report_every = 1;
  made.report_age = 3;
  return made;
}
StudyCase looking_ahead(StudyCase made, std::int64_t window, std::int64_t hold_steps) {
  made.config.window = window;
  made.config.hold_max = Nanos{hold_steps * kStepNs};
  return made;
}
StudyCase moving(StudyCase made, std::int64_t window) {
  made.config.window = window;
  made.config.moves_permille = 150;
  made.config.move_interval = Nanos{8 * kStepNs};
  made.config.move_rest = Nanos{64 * kStepNs};
  return made;
}
StudyCase slow_half() {
  StudyCase made;
  made.slow_half = true;
  return made;
}
StudyCase padded(StudyCase made) {
  made.graph_step = made.config.graph_step = 8;
  return made;
}

Shapes shapes(double a, double b, double c) { return {{32, 64, a}, {32, 16, b}, {144, 16, c}}; }

}  // namespace

std::vector<StudyRow> study_rows() {
  std::vector<StudyRow> rows;
  const auto add = [&](std::string condition, std::string policy, StudyCase base, Shapes at,
                       bool must = false) {
    base.config.policy = policy;
    rows.push_back({std::move(condition), std::move(policy), std::move(base), std::move(at), must});
  };
  StudyCase capped;
  capped.kv_cap_permille = 1'600;  // the study's: no rank above 1.6 times its mean KV
  add("model", "round_robin", capped, shapes(83, 79, 76), true);
  add("model", "dualpath", blind(), shapes(95.4, 87.9, 84.3), true);
  add("model", "dualpath", StudyCase{}, shapes(97.5, 89.2, 85.7), true);

  const StudyCase fresh;
  for (const char* policy : {"round_robin", "total_requests", "total_tokens", "dualpath", "dualpath_queues"})
    add("fresh", policy, fresh, shapes(0, 0, 0));
  add("fresh", "waterline", fresh, shapes(97.7, 90.9, 88.1));
  add("fresh", "least_potential", fresh, shapes(97.3, 90.7, 88.7));
  for (const char* policy : {"waterline_hazard", "waterline_hold"})
    add("fresh", policy, fresh, {{32, 64, 0}, {32, 16, 0}, {144, 16, 0}, {144, 64, 97.5}});
  for (const char* policy : {"dualpath", "waterline", "waterline_hazard", "waterline_hold"})
    add("reports_32", policy, streams(), shapes(97.5, 92, 91));
  add("moves", "waterline", moving(streams(), 1), shapes(98.2, 95, 0));
  add("moves", "least_potential", moving(streams(), 32), shapes(98.2, 95, 0));
  add("moves", "waterline_hazard", moving(streams(), 1), shapes(98.2, 95, 0));
  add("moves", "waterline_hold", looking_ahead(moving(streams(), 32), 32, 60), shapes(98.2, 95, 0));
  add("ceiling", "waterline_hold", looking_ahead(fresh, 1, 30), shapes(0, 95, 94));
  add("ceiling_window_64", "waterline_hold", looking_ahead(fresh, 64, 60), shapes(0, 95, 94));
  for (const char* policy : {"dualpath", "waterline", "waterline_hazard", "waterline_hold"})
    add("slow_half", policy, slow_half(), shapes(96.5, 91, 89));
  for (const char* policy : {"dualpath", "waterline", "waterline_hazard"})
    add("four_placers", policy, four_placers(false), shapes(94, 86, 84));
  add("four_placers_leases", "waterline_hazard", four_placers(true), shapes(94, 86, 84));
  for (const char* policy : {"dualpath", "waterline", "waterline_hazard", "waterline_hold"})
    add("padded_8", policy, padded(fresh), shapes(0, 85, 0));
  add("padded_8_window_64", "waterline_hold", looking_ahead(padded(fresh), 64, 60), shapes(0, 85, 0));
  return rows;
}

}  // namespace trimtab::policy
