#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/pool_commands.h"
#include "apps/pool_loader.h"
#include "apps/pool_plan.h"
#include "apps/pool_repair.h"
#include "policy/placement/rebuild.h"
#include "policy/placement/resize.h"
#include "report/table.h"

namespace trimtab::apps {
namespace {

struct LayoutOptions {
  std::vector<std::uint32_t> nodes;
  std::uint32_t racks = 0, grow = 0;
  bool as_json = false;
};

struct Row {
  std::uint32_t nodes = 0;
  std::string how;
  std::size_t groups = 0, moves = 0;
  placement::MapBalance even;
  double reads_worst = 1, reads_mean = 1, writes_worst = 1;  // max / mean, over which node dies
  double made_s = 0;
};

/// Every node's loss when there are few, and 16 of them spread evenly otherwise.
base::Result<Row> measure(const placement::StripeMap& map, Row row) {
  row.groups = map.groups.size();
  row.how = map.how;
  row.even = placement::balance(map);
  const std::uint32_t tried = std::min<std::uint32_t>(map.nodes, 16);
  double sum = 0;
  for (std::uint32_t i = 0; i < tried; ++i) {
    const auto dead = static_cast<placement::NodeId>(i * map.nodes / tried);
    const auto plan = placement::plan_rebuild(map, std::span(&dead, 1));
    if (!plan) return tl::unexpected<base::Error>(plan.error());
    row.reads_worst = std::max(row.reads_worst, plan->read_imbalance);
    row.writes_worst = std::max(row.writes_worst, plan->write_imbalance);
    sum += plan->read_imbalance;
  }
  row.reads_mean = sum / tried;
  return row;
}

base::Result<Row> lay_out(const LayoutOptions& options, std::uint32_t nodes) {
  std::vector<std::uint32_t> racks(options.racks > 0 ? nodes : 0);
  for (std::uint32_t n = 0; n < racks.size(); ++n) racks[n] = n % options.racks;
  const auto started = std::chrono::steady_clock::now();
  auto map = placement::make_map(nodes, racks);
  if (!map) return tl::unexpected<base::Error>(map.error());
  Row row;
  row.nodes = nodes;
  row.made_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  if (options.grow == 0) return measure(*map, row);
  std::vector<std::uint32_t> more(options.racks > 0 ? options.grow : 0);
  for (std::uint32_t n = 0; n < more.size(); ++n) more[n] = (nodes + n) % options.racks;
  const auto change = placement::expand(*map, options.grow, more);
  if (!change) return tl::unexpected<base::Error>(change.error());
  row.nodes = change->map.nodes;
  row.moves = change->moves.size();
  return measure(change->map, row);
}

void print(const std::vector<Row>& rows, const LayoutOptions& options) {
  std::vector<report::Column> columns{{"nodes"},       {"groups"},         {"shards/node"},
                                      {"groups/pair"}, {"reads max/mean"}, {"writes"}};
  if (options.racks > 0) columns.push_back({"most/rack"});
  if (options.grow > 0) columns.push_back({"moved"});
  columns.push_back({"made in"});
  columns.push_back({"how", report::Align::kLeft});
  report::Table table(std::move(columns));
  const auto range = [](std::uint32_t least, std::uint32_t most) {
    return least == most ? fmt::format("{}", least) : fmt::format("{}-{}", least, most);
  };
  for (const Row& row : rows) {
    std::vector<std::string> cells{fmt::format("{}", row.nodes),
                                   fmt::format("{}", row.groups),
                                   range(row.even.shards_least, row.even.shards_most),
                                   range(row.even.pairs_least, row.even.pairs_most),
                                   fmt::format("{:.3f}", row.reads_worst),
                                   fmt::format("{:.3f}", row.writes_worst)};
    const auto shards = static_cast<double>(row.groups * placement::kShards);
    if (options.racks > 0) cells.push_back(fmt::format("{}", row.even.rack_most));
    if (options.grow > 0)
      cells.push_back(fmt::format("{:.1f} %", 100.0 * static_cast<double>(row.moves) / shards));
    cells.push_back(fmt::format("{:.2f} s", row.made_s));
    cells.push_back(row.how);
    table.add_row(std::move(cells));
  }
  std::cout << table.text(report::terminal_style(STDOUT_FILENO));
}

std::string json(const std::vector<Row>& rows) {
  nlohmann::json out = nlohmann::json::array();
  for (const Row& row : rows) {
    out.push_back({{"nodes", row.nodes},
                   {"groups", row.groups},
                   {"how", row.how},
                   {"shards_per_node", {row.even.shards_least, row.even.shards_most}},
                   {"groups_per_pair", {row.even.pairs_least, row.even.pairs_most}},
                   {"rack_most", row.even.rack_most},
                   {"rebuild_reads_max_over_mean", row.reads_worst},
                   {"rebuild_reads_max_over_mean_average", row.reads_mean},
                   {"rebuild_writes_max_over_mean", row.writes_worst},
                   {"shards_moved", row.moves},
                   {"made_s", row.made_s}});
  }
  return out.dump(2);
}

base::Status layout(const LayoutOptions& options) {
  std::vector<Row> rows;
  for (const std::uint32_t nodes : options.nodes) {
    if (nodes + options.grow == placement::kShards) {
      return base::fail(
          base::Code::kInvalidArgument,
          fmt::format("{} nodes hold the {} shards of every block, and no node is left to rebuild on "
                      "when one dies: use 13 to 512",
                      nodes, placement::kShards),
          "--nodes");
    }
    auto row = lay_out(options, nodes);
    if (!row) return tl::unexpected<base::Error>(row.error());
    rows.push_back(std::move(*row));
  }
  if (options.as_json) {
    std::cout << json(rows) << "\n";
  } else {
    print(rows, options);
  }
  return {};
}

}  // namespace

void add_pool(CLI::App& app) {
  CLI::App* pool =
      app.add_subcommand("pool", "the KV pool: its storage nodes, and the way from it into the device");
  pool->require_subcommand(1);
  add_pool_plan(*pool);
  auto options = std::make_shared<LayoutOptions>();
  CLI::App* command = pool->add_subcommand(
      "layout",
      "where the 10+2 shards of each block go, and how evenly the nodes rebuild one that died\n\n"
      "  trimtab pool layout --nodes 64              # an exact design where one is known, else a near "
      "design\n"
      "  trimtab pool layout --nodes 48 --racks 12   # no two shards of a block in one rack\n"
      "  trimtab pool layout --nodes 60 --grow 4     # what moves when four nodes join, and how even it "
      "stays\n\n"
      "docs/policies/placement.md says how.");
  command->add_option("--nodes", options->nodes, "storage nodes, 13 to 512; several compare")->required();
  command->add_option("--racks", options->racks, "racks that the nodes stand in, evenly; 0: not known")
      ->check(CLI::Range(0, 512));
  command->add_option("--grow", options->grow, "so many nodes join afterwards")->check(CLI::Range(0, 500));
  command->add_flag("--json", options->as_json, "as JSON");
  command->callback([options] { finish(layout(*options)); });
  add_pool_repair(*pool);
  add_pool_exercise(*pool);
  add_pool_changes(*pool);
  add_pool_swap_in(*pool);
}

}  // namespace trimtab::apps
