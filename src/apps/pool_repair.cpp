#include "apps/pool_repair.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/commands.h"
#include "apps/pool_loader.h"
#include "apps/pool_repair_fleet.h"
#include "apps/signals.h"
#include "apps/size_value.h"

namespace trimtab::apps {
namespace {

using kv_store::WalkCursor;
using kv_store::WalkKind;

constexpr base::Nanos kSecond{1'000'000'000}, kSettles{10'000'000'000};
constexpr int kInterrupted = 4;

struct RepairOptions {
  FleetOptions fleet;
  std::string resume_file;
  std::vector<std::string> replacements;
};
struct StatusOptions {
  FleetOptions fleet;
  LoaderOptionsOf loader;
};

/// Who reads the cursor must walk the same pool: the targets are part of it.
nlohmann::json to_json(const WalkCursor& cursor, const Fleet& fleet) {
  return {{"scrub", cursor.kind == WalkKind::kScrub},
          {"map_version", cursor.map_version},
          {"next", {cursor.next.high, cursor.next.low}},
          {"blocks", cursor.blocks},
          {"shards_written", cursor.shards_written},
          {"shards_bad", cursor.shards_bad},
          {"unreadable", cursor.unreadable},
          {"bytes", cursor.bytes},
          {"targets", fleet.targets}};
}

base::Status keep(const std::string& path, const WalkCursor& cursor, const Fleet& fleet) {
  if (path.empty()) return {};
  const std::string fresh = path + ".new";
  std::ofstream out(fresh);
  out << to_json(cursor, fleet).dump(1) << "\n";
  if (!out.flush() || std::rename(fresh.c_str(), path.c_str()) != 0)
    return base::fail(base::Code::kIo, fmt::format("{}: cannot be written; check its directory", path),
                      "--resume");
  return {};
}

base::Result<WalkCursor> begin(const RepairOptions& options, WalkKind kind, const Fleet& fleet) {
  WalkCursor cursor;
  cursor.kind = kind;
  cursor.map_version = fleet.store->map().stripes().version;
  if (options.resume_file.empty() || !std::filesystem::exists(options.resume_file)) return cursor;
  std::ifstream in(options.resume_file);
  const auto kept = nlohmann::json::parse(in, nullptr, false);
  const auto refuse = [&](const std::string& why) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("{}: {}; remove it to begin anew", options.resume_file, why), "--resume");
  };
  try {
    if (kept.is_discarded()) return refuse("is not a cursor file");
    if (kept.at("scrub").get<bool>() != (kind == WalkKind::kScrub))
      return refuse("belongs to the other command");
    if (kept.at("targets").get<std::vector<std::string>>() != fleet.targets)
      return refuse("belongs to a pool with other targets");
    cursor.map_version = kept.at("map_version").get<std::uint32_t>();
    cursor.next = {kept.at("next").at(0).get<std::uint64_t>(), kept.at("next").at(1).get<std::uint64_t>()};
    cursor.blocks = kept.at("blocks").get<std::uint64_t>();
    cursor.shards_written = kept.at("shards_written").get<std::uint64_t>();
    cursor.shards_bad = kept.at("shards_bad").get<std::uint64_t>();
    cursor.unreadable = kept.at("unreadable").get<std::uint64_t>();
    cursor.bytes = kept.at("bytes").get<std::uint64_t>();
  } catch (const nlohmann::json::exception&) {
    return refuse("is not a cursor file");
  }
  return cursor;
}

void say_progress(const char* verb, Fleet& fleet) {
  const auto progress = fleet.store->walk()->progress(fleet.now());
  const WalkCursor cursor = fleet.store->walk()->cursor();
  const std::string left = progress.left == base::kForever
                               ? "time left not known yet"
                               : fmt::format("{:.0f} s left", base::to_seconds(progress.left));
  std::cerr << fmt::format(
      "{}: {:.1f} %, {} of {} blocks, {} shards bad, {} written, {} blocks unreadable, {}\n", verb,
      100 * progress.done_ratio, progress.blocks_done, progress.blocks_done + progress.blocks_left,
      cursor.shards_bad, cursor.shards_written, cursor.unreadable, left);
}

/// What the walk found goes on to be mended in a queue: until it is empty, or nothing of it moves any more (a
/// second look at a block that could not be read comes a minute later, and is the pool's own business).
void finish_repairs(Fleet& fleet, const std::atomic<bool>& stop) {
  std::uint64_t seen = fleet.store->counters().repairs;
  base::Nanos moved = fleet.now();
  while (!stop && fleet.store->repairs_waiting() > 0 && fleet.now() - moved < kSecond * 5) {
    fleet.turn();
    if (fleet.store->counters().repairs == seen) continue;
    seen = fleet.store->counters().repairs;
    moved = fleet.now();
  }
}

