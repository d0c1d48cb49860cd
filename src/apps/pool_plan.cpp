#include "apps/pool_plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/instance.h"
#include "config/profile.h"
#include "io/trace_reader.h"
#include "policy/eviction/endurance.h"
#include "policy/eviction/policies.h"
#include "policy/eviction/replay.h"
#include "report/table.h"

namespace trimtab::apps {
namespace {

struct PlanOptions {
  eviction::Endurance pool;
  std::string device_bytes = "30.72T", write_bytes = "";
  std::string trace, policy = "hit_density", profile = "deepseek-v4.1-flash", profiles_dir;
  double room_percent = 5, rate = 1, starts_over_hours = 8;
  bool as_json = false;
};

/// "30.72T": a number, then perhaps k, M, G, T or P, of a thousand each.
base::Result<double> bytes_of(const std::string& text, const char* option) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string suffix(end, text.data() + text.size());
  constexpr std::string_view kSuffixes = "kMGTP";
  const std::size_t at = suffix.size() == 1 ? kSuffixes.find(suffix[0]) : std::string_view::npos;
  if (error != std::errc{} || (!suffix.empty() && at == std::string_view::npos)) {
    return base::fail(base::Code::kInvalidArgument,
                      "\"" + text +
                          "\" is no number of bytes: write 30.72T, 114048 or 2.5G (k, M, G, T and P "
                          "are powers of a thousand)",
                      option);
  }
  return suffix.empty() ? value : value * std::pow(1e3, static_cast<double>(at + 1));
}

struct FromTrace {
  eviction::Replayed replayed;
  std::int64_t capacity_blocks = 0;
};

/// What a pool with room for a part of the trace's blocks would write, and how much of them it would save.
base::Result<FromTrace> replay_trace(PlanOptions& options) {
  const auto profile = config::load_profile(options.profile, find_profiles_dir(options.profiles_dir));
  if (!profile) return tl::unexpected<base::Error>(profile.error());
  const auto trace = io::read_trace(options.trace, {});
  if (!trace) return tl::unexpected<base::Error>(trace.error());
  if (trace->block_tokens <= 0) {
    return base::fail(base::Code::kInvalidArgument,
                      options.trace + " records no blocks: give --write-bytes-per-second instead", "--trace");
  }
  const eviction::Prompts prompts(*trace,
                                  base::Nanos{static_cast<std::int64_t>(options.starts_over_hours * 3.6e12)});
  FromTrace out;
  out.capacity_blocks = static_cast<std::int64_t>(prompts.unique() * options.room_percent / 100);
  if (out.capacity_blocks < 1) {
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("{:g} % of the trace's {} unique blocks is room for none: give at least {:.2g}",
                    options.room_percent, prompts.unique(), 100.0 / prompts.unique()),
        "--room");
  }
  eviction::Settings settings;
  settings.capacity_blocks = out.capacity_blocks;
  settings.block_tokens = trace->block_tokens;
  const auto policy = eviction::make_policy(options.policy, settings);
  if (!policy) return tl::unexpected<base::Error>(policy.error());
  out.replayed = eviction::replay(prompts, **policy, static_cast<std::uint64_t>(out.capacity_blocks));
  const double block_bytes = static_cast<double>(profile->kv.block_bytes.value) *
                             static_cast<double>(trace->block_tokens) / model::kBlockTokens;
  const double seconds = std::max(base::to_seconds(prompts.span()), 1.0);
  options.pool.write_bytes_per_second =
      static_cast<double>(out.replayed.written) * block_bytes / seconds * options.rate;
  return out;
}

void print(const PlanOptions& options, const eviction::EndurancePlan& plan, const FromTrace& from) {
  report::Table table({{"SSDs of the pool", report::Align::kLeft}, {"plan", report::Align::kRight}});
  const auto row = [&](const char* what, std::string value) { table.add_row({what, std::move(value)}); };
  if (!options.trace.empty()) {
    row("blocks of the trace hit", fmt::format("{:.1f} %", 100 * from.replayed.ratio()));
    row("room, blocks of the trace", fmt::format("{}", from.capacity_blocks));
  }
  row("blocks written, whole pool", fmt::format("{:.3f} GB/s", options.pool.write_bytes_per_second / 1e9));
  row("with 10+2 code and write amplification",
      fmt::format("{:.3f} GB/s", options.pool.write_bytes_per_second * options.pool.code_overhead *
                                     options.pool.write_amplification / 1e9));
  row("write budget of a device", fmt::format("{:.2f} TB a day", plan.budget_bytes_per_day / 1e12));
  row("written to a device", fmt::format("{:.2f} TB a day ({:.2f} DWPD)", plan.written_bytes_per_day / 1e12,
                                         plan.written_bytes_per_day / options.pool.device_bytes));
  row("life of the SSDs", std::isinf(plan.years) ? "for ever" : fmt::format("{:.1f} years", plan.years));
  row("blocks that may be written",
      fmt::format("{:.3f} GB/s to last {:g} years", plan.allowed_bytes_per_second / 1e9,
                  options.pool.rated_years));
  row("share of blocks to admit", fmt::format("{:.1f} %", 100 * plan.admitted_ratio));
  std::cout << table.text(report::terminal_style(STDOUT_FILENO));
  if (plan.admitted_ratio < 1)
    std::cout
        << "Over the budget: admit that share (prefixes that were asked for twice first), add devices, or "
           "take SSDs of a higher rating.\n";
}

