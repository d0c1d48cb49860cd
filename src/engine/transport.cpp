#include "engine/transport.h"

#include <fmt/format.h>

#include <cstring>

namespace trimtab::engine {

base::Status SharedMemoryTransport::copy(const KvArena& arena, std::uint32_t from, model::RankId target,
                                         const std::string& segment, std::uint32_t to) {
  auto found = targets_.find(target);
  if (found == targets_.end() || found->second.path() != segment) {
    auto opened = KvArena::open(segment, shape_);
    if (!opened) {
      return base::fail(
          base::Code::kUnavailable,
          fmt::format("decode rank {} is gone: {}", model::to_string(target), opened.error().message),
          "engine");
    }
    found = targets_.insert_or_assign(target, std::move(*opened)).first;
  }
  if (to >= found->second.blocks()) {
    return base::fail(base::Code::kInvalidArgument,
                      fmt::format("block {} of decode rank {}, which has {}", to, model::to_string(target),
                                  found->second.blocks()),
                      "engine");
  }
  std::memcpy(found->second.block(to).data(), arena.block(from).data(), arena.block_bytes());
  return {};
}

}  // namespace trimtab::engine