/// No shard is written before most targets keep the map by which it is.
base::Status settle(Fleet& fleet) {
  for (const base::Nanos end = fleet.now() + kSettles; !fleet.store->map_settled() && fleet.now() < end;)
    fleet.turn();
  if (fleet.store->map_settled()) return {};
  return base::fail(base::Code::kUnavailable,
                    "not more than half of the pool's targets take its map: start the others; `trimtab pool "
                    "status` says which",
                    "pool");
}

/// Walks to the end or until a signal. The exit code.
base::Result<int> walk(const RepairOptions& options, WalkKind kind, Fleet& fleet) {
  const char* verb = kind == WalkKind::kScrub ? "scrub" : "rebuild";
  const std::atomic<bool>& stop = stop_on_signals();
  const auto from = begin(options, kind, fleet);
  if (!from) return tl::unexpected(from.error());
  TRIMTAB_TRY(
      keep(options.resume_file, *from, fleet));  // a file that cannot be written shows now, not in an hour
  TRIMTAB_TRY(settle(fleet));
  TRIMTAB_TRY(fleet.store->resume_walk(*from, fleet.now()));
  if (from->blocks > 0) std::cerr << fmt::format("{}: goes on after {} blocks\n", verb, from->blocks);
  base::Nanos say_at = fleet.now() + kSecond;
  while (!stop && !(fleet.store->walk()->cursor().kind == kind && fleet.store->walk()->done())) {
    fleet.turn();
    if (fleet.store->newer_map() != nullptr)
      return base::fail(
          base::Code::kUnavailable,
          fmt::format("the pool's targets were changed meanwhile: run `trimtab pool {}` again", verb),
          "pool");
    if (fleet.now() < say_at) continue;
    say_at = fleet.now() + kSecond;
    say_progress(verb, fleet);
    TRIMTAB_TRY(keep(options.resume_file, fleet.store->walk()->cursor(), fleet));
  }
  const WalkCursor end = fleet.store->walk()->cursor();
  if (stop) {
    TRIMTAB_TRY(keep(options.resume_file, end, fleet));
    std::cerr << fmt::format("{}: interrupted after {} blocks; {}\n", verb, end.blocks,
                             options.resume_file.empty() ? "with --resume FILE it could go on there"
                                                         : "the same command goes on there");
    return kInterrupted;
  }
  finish_repairs(fleet, stop);
  if (!options.resume_file.empty()) std::filesystem::remove(options.resume_file);
  fleet.turn_for(base::Nanos{100'000'000});
  const kv_pool::PoolReport state = fleet.report();
  const int code = end.unreadable > 0 ? 3 : exit_code_of(state);
  if (options.fleet.as_json) {
    std::cout << nlohmann::json{{"blocks", end.blocks},
                                {"shards_bad", end.shards_bad},
                                {"shards_written", fleet.store->counters().shards_repaired},
                                {"bytes", end.bytes},
                                {"unreadable", end.unreadable},
                                {"whole_after", state.whole},
                                {"degraded_after", state.degraded},
                                {"unreadable_after", state.unreadable}}
                     .dump(2)
              << "\n";
  } else {
    std::cout << fmt::format(
        "{}: {} blocks, {:.1f} MB moved; {} shards were bad, {} written; {} blocks could not be read. Now {} "
        "whole, "
        "{} degraded, {} unreadable.\n",
        verb, end.blocks, static_cast<double>(end.bytes) / 1e6, end.shards_bad,
        fleet.store->counters().shards_repaired, end.unreadable, state.whole, state.degraded,
        state.unreadable);
  }
  return code;
}

void leave_with(const base::Result<int>& code) {
  finish(code ? base::Status{} : base::Status(tl::unexpected(code.error())));
  if (*code != 0) throw CLI::RuntimeError(*code);
}

base::Result<int> run_walk(const RepairOptions& options, WalkKind kind) {
  auto fleet = open_fleet(options.fleet, kv_store::MapUse::kKeep);
  if (!fleet) return tl::unexpected(fleet.error());
  for (const std::string& replacement : options.replacements)
    TRIMTAB_TRY(replace_target(*fleet, options.fleet, replacement));
  auto code = walk(options, kind, *fleet);
  if (code && !options.replacements.empty()) {
    std::cerr << "rebuild: from now on every process of this pool must be started with these targets:";
    for (const std::string& target : fleet->targets) std::cerr << " " << target;
    std::cerr << "\n";
  }
  return code;
}

