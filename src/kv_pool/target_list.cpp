#include "kv_pool/target_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/units.h"
#include "kv_remote/net/network_target.h"
#include "kv_remote/redis/redis_target.h"
#include "kv_remote/usrbio/usrbio_engine.h"
#include "kv_store/map_record.h"
#include "kv_target/file/log_file.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_pool {

namespace {

using Opened = base::Result<std::unique_ptr<kv_target::Target>>;

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

constexpr std::string_view kUsrbio = "usrbio:";

/// Of usrbio:MOUNT:DIRECTORY what stands before and behind the last colon; nothing where there is none.
std::pair<std::string, std::string> usrbio_parts(std::string_view spec) {
  spec.remove_prefix(kUsrbio.size());
  const std::size_t colon = spec.rfind(':');
  if (colon == std::string_view::npos) return {};
  return {std::string(spec.substr(0, colon)), std::string(spec.substr(colon + 1))};
}

Opened open_file_target(const std::string& mount, kv_target::FileTarget::Options options) {
  if (mount.empty()) {
    auto target = kv_target::FileTarget::open(std::move(options));
    if (!target) return tl::unexpected(target.error());
    return std::unique_ptr<kv_target::Target>(std::move(*target));
  }
  const auto api = kv_remote::usrbio::system_api();
  if (!api) return tl::unexpected(api.error());
  kv_remote::UsrbioOptions usrbio;
  usrbio.mount_point = mount;
  auto target = kv_remote::open_on_3fs(std::move(options), std::move(usrbio), **api);
  if (!target) return tl::unexpected(target.error());
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

/// `mount`: of the 3FS that it is on, whose FUSE mount is to be gone around; empty: as the kernel has it.
Opened open_directory(std::string directory, std::uint64_t bytes, std::uint64_t shard_bytes,
                      base::Nanos owner_patience, const std::string& mount = {}) {
  kv_target::FileTarget::Options options;
  options.directory = std::move(directory);
  options.owner_patience = owner_patience;
  // The pool's map has its own room beside the blocks': a record, and its next version.
  options.capacity_bytes = bytes + 2 * options.layout.unit_bytes;
  options.shard_bytes = std::max<std::uint64_t>(shard_bytes, kv_store::kMapBytesMost);
  // Small pools get small files, so that one does not reserve more than it may hold.
  while (options.layout.file_bytes / 4 > std::max(bytes, 4 * shard_bytes)) options.layout.file_bytes /= 4;
  // One that is there keeps its files, whatever room it is given now.
  if (const auto made = kv_target::file::layout_of(options.directory)) options.layout = *made;
  return open_file_target(mount, std::move(options));
}

Opened open_network(const std::string& address, base::Nanos patience) {
  kv_remote::NetworkOptions options;
  options.server = address;
  options.follow_in_background = true;  // one slow machine must not hold up the reads of the others
  auto target = kv_remote::NetworkTarget::open(std::move(options));
  if (!target) return tl::unexpected(target.error());
  // One that is down at start is one that may come back: the store goes on without it.
  [[maybe_unused]] const auto there = (*target)->wait_until_connected(patience);
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

Opened open_redis(const std::string& address, std::uint64_t shard_bytes) {
  auto parts = kv_remote::parse_redis_address(address);
  if (!parts) return tl::unexpected(parts.error());
  kv_remote::RedisOptions options;
  options.servers = {parts->server};
  options.login = std::move(parts->login);
  if (options.login.password.empty()) {
    auto login = kv_remote::redis_login_from_environment();
    if (!login) return tl::unexpected(login.error());
    options.login = std::move(*login);
  }
  options.shard_bytes = std::max<std::uint64_t>(shard_bytes, kv_store::kMapBytesMost);
  auto target = kv_remote::RedisTarget::open(std::move(options));
  if (!target) return tl::unexpected(target.error());
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

}  // namespace

std::optional<std::string> directory_of(const std::string& spec) {
  if (spec.find("://") != std::string::npos) return std::nullopt;
  if (starts(spec, kUsrbio)) return usrbio_parts(spec).second;
  return starts(spec, "dir:") ? spec.substr(4) : spec;
}

base::Result<std::unique_ptr<kv_target::Target>> open_target(const std::string& spec,
                                                             std::uint64_t directory_bytes,
                                                             std::uint64_t shard_bytes,
                                                             OpenPatience patience) {
  if (starts(spec, "tcp://")) return open_network(spec.substr(6), patience.answer);
  if (starts(spec, "redis://")) return open_redis(spec.substr(8), shard_bytes);
  if (starts(spec, kUsrbio)) {
    auto [mount, directory] = usrbio_parts(spec);
    if (!mount.empty() && starts(directory, mount + "/"))
      return open_directory(std::move(directory), directory_bytes, shard_bytes, patience.owner, mount);
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("'{}': say usrbio:MOUNT:DIRECTORY with a directory under the mount point, "
                                  "as usrbio:/3fs/stage:/3fs/stage/kv/0",
                                  spec),
                      "pool.targets");
  }
  if (auto directory = directory_of(spec))
    return open_directory(std::move(*directory), directory_bytes, shard_bytes, patience.owner);
  return base::fail(base::Code::kInvalidArgument,
                    fmt::format("'{}' is no place for shards: give a directory, tcp://host:port or "
                                "redis://host:port",
                                spec),
                    "pool.targets");
}

std::string place_of(const std::string& spec) {
  const std::size_t at = spec.rfind('@');
  if (!starts(spec, "redis://") || at == std::string::npos) return spec;
  return "redis://" + spec.substr(at + 1);
}

static std::uint64_t directories_in(std::span<const std::string> specs) {
  return static_cast<std::uint64_t>(
      std::ranges::count_if(specs, [](const std::string& spec) { return directory_of(spec).has_value(); }));
}

std::uint64_t directory_share(std::span<const std::string> specs, std::uint64_t directory_bytes) {
  return directory_bytes / std::max<std::uint64_t>(1, directories_in(specs));
}

base::Result<TargetList> open_targets(std::span<const std::string> specs, std::uint64_t directory_bytes,
                                      std::uint64_t shard_bytes) {
  TargetList list;
  const std::uint64_t share = directory_share(specs, directory_bytes);
  if (directories_in(specs) > 0 && share < on_disk(shard_bytes))
    return base::fail(
        base::Code::kInvalidArgument,
        fmt::format("pool.file_bytes = {} is {} bytes for each directory, and one shard of this model's "
                    "blocks takes {}: give at least {} for each of them, and hundreds of times that "
                    "for a pool of use",
                    directory_bytes, share, on_disk(shard_bytes), on_disk(shard_bytes)),
        "pool");
  for (const std::string& spec : specs) {
    auto target = open_target(spec, share, shard_bytes);
    if (!target) return tl::unexpected(target.error());
    if (const auto space = (*target)->space()) list.capacity_bytes += space->capacity_bytes;
    list.targets.push_back(std::move(*target));
  }
  return list;
}

}  // namespace trimtab::kv_pool
