#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>

#include "apps/commands.h"

namespace trimtab::apps {

void add_instance_options(CLI::App& command, InstanceOptions& options) {
  command.add_option("--config", options.config_path, "cluster configuration, TOML")->capture_default_str();
  command.add_option("--port", options.port, "another port than the configuration's")
      ->check(CLI::Range(1, 65'535));
  command.add_option("--model-path", options.model_path, "GGUF file of the model");
  command.add_option("--state-dir", options.state_dir, "pool, remembered answers, logs; survives restarts");
  command.add_option("--profiles-dir", options.profiles_dir, "directory of the model profiles");
}

namespace {

/// What was printed is there, or not all of it: a full disk says so at the flush.
base::Status printed() {
  errno = 0;
  const bool ok =
      static_cast<bool>(std::cout.flush()) && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (ok) return {};
  return base::fail(base::Code::kIo, fmt::format("standard output: cannot write: {}",
                                                 errno != 0 ? std::strerror(errno) : "is the disk full?"));
}

}  // namespace

void finish(const base::Status& asked) {
  const base::Status status = asked ? printed() : asked;
  if (status) return;
  std::cerr << "trimtab: " << status.error().message;
  if (!status.error().origin.empty()) std::cerr << " (" << status.error().origin << ")";
  std::cerr << "\n";
  throw CLI::RuntimeError(1);
}

}  // namespace trimtab::apps
