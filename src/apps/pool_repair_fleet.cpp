#include "apps/pool_repair_fleet.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <filesystem>

#include "apps/instance.h"
#include "apps/size_value.h"
#include "config/cluster_config.h"
#include "config/profile.h"
#include "ipc/steady_clock.h"
#include "kv_pool/target_list.h"

namespace trimtab::apps {
namespace {

/// A target that is down at the start is found out by vain questions, one each `feed_interval`.
constexpr base::Nanos kUntilDeathShows{400'000'000}, kUntilAnswered{2'000'000'000};

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

base::Result<model::KvLayout> layout_for(const FleetOptions& options, const model::ClusterConfig& config) {
  if (options.config_path.empty() && options.profile.empty() && options.layer_bytes.empty())
    return base::fail(base::Code::kInvalidArgument,
                      "blocks of which model? --profile NAME, --config FILE or --layer-bytes", "pool");
  return layout_of(options, options.profile.empty() ? config.model.profile : options.profile);
}

/// A name that was mistyped must not become an empty target of the pool.
base::Status there(const std::string& spec) {
  const auto directory = kv_pool::directory_of(spec);
  std::error_code ignored;
  if (!directory || std::filesystem::is_directory(*directory, ignored)) return {};
  return base::fail(
      base::Code::kNotFound,
      fmt::format("{}: no such directory; mend the name, or make it first if an empty one is to be "
                  "filled again",
                  *directory),
      "pool");
}

std::uint64_t directory_bytes_of(const FleetOptions& options, const model::ClusterConfig& config) {
  return options.directory_bytes > 0 ? options.directory_bytes
                                     : static_cast<std::uint64_t>(config.pool.file_bytes);
}

}  // namespace

void add_fleet_options(CLI::App& command, FleetOptions& options) {
  command.add_option("--targets", options.targets,
                     "the pool's places: tcp://host:7701, redis://host:6379, or a "
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
      ->transform(size_value());
  command
      .add_option("--directory-bytes", options.directory_bytes,
                  "room in directories, all together: what the pool's configuration says as file_bytes")
      ->transform(size_value());
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

base::Result<Fleet> open_fleet(const FleetOptions& options, kv_store::MapUse use) {
  Fleet fleet;
  const auto specs = targets_of(options);
  if (!specs) return tl::unexpected(specs.error());
  const auto config = config_of(options);
  if (!config) return tl::unexpected(config.error());
  const auto kv = layout_for(options, *config);
  if (!kv) return tl::unexpected(kv.error());
  auto layout = kv_code::StripeLayout::make(*kv);
  if (!layout) return tl::unexpected(layout.error());
  fleet.layout = std::move(*layout);
  if (!options.makes_places)
    for (const std::string& spec : *specs) TRIMTAB_TRY(there(spec));
  auto list = kv_pool::open_targets(*specs, directory_bytes_of(options, *config), fleet.layout.shard_bytes);
  if (!list) {
    base::Error error = list.error();
    if (error.message.find("in use") != std::string::npos)
      error.message += " (a kv-target's is reached by tcp://; a loader owns its own while it runs)";
    return tl::unexpected(std::move(error));
  }
  std::vector<std::string> places;
  for (const std::string& spec : *specs) places.push_back(kv_pool::place_of(spec));
  kv_store::StoreOptions store;
  store.layout = fleet.layout;
  store.memory_bytes = std::max<std::uint64_t>(store.memory_bytes, 256 * fleet.layout.shard_bytes);
  store.repair_bytes_per_second = options.bytes_per_second;
  store.repair_jobs = 16;
  if (options.targets.empty()) store.racks.assign(config->pool.racks.begin(), config->pool.racks.end());
  if (options.request_timeout > base::Nanos{}) store.targets.request_timeout = options.request_timeout;
  const ipc::SteadyClock clock;
  auto opened =
      kv_store::open_pool(std::move(list->targets), places, std::move(store), clock, kUntilAnswered, use);
  if (!opened) return tl::unexpected(opened.error());
  fleet.store = std::move(opened->store);
  fleet.record = std::move(opened->record);
  fleet.names = std::move(opened->names);
  fleet.notes = std::move(opened->notes);
  for (const kv_store::MapMember& member : fleet.record.members) fleet.targets.push_back(member.place);
  fleet.turn_for(kUntilDeathShows);
  const kv_store::StoreIndex& index = fleet.store->index();
  if (index.blocks() == 0 && index.strangers() > 0)
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("the targets keep {} blocks of another model and none in shards of {} bytes: name "
                    "the model whose pool this is by --profile, --config or --layer-bytes",
                    index.strangers(), fleet.layout.shard_bytes),
        "pool");
  return fleet;
}

base::Status replace_target(Fleet& fleet, const FleetOptions& options, const std::string& replacement) {
  const auto refuse = [&](const std::string& why) {
    return base::fail(base::Code::kInvalidArgument, fmt::format("'{}': {}", replacement, why), "--replace");
  };
  const std::size_t equals = replacement.find('=');
  const std::string number = replacement.substr(0, equals);
  const bool is_number =
      !number.empty() && number.size() < 5 && number.find_first_not_of("0123456789") == std::string::npos;
  if (equals == std::string::npos || !is_number || std::stoul(number) >= fleet.targets.size())
    return refuse(fmt::format("say N=PLACE with N from 0 to {}, the number that `pool status` shows",
                              fleet.targets.size() - 1));
  const auto id = static_cast<kv_store::TargetId>(std::stoul(number));
  const std::string spec = replacement.substr(equals + 1), place = kv_pool::place_of(spec);
  if (std::ranges::find(fleet.targets, place) != fleet.targets.end())
    return refuse(place + " is a target of this pool already");
  if (fleet.record.members[id].state != kv_store::MapMember::State::kIn)
    return refuse(fmt::format("target {} is leaving the pool or has left it", id));
  const auto config = config_of(options);
  if (!config) return tl::unexpected(config.error());
  const auto specs = targets_of(options);
  if (!specs) return tl::unexpected(specs.error());
  auto target = kv_pool::open_target(
      spec, kv_pool::directory_share(*specs, directory_bytes_of(options, *config)), fleet.layout.shard_bytes);
  if (!target) return tl::unexpected(target.error());
  std::shared_ptr<void> memory;
  const auto found = kv_store::look_at(**target, memory, ipc::SteadyClock(), kUntilAnswered);
  if (found.kind == kv_store::MapFound::Kind::kUnreachable) {
    target->reset();  // lets go of the memory
    return refuse(place + " cannot be reached: start it first");
  }
  const auto space = (*target)->space();
  if (found.kind == kv_store::MapFound::Kind::kRecord || (space && space->shards > 0))
    return refuse(place + " holds something already: empty it first");
  fleet.store->replace(id, std::move(*target), fleet.now(), place);
  fleet.targets[id] = fleet.names[id] = place;
  return {};
}

base::Nanos Fleet::now() const { return ipc::SteadyClock().now(); }

kv_pool::PoolReport Fleet::report() {
  return kv_pool::report_on(*store, record, names, layout.block_bytes, now());
}

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

}  // namespace trimtab::apps
