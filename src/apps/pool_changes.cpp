#include <fmt/format.h>

#include <iostream>

#include "apps/commands.h"
#include "apps/instance.h"
#include "apps/pool_loader.h"
#include "config/cluster_config.h"

namespace trimtab::apps {

using kv_pool::protocol::Manage;

void add_loader_options(CLI::App& command, LoaderOptionsOf& options) {
  command.add_option("--loader", options.socket, "the socket of a running kv-loader");
  if (command.get_option_no_throw("--config") == nullptr)
    command.add_option("--config", options.config_path,
                       "instead: the configuration with which `trimtab serve` runs on this machine");
  command.add_option("--port", options.port, "another port than the configuration's")
      ->check(CLI::Range(1, 65'535));
}

base::Result<std::string> loader_socket(const LoaderOptionsOf& options) {
  if (!options.socket.empty() || options.config_path.empty()) return options.socket;
  auto config = config::load_cluster_config(options.config_path);
  if (!config) return tl::unexpected(config.error());
  return runtime_dir_of(options.port != 0 ? options.port : config->gateway.port) + "/kv.sock";
}

base::Result<kv_pool::PoolClient> dial_loader(const std::string& socket) {
  auto client = kv_pool::PoolClient::connect(socket, base::Nanos{0});
  if (client || client.error().code != base::Code::kUnavailable) return client;
  return base::fail(
      base::Code::kUnavailable,
      fmt::format("no loader answers at {}: start `trimtab serve` or `trimtab kv-loader`, or name "
                  "its socket by --loader ({})",
                  socket, client.error().message),
      "pool");
}

namespace {

struct ChangeOptions {
  LoaderOptionsOf loader;
  Manage change;
};

base::Status change_pool(const ChangeOptions& options, const std::string& afterwards) {
  const auto socket = loader_socket(options.loader);
  if (!socket) return tl::unexpected(socket.error());
  if (socket->empty())
    return base::fail(base::Code::kInvalidArgument,
                      "which pool? --config FILE of the running `trimtab serve`, or --loader SOCKET", "pool");
  auto client = dial_loader(*socket);
  if (!client) return tl::unexpected(client.error());
  TRIMTAB_TRY(client->manage(options.change));
  std::cout << afterwards << "\n";
  return {};
}

const char* const kTargetHelp = "its place (tcp://10.0.0.4:7701), or its number in `trimtab pool status`";

void add_change(CLI::App& pool, const char* name, Manage::Change change, const std::string& help,
                const std::string& afterwards) {
  auto options = std::make_shared<ChangeOptions>();
  options->change.change = change;
  CLI::App* command = pool.add_subcommand(name, help);
  if (change != Manage::Change::kExpand)
    command->add_option("target", options->change.target, kTargetHelp)->required();
  if (change == Manage::Change::kExpand)
    command->add_option("places", options->change.places, "the new targets' places; they must be empty")
        ->required();
  if (change == Manage::Change::kExpand)
    command->add_option("--racks", options->change.racks,
                        "the rack of each, where [pool] racks says those of the others");
  if (change == Manage::Change::kReplace)
    command->add_option("place", options->change.places, "the empty target that stands in")
        ->required()
        ->expected(1);
  add_loader_options(*command, options->loader);
  command->callback([options, afterwards] { finish(change_pool(*options, afterwards)); });
}

}  // namespace

void add_pool_changes(CLI::App& pool) {
  const std::string watch = " `trimtab pool status` shows how far it has come.";
  add_change(pool, "give-up", Manage::Change::kGiveUp,
             "a dead target that does not come back: its shards are computed anew on the others\n\n"
             "  trimtab pool give-up tcp://10.0.0.4:7701 --config cluster.toml\n\n"
             "For pools of 13 targets or more; smaller ones put another in its place (`replace`). One that "
             "answers is refused: drain it.\n"
             "All loaders of the pool find the change at the targets, whichever of them was asked.",
             "It is given up, and may leave [pool] targets now. Its shards are computed anew on the others." +
                 watch);
  add_change(pool, "drain", Manage::Change::kDrain,
             "empties a target that is to leave: its shards move to the others, and no block is less than "
             "whole meanwhile\n\n"
             "  trimtab pool drain tcp://10.0.0.4:7701 --config cluster.toml\n"
             "  trimtab pool status --config cluster.toml      # until it is `gone`; then take it out of "
             "[pool] targets\n\n"
             "At least twelve others must stay where there are that many.",
             "It is being drained: keep it running and among [pool] targets until it is `gone`." + watch);
  add_change(
      pool, "expand", Manage::Change::kExpand,
      "empty targets join: each gets its share of the shards, and few move\n\n"
      "  trimtab pool expand tcp://10.0.0.14:7701 tcp://10.0.0.15:7701 --config cluster.toml\n\n"
      "A target that is added to [pool] targets joins by itself when the loader starts; this does it "
      "while it runs.",
      "They joined. Add them to [pool] targets of every loader of this pool before its next start." + watch);
  add_change(
      pool, "replace", Manage::Change::kReplace,
      "an empty target stands in another one's place, and gets what belongs to it\n\n"
      "  trimtab pool replace tcp://10.0.0.4:7701 tcp://10.0.0.9:7701 --config cluster.toml\n\n"
      "For a target that is dead, or of which nothing is needed because every block is whole; write "
      "the new place into [pool] targets before the loader's next start. Offline: `trimtab pool rebuild "
      "--replace`.",
      "It stands in. Write its place instead of the old one in [pool] targets of every loader of this "
      "pool before its next start." +
          watch);
}

}  // namespace trimtab::apps
