#include "engine/arena_segment.h"

#include <fmt/format.h>

namespace trimtab::engine {

base::Result<ipc::Segment> open_segment(const std::string& path, std::size_t unit_bytes,
                                        std::string_view units) {
  auto segment = ipc::Segment::open(path);
  if (segment && (segment->size() == 0 || segment->size() % unit_bytes != 0)) {
    return base::fail(base::Code::kDataLoss,
                      fmt::format("{} has {} bytes, no whole number of {} of {}: it belongs to another model",
                                  path, segment->size(), units, unit_bytes),
                      "engine");
  }
  return segment;
}

}  // namespace trimtab::engine
