#include "text/canonical_json.h"
#include "text/stop_matcher.h"
#include "text/utf8.h"

/// Any bytes: repaired text is valid, what a stop matcher shows and holds is the text, JSON parses or fails.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::text;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string repaired = repair_utf8(bytes);
  if (valid_utf8_prefix(repaired) != repaired.size()) __builtin_trap();
  const std::string replaced = replace_broken_bytes(bytes);
  if (valid_utf8_prefix(replaced) != replaced.size()) __builtin_trap();
  if (const auto value = parse_json(bytes, "input"))
    (void)value->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (size > 2) {
    const std::size_t split = 1 + data[0] % (size - 1);
    auto matcher = StopMatcher::create({std::string(bytes.substr(0, std::min<std::size_t>(split, 8)))});
    if (!matcher) return 0;
    auto output = matcher->push(bytes.substr(split));
    std::string shown = output.text + matcher->flush();
    if (!bytes.substr(split).starts_with(shown)) __builtin_trap();
    if (!output.matched && shown.size() != size - split) __builtin_trap();
  }
  return 0;
}
