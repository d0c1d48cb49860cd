#include "apps/pool_repair_fleet.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/instance.h"
#include "config/cluster_config.h"
#include "config/profile.h"
#include "ipc/steady_clock.h"
#include "kv_pool/target_list.h"
#include "report/table.h"

namespace trimtab::apps {
namespace {

/// A target that is down at the start is found out by vain questions, one each `feed_interval`.
constexpr base::Nanos kUntilDeathShows{400'000'000};

base::Result<model::KvLayout> layout_of(const FleetOptions& options, const std::string& profile) {
  model::KvLayout kv;
  if (!options.layer_bytes.empty()) {
    for (const std::uint64_t bytes : options.layer_bytes) {
      kv.layer_bytes.push_back(base::Bytes{static_cast<std::int64_t>(bytes)});
      kv.block_bytes = kv.block_bytes + kv.layer_bytes.back();
    }
    return kv;
  }
  auto loaded = config::load_profile(profile, find_profiles_dir(options.profiles_dir));
  if (!loaded) return tl::unexpected(loaded.error());
  return loaded->kv;
}

base::Result<model::ClusterConfig> config_of(const FleetOptions& options) {
  if (options.config_path.empty()) return model::ClusterConfig{};
  return config::load_cluster_config(options.config_path);
}

std::string per_cent(std::uint64_t part, std::uint64_t all) {
  return all == 0 ? "-"
                  : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(all));
}

}  // namespace

void add_fleet_options(CLI::App& command, FleetOptions& options) {
  command.add_option("--targets", options.targets,
                     "the pool's places in the pool's order: tcp://host:7701, redis://host:6379, or a "
                     "directory that nobody serves");
  command.add_option(
      "--config", options.config_path,
      "a cluster configuration: takes [pool] targets, file_bytes and the model's profile from it");
  command.add_option("--profile", options.profile,
                     "the model profile whose blocks are kept; default: the configuration's");
  command.add_option("--profiles-dir", options.profiles_dir, "directory of the model profiles");
  command
      .add_option("--layer-bytes", options.layer_bytes, "instead of a profile: the bytes of a block's layers")
      ->delimiter(',')
      ->transform(CLI::AsSizeValue(false));
  command
      .add_option("--directory-bytes", options.directory_bytes,
                  "room in directories, all together: what the pool's configuration says as file_bytes")
      ->transform(CLI::AsSizeValue(false));
  command.add_flag("--json", options.as_json, "as JSON");
}

base::Result<std::vector<std::string>> targets_of(const FleetOptions& options) {
  if (!options.targets.empty()) return options.targets;
  auto config = config_of(options);
  if (!config) return tl::unexpected(config.error());
  if (!config->pool.targets.empty()) return config->pool.targets;
  return base::fail(base::Code::kInvalidArgument,
                    options.config_path.empty()
                        ? "name the pool's places: --targets tcp://host:7701 ..., or --config FILE"
                        : options.config_path + ": [pool] targets is empty: name the places by --targets",
                    "pool");
}

base::Result<Fleet> open_fleet(const FleetOptions& options) {
  Fleet fleet;
  auto targets = targets_of(options);
  if (!targets) return tl::unexpected(targets.error());
  fleet.targets = std::move(*targets);
  const auto config = config_of(options);
  if (!config) return tl::unexpected(config.error());
  if (options.config_path.empty() && options.profile.empty() && options.layer_bytes.empty())
    return base::fail(base::Code::kInvalidArgument,
                      "blocks of which model? --profile NAME, --config FILE or --layer-bytes", "pool");
  const auto kv = layout_of(options, options.profile.empty() ? config->model.profile : options.profile);
  if (!kv) return tl::unexpected(kv.error());
  auto layout = kv_code::StripeLayout::make(*kv);
  if (!layout) return tl::unexpected(layout.error());
  fleet.layout = std::move(*layout);
  const auto directory_bytes = options.directory_bytes > 0
                                   ? options.directory_bytes
                                   : static_cast<std::uint64_t>(config->pool.file_bytes);
  auto list = kv_pool::open_targets(fleet.targets, directory_bytes, fleet.layout.shard_bytes);
  if (!list) {
    base::Error error = list.error();
    if (error.message.find("in use") != std::string::npos)
      error.message += " (a kv-target's is reached by tcp://; a loader owns its own while it runs)";
    return tl::unexpected(std::move(error));
  }
  kv_store::StoreOptions store;
  store.layout = fleet.layout;
  store.memory_bytes = std::max<std::uint64_t>(store.memory_bytes, 256 * fleet.layout.shard_bytes);
  store.repair_bytes_per_second = options.bytes_per_second;
  store.repair_jobs = 16;
  auto opened = kv_store::StripedStore::open(std::move(list->targets), std::move(store), fleet.now());
  if (!opened) return tl::unexpected(opened.error());
  fleet.store = std::move(*opened);
  fleet.turn_for(kUntilDeathShows);
  return fleet;
}

