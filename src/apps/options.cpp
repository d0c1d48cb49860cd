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

void finish(const base::Status& status) {
  if (status) return;
  std::cerr << "trimtab: " << status.error().message;
  if (!status.error().origin.empty()) std::cerr << " (" << status.error().origin << ")";
  std::cerr << "\n";
  throw CLI::RuntimeError(1);
}

}  // namespace trimtab::apps
