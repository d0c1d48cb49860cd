#include "config/fault_plan.h"

#include <fmt/format.h>

#include <cmath>

namespace trimtab::config {
namespace {

using model::Fault;
using model::FaultKind;

constexpr double kYearS = 366.0 * 86'400;
constexpr std::int64_t kTargetsMax = 1 << 20;

base::Nanos nanos(double seconds) { return base::Nanos{std::llround(seconds * 1e9)}; }

bool of_engines(FaultKind kind) {
  return kind == FaultKind::kRank || kind == FaultKind::kEngine || kind == FaultKind::kDrain ||
         kind == FaultKind::kLateStart;
}

void read_span(StrictTable& table, std::string_view key, base::Nanos& out) {
  double seconds = 0;
  table.read(key, seconds, 0, kYearS);  // first: what is read becomes known, and is named to a misspeller
  if (table.has(key)) out = nanos(seconds);
}

/// When: at a time, or at random ones.
void read_times(StrictTable& table, Fault& fault) {
  base::Nanos at;
  read_span(table, "at_s", at);
  if (table.has("at_s")) fault.at = at;
  read_span(table, "for_s", fault.span);
  read_span(table, "until_s", fault.until);
  table.read("rate_per_hour", fault.rate_per_hour, 0, 3.6e6);
  table.read("down_share", fault.down_share, 0, 0.99);
  const int ways = (fault.at ? 1 : 0) + (fault.rate_per_hour > 0 ? 1 : 0) + (fault.down_share > 0 ? 1 : 0);
  if (ways != 1) {
    table.reject(
        fault.at ? "at_s" : "kind",
        "a fault comes at_s, or at random with a positive rate_per_hour or down_share: give one of them");
  } else if (!fault.at && fault.span == base::kForever) {
    table.reject("kind", "a random fault needs for_s: one that lasts for good comes once, at_s");
  } else if (fault.down_share > 0 && fault.span.value == 0) {
    table.reject("for_s", "down_share with for_s = 0 would take infinitely many faults");
  } else if (fault.at && table.has("until_s")) {
    table.reject("until_s", "only random faults end; this one comes at_s");
  }
}

Fault read_fault(StrictTable table) {
  Fault fault;
  fault.where = table.where("kind");
  std::size_t kind = static_cast<std::size_t>(FaultKind::kEngine);
  table.require_choice("kind", kind,
                       {"rank", "engine", "storage_node", "entrypoint", "queue", "drain", "late_start"});
  fault.kind = static_cast<FaultKind>(kind);
  std::size_t role = 0;
  if (of_engines(fault.kind)) table.require_choice("role", role, {"prefill", "decode", "vision"});
  fault.role = static_cast<model::Role>(role);
  if (fault.kind != FaultKind::kQueue) table.read("targets", fault.targets, 0, kTargetsMax);
  if (fault.kind == FaultKind::kRank) table.read("ranks", fault.ranks, 0, kTargetsMax);
  if (of_engines(fault.kind)) read_span(table, "start_up_s", fault.start_up);
  if (fault.kind == FaultKind::kStorageNode) table.read("loses_content", fault.loses_content);
  read_times(table, fault);
  if (fault.kind == FaultKind::kLateStart && (!fault.at || table.has("for_s"))) {
    table.reject("kind", "a late start has at_s, when the engine begins to start up, and no for_s");
  }
  return fault;
}

}  // namespace

void read_faults(StrictTable root, model::FaultPlan& out) {
  for (StrictTable& table : root.tables("fault")) out.faults.push_back(read_fault(table));
}

base::Result<model::FaultPlan> parse_fault_plan(std::string_view text, const std::string& origin) {
  auto root = StrictTable::parse(text, origin);
  if (!root) return tl::unexpected<base::Error>(root.error());
  model::FaultPlan plan;
  root->read("seed", plan.seed, 0);
  read_faults(*root, plan);
  TRIMTAB_TRY(root->finish());
  return plan;
}

base::Result<model::FaultPlan> load_fault_plan(const std::string& path) {
  const auto text = read_text(path);
  if (!text) return tl::unexpected<base::Error>(text.error());
  return parse_fault_plan(*text, path);
}

void read_cluster_parts(StrictTable simulation, model::Scenario& out) {
  StrictTable storage = simulation.table("storage");
  storage.read("nodes", out.storage.nodes, 0, 65'536);
  storage.read("read_bytes_per_s", out.storage.read_bytes_per_s, 1.0, 1e15);
  storage.read("eviction", out.storage.eviction);
  StrictTable encoder = simulation.table("encoder");
  double fixed_ms = base::to_seconds(out.encoder.fixed) * 1e3;
  encoder.read("fixed_ms", fixed_ms, 0, 1e6);
  out.encoder.fixed = nanos(fixed_ms * 1e-3);
  encoder.read("patches_per_s", out.encoder.patches_per_s, 1e-3, 1e12);
  StrictTable reports = simulation.table("reports");
  double delay_ms = base::to_seconds(out.reports.delay) * 1e3;
  reports.read("delay_ms", delay_ms, 0, 1e8);
  out.reports.delay = nanos(delay_ms * 1e-3);
  reports.read("delay_steps", out.reports.delay_steps, 0, 1'000'000);
  reports.read("loss", out.reports.loss, 0, 1);
  StrictTable entrypoints = simulation.table("entrypoints");
  entrypoints.read("count", out.entrypoints.count, 1, 1'024);
  entrypoints.read("client_retries", out.entrypoints.retries, 0, 100);
  read_span(entrypoints, "client_retry_s", out.entrypoints.retry_after);
}

}  // namespace trimtab::config