base::Nanos Fleet::now() const { return ipc::SteadyClock().now(); }

void Fleet::turn() {
  const base::Nanos wake = store->next_wake();
  const std::int64_t span = std::min<std::int64_t>(wake.value - now().value, 100'000'000);
  if (span > 0) {
    std::vector<pollfd> fds;
    for (const int fd : store->wake_fds()) fds.push_back({fd, POLLIN, 0});
    ::poll(fds.data(), fds.size(), static_cast<int>((span + 999'999) / 1'000'000));
  }
  store->poll(now(), events);
}

void Fleet::turn_for(base::Nanos span) {
  for (const base::Nanos end = now() + span; now() < end;) turn();
}

FleetState state_of(const Fleet& fleet) {
  FleetState state;
  state.shards.resize(fleet.targets.size());
  const kv_store::StoreIndex& index = fleet.store->index();
  for (const kv_store::BlockKey key : index.keys()) {
    const auto at = index.find(key);
    if (!at) continue;
    ++state.blocks;
    for (const kv_store::TargetId target : *at)
      if (target != kv_store::kNowhere && index.alive(target)) ++state.shards[target];
    const auto usable = std::popcount(index.usable(*at));
    const bool at_home = std::ranges::equal(*at, fleet.store->map().of(key));
    if (!index.present(key))
      ++state.unreadable;
    else if (usable < static_cast<int>(kv_store::kShards) || !at_home)
      ++state.degraded;
    else
      ++state.whole;
  }
  return state;
}

void print_state(const FleetState& state, Fleet& fleet, bool as_json) {
  kv_store::StripedStore& store = *fleet.store;
  nlohmann::json targets = nlohmann::json::array();
  report::Table table({{"target", report::Align::kLeft},
                       {"state", report::Align::kLeft},
                       {"shards"},
                       {"used"},
                       {"of room"},
                       {"trouble", report::Align::kLeft}});
  for (kv_store::TargetId t = 0; t < fleet.targets.size(); ++t) {
    const bool answers = store.channels().usable(t) && store.index().alive(t);
    const auto space = answers ? store.space(t) : base::Result<kv_target::Space>{};
    const std::uint64_t used = answers && space ? space->used_bytes : 0;
    const std::uint64_t capacity = answers && space ? space->capacity_bytes : 0;
    const std::string health(answers ? name(store.channels().health(t)) : "dead");
    targets.push_back({{"target", fleet.targets[t]},
                       {"state", health},
                       {"shards", state.shards[t]},
                       {"used_bytes", used},
                       {"capacity_bytes", capacity},
                       {"trouble", store.trouble(t)}});
    table.add_row({fmt::format("{}  {}", t, fleet.targets[t]), health, fmt::format("{}", state.shards[t]),
                   fmt::format("{:.1f} MB", static_cast<double>(used) / 1e6), per_cent(used, capacity),
                   store.trouble(t)});
  }
  if (as_json) {
    std::cout << nlohmann::json{{"blocks", state.blocks},           {"whole", state.whole},
                                {"degraded", state.degraded},       {"unreadable", state.unreadable},
                                {"may_lose", store.map().losses()}, {"targets", targets}}
                     .dump(2)
              << "\n";
    return;
  }
  std::cout << table.text(report::terminal_style(STDOUT_FILENO));
  std::cout << fmt::format(
      "{} blocks of {} bytes: {} whole, {} degraded (readable; a rebuild or a scrub mends them), {} "
      "unreadable "
      "(they are computed again). {} of {} targets may be lost at once.\n",
      state.blocks, fleet.layout.block_bytes, state.whole, state.degraded, state.unreadable,
      store.map().losses(), fleet.targets.size());
}

}  // namespace trimtab::apps
