#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/cluster_config.h"

/// Any text is a configuration or an error with its place; what was accepted prints and loads back.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::config;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto config = parse_cluster_config(text, "fuzz.toml");
  if (!config && (config.error().message.empty() || config.error().origin.empty())) std::abort();
  if (config && !parse_cluster_config(cluster_config_toml(*config), "printed.toml")) std::abort();
  return 0;
}
