#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kv_store/striped_store.h"

namespace trimtab::apps {

/// Which pool a command works on.
struct FleetOptions {
  std::vector<std::string> targets;
  std::string config_path, profile, profiles_dir;
  std::vector<std::uint64_t> layer_bytes;  // of a block; instead of a profile's
  std::uint64_t directory_bytes = 0;       // of all directories together
  std::uint64_t bytes_per_second = 200'000'000;
  bool as_json = false;
};
void add_fleet_options(CLI::App& command, FleetOptions& options);

struct Fleet {
  std::vector<std::string> targets;  // as they were given
  kv_code::StripeLayout layout;
  std::unique_ptr<kv_store::StripedStore> store;

  base::Nanos now() const;
  /// Sleeps until something is to do, 100 ms at most, and does it.
  void turn();
  void turn_for(base::Nanos span);
  std::vector<kv_store::StoreEvent> events;
};

/// Those named, else the configuration's. Errors: neither names any.
base::Result<std::vector<std::string>> targets_of(const FleetOptions& options);

/// Opens all targets and waits until it is known which of them answer. Errors: no targets or no layout; a
/// directory that another process serves.
base::Result<Fleet> open_fleet(const FleetOptions& options);

/// How whole the blocks are by what the targets say they hold.
struct FleetState {
  std::uint64_t blocks = 0;           // of which anything is known
  std::uint64_t whole = 0;            // every shard where it belongs
  std::uint64_t degraded = 0;         // readable, with fewer
  std::uint64_t unreadable = 0;       // fewer than ten shards: to be computed again
  std::vector<std::uint64_t> shards;  // by target

  /// What the commands exit with: 0 all whole, 2 something is degraded, 3 something cannot be read.
  int exit_code() const { return unreadable > 0 ? 3 : degraded > 0 ? 2 : 0; }
};
FleetState state_of(const Fleet& fleet);
void print_state(const FleetState& state, Fleet& fleet, bool as_json);

}  // namespace trimtab::apps
