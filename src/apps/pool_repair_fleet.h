#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "kv_pool/store_report.h"
#include "kv_store/map_search.h"

namespace trimtab::apps {

/// Which pool a command works on.
struct FleetOptions {
  std::vector<std::string> targets;
  std::string config_path, profile, profiles_dir;
  std::vector<std::uint64_t> layer_bytes;  // of a block; instead of a profile's
  std::uint64_t directory_bytes = 0;       // of all directories together
  std::uint64_t bytes_per_second = 200'000'000;
  bool as_json = false;
  base::Nanos request_timeout;  // zero: the store's own
  bool makes_places = false;    // directories that are not there are made; else refused
};
void add_fleet_options(CLI::App& command, FleetOptions& options);

struct Fleet {
  std::vector<std::string> targets;  // by number, without passwords, as the map has them
  std::vector<std::string> names;    // the same, as they were named
  kv_code::StripeLayout layout;
  kv_store::MapRecord record;  // by which it was opened
  std::unique_ptr<kv_store::StripedStore> store;
  std::vector<std::string> notes;

  base::Nanos now() const;
  /// Sleeps until something is to do, 100 ms at most, and does it.
  void turn();
  void turn_for(base::Nanos span);
  kv_pool::PoolReport report();
  std::vector<kv_store::StoreEvent> events;
};

/// Those named, else the configuration's. Errors: neither names any.
base::Result<std::vector<std::string>> targets_of(const FleetOptions& options);

/// Opens all targets by the pool's map, which it does not change (where nobody keeps one: by the list's
/// order), and waits until it is known which of them answer. kLook: `replace` cannot be used. Errors: no
/// targets or no layout; a directory that another process serves; those of kv_store::open_pool.
base::Result<Fleet> open_fleet(const FleetOptions& options, kv_store::MapUse use);

/// "N=PLACE": the empty target PLACE stands in for number N from now on. Errors name what is wrong with it.
base::Status replace_target(Fleet& fleet, const FleetOptions& options, const std::string& replacement);

/// Targets that the pool counts on and that do not answer.
std::uint32_t dead_targets(const kv_pool::PoolReport& report);
/// What the commands exit with: 0 all whole, 2 something is degraded, 3 something cannot be read. Of what
/// dead targets hold nothing is known: they are a loss of their own, also where no block is known at all.
int exit_code_of(const kv_pool::PoolReport& report);
void print_report(const kv_pool::PoolReport& report, bool as_json);

}  // namespace trimtab::apps
