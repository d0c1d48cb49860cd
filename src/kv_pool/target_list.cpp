#include "kv_pool/target_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/units.h"
#include "kv_remote/net/network_target.h"
#include "kv_remote/redis/redis_target.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_pool {

namespace {

using Opened = base::Result<std::unique_ptr<kv_target::Target>>;

constexpr base::Nanos kPatience{2'000'000'000};

bool starts(std::string_view text, std::string_view with) { return text.substr(0, with.size()) == with; }

Opened open_directory(std::string directory, std::uint64_t bytes, std::uint64_t shard_bytes) {
  kv_target::FileTarget::Options options;
  options.directory = std::move(directory);
  options.capacity_bytes = bytes;
  options.shard_bytes = shard_bytes;
  // Small pools get small files, so that one does not reserve more than it may hold.
  while (options.layout.file_bytes / 4 > std::max(bytes, 4 * shard_bytes)) options.layout.file_bytes /= 4;
  auto target = kv_target::FileTarget::open(std::move(options));
  if (!target) return tl::unexpected(target.error());
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

Opened open_network(const std::string& address) {
  kv_remote::NetworkOptions options;
  options.server = address;
  options.follow_in_background = true;  // one slow machine must not hold up the reads of the others
  auto target = kv_remote::NetworkTarget::open(std::move(options));
  if (!target) return tl::unexpected(target.error());
  // One that is down at start is one that may come back: the store goes on without it.
  [[maybe_unused]] const auto there = (*target)->wait_until_connected(kPatience);
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

Opened open_redis(const std::string& address, std::uint64_t shard_bytes) {
  kv_remote::RedisOptions options;
  options.servers = {address};
  options.shard_bytes = shard_bytes;
  auto target = kv_remote::RedisTarget::open(std::move(options));
  if (!target) return tl::unexpected(target.error());
  return std::unique_ptr<kv_target::Target>(std::move(*target));
}

}  // namespace

base::Result<TargetList> open_targets(std::span<const std::string> specs, std::uint64_t directory_bytes,
                                      std::uint64_t shard_bytes) {
  const auto remote = [](const std::string& spec) { return spec.find("://") != std::string::npos; };
  const auto directories = static_cast<std::uint64_t>(
      std::count_if(specs.begin(), specs.end(), [&](const std::string& spec) { return !remote(spec); }));
  TargetList list;
  for (const std::string& spec : specs) {
    Opened target =
        base::fail(base::Code::kInvalidArgument,
                   fmt::format("'{}' is no place for shards: give a directory, tcp://host:port or "
                               "redis://host:port",
                               spec),
                   "pool.targets");
    if (starts(spec, "tcp://"))
      target = open_network(spec.substr(6));
    else if (starts(spec, "redis://"))
      target = open_redis(spec.substr(8), shard_bytes);
    else if (!remote(spec))
      target = open_directory(starts(spec, "dir:") ? spec.substr(4) : spec, directory_bytes / directories,
                              shard_bytes);
    if (!target) return tl::unexpected(target.error());
    if (const auto space = (*target)->space()) list.capacity_bytes += space->capacity_bytes;
    list.targets.push_back(std::move(*target));
  }
  return list;
}

}  // namespace trimtab::kv_pool