base::Result<int> say_report(const base::Result<kv_pool::PoolReport>& report, bool as_json) {
  if (!report) return tl::unexpected(report.error());
  print_report(*report, as_json);
  return exit_code_of(*report);
}

base::Result<int> status(const StatusOptions& options) {
  if (options.fleet.targets.empty()) {
    LoaderOptionsOf from = options.loader;
    from.config_path = options.fleet.config_path;
    const auto socket = loader_socket(from);
    if (!socket) return tl::unexpected(socket.error());
    // A loader owns its directories, and knows what is on its way; without one the targets are asked.
    if (!socket->empty()) {
      auto loader = dial_loader(*socket);
      if (loader) return say_report(loader->report(), options.fleet.as_json);
      if (!options.loader.socket.empty()) return tl::unexpected(loader.error());
    }
  }
  auto fleet = open_fleet(options.fleet, kv_store::MapUse::kLook);
  if (!fleet) return tl::unexpected(fleet.error());
  for (const std::string& note : fleet->notes) std::cerr << "status: " << note << "\n";
  return say_report(fleet->report(), options.fleet.as_json);
}

void add_walk_options(CLI::App& command, RepairOptions& options) {
  add_fleet_options(command, options.fleet);
  command
      .add_option("--bytes-per-second", options.fleet.bytes_per_second,
                  "read and written for this at most, all targets together; at least 1M")
      ->transform(size_value())
      ->check(CLI::Range(std::uint64_t{1'000'000}, UINT64_MAX))
      ->capture_default_str();
  command.add_option("--resume", options.resume_file,
                     "keep there how far it has come, every second, and go on from there if it exists");
}

const char* const kExitCodes =
    "Exit code: 0 every block is whole, 2 some are degraded (readable; shards are missing) or a target does "
    "not\n"
    "answer, 3 some cannot be read or more targets are silent than may be lost, 4 interrupted, 1 it could "
    "not be "
    "done.\n";

}  // namespace

void add_pool_repair(CLI::App& pool) {
  auto looked_at = std::make_shared<StatusOptions>();
  CLI::App* look = pool.add_subcommand(
      "status",
      std::string(
          "what the pool holds, where, and which of its targets answer, and what ails the others\n\n"
          "  trimtab pool status --profile deepseek-v4.1-flash --targets tcp://10.0.0.1:7701 "
          "tcp://10.0.0.2:7701 ...\n"
          "  trimtab pool status --config cluster.toml\n\n"
          "A running loader (of --config on this machine, or --loader SOCKET) is asked, and says too how "
          "far a change of the\npool's targets has come. Otherwise the targets are asked: over tcp:// and "
          "redis:// others go on meanwhile. A\ndirectory has one owner and is refused while another "
          "process serves it.\n") +
          kExitCodes);
  add_fleet_options(*look, looked_at->fleet);
  add_loader_options(*look, looked_at->loader);
  look->callback([looked_at] { leave_with(status(*looked_at)); });

  auto scrubbed = std::make_shared<RepairOptions>();
  CLI::App* scrub = pool.add_subcommand(
      "scrub",
      std::string(
          "reads and verifies every shard of every block, and writes anew what is damaged or missing\n\n"
          "  trimtab pool scrub --config cluster.toml --bytes-per-second 100M --resume "
          "/var/lib/trimtab/scrub\n\n"
          "Once a week finds what rots unread. Reads and writes of the pool go on meanwhile.\n") +
          kExitCodes);
  add_walk_options(*scrub, *scrubbed);
  scrub->callback([scrubbed] { leave_with(run_walk(*scrubbed, WalkKind::kScrub)); });

  auto rebuilt = std::make_shared<RepairOptions>();
  CLI::App* rebuild = pool.add_subcommand(
      "rebuild",
      std::string(
          "writes every shard that is not where it belongs: after a target was dead, or was replaced\n\n"
          "  trimtab pool rebuild --config cluster.toml\n"
          "  trimtab pool rebuild --config cluster.toml --replace 3=tcp://10.0.0.9:7701   # an empty "
          "one for number 3\n\n"
          "A running loader rebuilds by itself when a target comes back or is replaced (`trimtab pool "
          "replace`);\nthis is for a pool that no loader serves. After --replace the configuration needs the "
          "new "
          "place.\n") +
          kExitCodes);
  add_walk_options(*rebuild, *rebuilt);
  rebuild->add_option("--replace", rebuilt->replacements,
                      "N=PLACE: PLACE stands for target N from now on, and gets what belongs to it");
  rebuild->callback([rebuilt] { leave_with(run_walk(*rebuilt, WalkKind::kRebuild)); });
}

}  // namespace trimtab::apps
