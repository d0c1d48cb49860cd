#include <cstddef>
#include <cstdint>
#include <string>

#include "gateway/anthropic_request.h"
#include "gateway/openai_request.h"

/// Any bytes as the body of either API: an answer or an error, never a crash. The first byte picks the API.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab::gateway;
  static JsonParser parser;
  static const RequestLimits limits = [] {
    RequestLimits made;
    made.model = "m";
    made.images_max = 4;
    made.vision.formula = trimtab::model::VisionSpec::Formula::kGrid;
    made.vision.pixels_max = 50'000'000;
    return made;
  }();
  if (size == 0) return 0;
  std::string body(reinterpret_cast<const char*>(data) + 1, size - 1);
  const auto object = parser.parse(body);
  if (!object) return 0;
  if (data[0] % 2 == 0) {
    (void)parse_openai(*object, limits);
  } else {
    (void)parse_anthropic(*object, limits, data[0] % 4 == 1);
  }
  return 0;
}
