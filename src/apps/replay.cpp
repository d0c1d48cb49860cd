#include <fmt/format.h>
#include <unistd.h>

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/simulate_output.h"
#include "io/decision_log.h"
#include "report/charts.h"
#include "report/table.h"
#include "shadow/decode_replay.h"

namespace trimtab::apps {
namespace {

using nlohmann::json;

struct ReplayOptions {
  std::string log, report;
  std::vector<std::string> policies;
  std::int64_t max_running = 0, kv_blocks = 0;
  bool as_json = false;
};

struct Replayed {
  std::string policy;
  shadow::DecodeReplayReport report;
};

base::Result<Replayed> replay_one(const ReplayOptions& options, const std::string& name) {
  policy::DecodeConfig config;
  config.policy = name;
  const policy::DecodeCapacity capacity{base::TokenCount{options.kv_blocks * model::kBlockTokens},
                                        options.max_running};
  auto replay = shadow::DecodeReplay::make(config, capacity);
  if (!replay) return tl::unexpected<base::Error>(replay.error());
  const auto scan = io::read_log(options.log, [&](const io::Entry& entry) {
    if (const auto* record = std::get_if<cluster::Record>(&entry.body)) {
      replay->record(*record);
    } else if (const auto* token = std::get_if<io::TokenEntry>(&entry.body)) {
      if (token->from.role == model::Role::kDecode) replay->token(token->request, token->at);
    }
  });
  if (!scan) return tl::unexpected<base::Error>(scan.error());
  if (scan->bytes_torn > 0)
    fmt::print(stderr, "trimtab: {} bytes at the log's end are torn and were left out\n", scan->bytes_torn);
  return Replayed{name, replay->report()};
}

void print(const std::vector<Replayed>& all) {
  report::Table table({{"decode policy", report::Align::kLeft},
                       {"decisions"},
                       {"changed"},
                       {"held"},
                       {"KV peak / mean"},
                       {"requests peak / mean"}});
  const shadow::DecodeReplayReport& first = all.front().report;
  table.add_row({"as recorded", fmt::format("{}", first.decisions), "", "",
                 fmt::format("{:.3f}", first.recorded.kv_peak_over_mean),
                 fmt::format("{:.3f}", first.recorded.running_peak_over_mean)});
  table.add_rule();
  for (const Replayed& one : all) {
    table.add_row({one.policy, fmt::format("{}", one.report.decisions), fmt::format("{}", one.report.changed),
                   fmt::format("{}", one.report.held),
                   fmt::format("{:.3f}", one.report.replayed.kv_peak_over_mean),
                   fmt::format("{:.3f}", one.report.replayed.running_peak_over_mean)});
  }
  std::cout << table.text(report::terminal_style(STDOUT_FILENO));
  if (all.size() > 1) return;
  for (const auto& change : first.changes) {
    fmt::print("request {} at {:.3f} s: was group {} rank {}; {}\n", change.request.value,
               base::to_seconds(change.at), change.recorded.engine.value, change.recorded.rank,
               change.reason);
  }
}

std::string html(const std::vector<Replayed>& all, const std::string& log) {
  const shadow::DecodeReplayReport& first = all.front().report;
  report::HtmlPage page(
      "Decode placements, decided again",
      fmt::format("{} decisions over {:.1f} s of {}", first.decisions, base::to_seconds(first.span), log));
  const auto number = [](double value) { return report::Cell{fmt::format("{:.3f}", value), value}; };
  std::vector<std::vector<report::Cell>> rows = {{{"as recorded", {}},
                                                  {"", {}},
                                                  {"", {}},
                                                  number(first.recorded.kv_peak_over_mean),
                                                  number(first.recorded.running_peak_over_mean)}};
  for (const Replayed& one : all) {
    rows.push_back({{one.policy, {}},
                    {fmt::format("{}", one.report.changed), {}},
                    {fmt::format("{}", one.report.held), {}},
                    number(one.report.replayed.kv_peak_over_mean),
                    number(one.report.replayed.running_peak_over_mean)});
  }
  const auto right = report::Align::kRight;
  const auto less = report::Better::kLess;
  report::Html content = report::table({{"decode policy", report::Align::kLeft},
                                        {"changed"},
                                        {"held"},
                                        {"KV peak / mean", right, less},
                                        {"requests peak / mean", right, less}},
                                       rows);
  content += report::remark(
      "Requests, tokens and ends are the recorded ones, so only the balance changes: the busiest rank over "
      "the mean, "
      "weighted by how long it stood so.");
  std::vector<std::vector<report::Cell>> changes;
  for (const auto& change : first.changes) {
    changes.push_back({{fmt::format("{}", change.request.value), {}},
                       {fmt::format("{:.3f}", base::to_seconds(change.at)), {}},
                       {fmt::format("{}.{}", change.recorded.engine.value, change.recorded.rank), {}},
                       {fmt::format("{}.{}", change.replayed.engine.value, change.replayed.rank), {}},
                       {change.reason, {}}});
  }
  page.section("policies", "Policies", content);
  page.section(
      "changes", fmt::format("First changes by {}", all.front().policy),
      report::table({{"request"}, {"at s"}, {"was group.rank"}, {"now"}, {"why", report::Align::kLeft}},
                    changes));
  return page.text();
}

json to_json(const Replayed& one) {
  const auto even = [](const shadow::Evenness& of) {
    return json{{"kv_peak_over_mean", of.kv_peak_over_mean},
                {"running_peak_over_mean", of.running_peak_over_mean}};
  };
  return {{"policy", one.policy},
          {"decisions", one.report.decisions},
          {"changed", one.report.changed},
          {"held", one.report.held},
          {"recorded", even(one.report.recorded)},
          {"replayed", even(one.report.replayed)},
          {"span_s", base::to_seconds(one.report.span)}};
}

base::Status replay(const ReplayOptions& options) {
  TRIMTAB_TRY(check_writable("--report", options.report));
  std::vector<Replayed> all;
  for (const std::string& policy : options.policies) {
    auto one = replay_one(options, policy);
    if (!one) return tl::unexpected<base::Error>(one.error());
    all.push_back(std::move(*one));
  }
  if (all.front().report.decisions == 0) {
    return base::fail(base::Code::kNotFound, "the log has no decode placement: nothing to decide again",
                      options.log);
  }
  if (!options.report.empty()) TRIMTAB_TRY(write_text(options.report, html(all, options.log)));
  if (options.as_json) {
    json out = json::array();
    for (const Replayed& one : all) out.push_back(to_json(one));
    std::cout << out.dump(1) << "\n";
  } else {
    print(all);
  }
  return {};
}

}  // namespace

void add_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayOptions>();
  options->policies = {"waterline_hazard"};
  options->max_running = 32;
  options->kv_blocks = 128;
  CLI::App* command = app.add_subcommand(
      "replay",
      "decide a recorded run's decode placements again, by other policies: what would have changed\n\n"
      "  trimtab replay .cache/trimtab/laptop/decisions --policy dualpath round_robin\n\n"
      "Requests, tokens and ends are the recorded ones, so only the balance changes; `trimtab simulate` has "
      "the times too.");
  command->add_option("log", options->log, "directory of a decision log (STATE_DIR/decisions)")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--policy", options->policies, "decode policies to decide by; several compare")
      ->capture_default_str();
  command->add_option("--max-running", options->max_running, "requests that a rank may run")
      ->check(CLI::Range(1, 65'535))
      ->capture_default_str();
  command->add_option("--kv-blocks", options->kv_blocks, "KV blocks of a rank")
      ->check(CLI::Range(1, 8'000'000))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "print JSON");
  command->add_option("--report", options->report, "write an HTML page");
  command->callback([options] { finish(replay(*options)); });
}

}  // namespace trimtab::apps