base::Status plan(PlanOptions& options) {
  auto device = bytes_of(options.device_bytes, "--device-bytes");
  if (!device) return tl::unexpected<base::Error>(device.error());
  options.pool.device_bytes = *device;
  if (options.write_bytes.empty() == options.trace.empty()) {
    return base::fail(base::Code::kInvalidArgument,
                      options.trace.empty() ? "how much is written? Give --write-bytes-per-second or --trace"
                                            : "--write-bytes-per-second and --trace both say how much is "
                                              "written: give one",
                      "pool plan");
  }
  if (!(options.room_percent > 0 && options.room_percent <= 100) || !(options.rate > 0) ||
      !(options.starts_over_hours >= 0 && options.starts_over_hours <= 1e4)) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("--room {:g} must be above 0 and at most 100, --rate {:g} above 0, "
                                  "--starts-over-hours {:g} from 0 to 10,000",
                                  options.room_percent, options.rate, options.starts_over_hours),
                      "pool plan");
  }
  FromTrace from;
  if (options.trace.empty()) {
    const auto rate = bytes_of(options.write_bytes, "--write-bytes-per-second");
    if (!rate) return tl::unexpected<base::Error>(rate.error());
    options.pool.write_bytes_per_second = *rate;
  } else {
    auto replayed = replay_trace(options);
    if (!replayed) return tl::unexpected<base::Error>(replayed.error());
    from = *replayed;
  }
  const auto planned = eviction::plan_endurance(options.pool);
  if (!planned) return tl::unexpected<base::Error>(planned.error());
  if (!options.as_json) {
    print(options, *planned, from);
    return {};
  }
  nlohmann::json out{{"write_bytes_per_second", options.pool.write_bytes_per_second},
                     {"device_budget_bytes_per_day", planned->budget_bytes_per_day},
                     {"device_written_bytes_per_day", planned->written_bytes_per_day},
                     {"write_bytes_per_second_allowed", planned->allowed_bytes_per_second},
                     {"admitted_ratio", planned->admitted_ratio}};
  // JSON has no infinity: nothing written, no end of life.
  if (std::isfinite(planned->years)) out["life_years"] = planned->years;
  if (!options.trace.empty()) out["hit_ratio"] = from.replayed.ratio();
  std::cout << out.dump(2) << "\n";
  return {};
}

}  // namespace

void add_pool_plan(CLI::App& pool) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = pool.add_subcommand(
      "plan",
      "how long the pool's SSDs last under a write load, and how much may be written\n\n"
      "  trimtab pool plan --dwpd 1 --device-bytes 30.72T --devices 20 --nodes 64 --write-bytes-per-second "
      "100G\n"
      "  trimtab pool plan --dwpd 0.3 --devices 4 --nodes 16 --trace conversation.jsonl --room 5 --rate "
      "100\n\n"
      "The second replays a trace against a pool with room for 5 % of its blocks and counts what is stored, "
      "at\n"
      "100 times the recorded rate. Each block is written 1.2 times (10+2 code), then amplified.\n"
      "docs/policies/eviction.md says more.");
  eviction::Endurance& of = options->pool;
  command->add_option("--dwpd", of.drive_writes_per_day, "drive writes per day that the SSDs are rated for")
      ->required();
  command->add_option("--device-bytes", options->device_bytes, "capacity of one SSD")->capture_default_str();
  command->add_option("--devices", of.devices, "SSDs of one storage node")->required();
  command->add_option("--nodes", of.nodes, "storage nodes")->required();
  command->add_option("--rated-years", of.rated_years, "years that the rating is for")->capture_default_str();
  command->add_option("--write-bytes-per-second", options->write_bytes,
                      "blocks that the pool stores, before coding");
  command
      ->add_option("--write-amplification", of.write_amplification,
                   "device bytes over shard bytes, measured: a target's counters")
      ->capture_default_str();
  command->add_option("--code-overhead", of.code_overhead, "shard bytes over block bytes")
      ->capture_default_str();
  command->add_option("--trace", options->trace, "a recorded trace with blocks instead of a rate");
  command->add_option("--policy", options->policy, "lru, fifo, s3_fifo, hit_density")->capture_default_str();
  command->add_option("--room", options->room_percent, "of the trace's unique blocks, in per cent")
      ->capture_default_str();
  command->add_option("--rate", options->rate, "times the trace's recorded rate")->capture_default_str();
  command
      ->add_option("--starts-over-hours", options->starts_over_hours,
                   "a closed loop's conversations start evenly over so long")
      ->capture_default_str();
  command->add_option("--profile", options->profile, "model profile: bytes of a block")
      ->capture_default_str();
  command->add_option("--profiles-dir", options->profiles_dir, "directory of the model profiles");
  command->add_flag("--json", options->as_json, "as JSON");
  command->callback([options] { finish(plan(*options)); });
}

}  // namespace trimtab::apps
