#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "config/profile.h"

/// Any text is a profile or an error that says what is wrong, and never more: no crash, no overflow later on.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto profile = trimtab::config::parse_profile(text, "fuzz.toml");
  if (!profile && (profile.error().message.empty() || profile.error().origin.empty())) std::abort();
  return 0;
}
