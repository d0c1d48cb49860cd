#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/pool_repair_fleet.h"
#include "report/table.h"

namespace trimtab::apps {

using kv_pool::PoolReport;
using Role = kv_pool::PoolReport::Role;

namespace {

std::string per_cent(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? "-"
                  : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

std::string state_of(const PoolReport::Target& target) {
  if (target.role == Role::kGone) return "gone";
  return target.role == Role::kLeaving ? target.health + ", leaving" : target.health;
}

std::string time_left(const PoolReport& report) {
  if (report.left_ns == INT64_MAX) return "time left not known yet";
  return fmt::format("about {:.0f} s left", base::to_seconds(base::Nanos{report.left_ns}));
}

nlohmann::json to_json(const PoolReport& report) {
  nlohmann::json targets = nlohmann::json::array();
  for (const PoolReport::Target& target : report.targets)
    targets.push_back({{"target", target.place},
                       {"state", target.role == Role::kGone ? "gone" : target.health},
                       {"leaving", target.role == Role::kLeaving},
                       {"shards", target.shards},
                       {"used_bytes", target.used_bytes},
                       {"capacity_bytes", target.capacity_bytes},
                       {"trouble", target.trouble}});
  nlohmann::json left;
  if (report.left_ns != INT64_MAX) left = base::to_seconds(base::Nanos{report.left_ns});
  return {{"blocks", report.blocks},
          {"whole", report.whole},
          {"degraded", report.degraded},
          {"unreadable", report.unreadable},
          {"of_other_models", report.strangers},
          {"may_lose", report.may_lose},
          {"map_version", report.map_version},
          {"map_settled", report.map_settled != 0},
          {"map_trouble", report.map_trouble},
          {"moving", report.moving != 0},
          {"done_ratio", report.done_ratio},
          {"left_s", left},
          {"repairs_waiting", report.repairs_waiting},
          {"old_copies", report.old_copies},
          {"targets", targets}};
}

}  // namespace

std::uint32_t dead_targets(const PoolReport& report) {
  return static_cast<std::uint32_t>(std::ranges::count_if(report.targets, [](const auto& target) {
    return target.role != Role::kGone && target.health == "dead";
  }));
}

int exit_code_of(const PoolReport& report) {
  const std::uint32_t dead = dead_targets(report);
  if (report.unreadable > 0 || dead > report.may_lose) return 3;
  return report.degraded > 0 || dead > 0 ? 2 : 0;
}

void print_report(const PoolReport& report, bool as_json) {
  if (as_json) {
    std::cout << to_json(report).dump(2) << "\n";
    return;
  }
  report::Table table(
      {{"target", report::Align::kLeft}, {"state", report::Align::kLeft}, {"shards"}, {"used"}, {"of room"}});
  for (std::size_t t = 0; t < report.targets.size(); ++t) {
    const PoolReport::Target& target = report.targets[t];
    table.add_row({fmt::format("{}  {}", t, target.place), state_of(target), fmt::format("{}", target.shards),
                   fmt::format("{:.1f} MB", static_cast<double>(target.used_bytes) / 1e6),
                   per_cent(target.used_bytes, target.capacity_bytes)});
  }
  std::cout << table.text(report::terminal_style(STDOUT_FILENO));
  const auto staying = std::ranges::count_if(
      report.targets, [](const PoolReport::Target& target) { return target.role == Role::kIn; });
  std::cout << fmt::format(
      "{} blocks of {} bytes: {} whole, {} degraded (readable; a rebuild or a scrub mends them), {} "
      "unreadable (they are computed again). {} of {} targets may be lost at once. Map version {}{}.\n",
      report.blocks, report.block_bytes, report.whole, report.degraded, report.unreadable, report.may_lose,
      staying, report.map_version, report.map_settled != 0 ? "" : ", not yet at most targets");
  if (report.strangers > 0)
    std::cout << fmt::format("{} blocks of another model lie there too, and are left alone.\n",
                             report.strangers);
  if (const std::uint32_t dead = dead_targets(report); dead > 0)
    std::cout << fmt::format(
        "{} of them do not answer{}: what only they hold is not counted here. Start them again, or put empty "
        "ones "
        "in their places (`trimtab pool replace`).\n",
        dead,
        dead > report.may_lose ? ", more than may be lost"
                               : fmt::format(", {} more may be lost", report.may_lose - dead));
  // Not in the table, which a terminal cuts.
  for (const PoolReport::Target& target : report.targets)
    if (!target.trouble.empty())
      std::cout << fmt::format("{} is in trouble: {}\n", target.place, target.trouble);
  for (const PoolReport::Target& target : report.targets)
    if (target.role == Role::kLeaving)
      std::cout << fmt::format("{} is being drained: {} shards are left there.\n", target.place,
                               target.shards);
  if (report.moving != 0)
    std::cout << fmt::format("Shards are moving: {:.1f} %, {}; {} repairs wait.\n", 100 * report.done_ratio,
                             time_left(report), report.repairs_waiting);
  if (!report.map_trouble.empty()) std::cout << "The map was changed: " << report.map_trouble << "\n";
}

}  // namespace trimtab::apps
