#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>

#include "kv_pool/pool_client.h"

namespace trimtab::apps {

/// Which running loader a command asks.
struct LoaderOptionsOf {
  std::string socket;       // --loader
  std::string config_path;  // else that of this configuration's `trimtab serve`
  std::uint16_t port = 0;   // another than the configuration's
};
void add_loader_options(CLI::App& command, LoaderOptionsOf& options);

/// Where it listens; empty: neither option says.
base::Result<std::string> loader_socket(const LoaderOptionsOf& options);
/// kUnavailable: nobody listens there; says what to start.
base::Result<kv_pool::PoolClient> dial_loader(const std::string& socket);

/// pool give-up, drain, expand, replace: changes of a running pool.
void add_pool_changes(CLI::App& pool);

}  // namespace trimtab::apps
