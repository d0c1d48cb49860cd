#include "engine/kv_arena.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>

#include "engine/arena_segment.h"

namespace trimtab::engine {

base::Result<KvArena> KvArena::create(const std::string& path, const LlamaShape& shape, std::uint32_t blocks,
                                      KvFormat format) {
  if (blocks == 0)
    return base::fail(base::Code::kInvalidArgument, "kv_blocks is 0: a rank needs at least one", "engine");
  const std::size_t block_bytes = shape.kv_block_bytes(format);
  auto segment = ipc::Segment::create(path, block_bytes * blocks);
  if (!segment) return tl::unexpected(segment.error());
  KvArena arena;
  arena.segment_ = std::move(*segment);
  arena.block_bytes_ = block_bytes;
  arena.format_ = format;
  arena.kv_heads_ = shape.kv_heads;
  arena.blocks_ = blocks;
  return arena;
}

base::Result<KvArena> KvArena::create_private(const LlamaShape& shape, std::uint32_t blocks,
                                              KvFormat format) {
  static std::atomic<std::uint32_t> serial{0};
  const std::string path = fmt::format("/dev/shm/trimtab-private-{}-{}", getpid(), serial.fetch_add(1));
  auto arena = create(path, shape, blocks, format);
  ipc::Segment::remove(path);
  return arena;
}

base::Result<KvArena> KvArena::open(const std::string& path, const LlamaShape& shape) {
  const std::size_t block_bytes = shape.kv_block_bytes();
  auto segment = open_segment(path, block_bytes, "KV blocks");
  if (!segment) return tl::unexpected(segment.error());
  KvArena arena;
  arena.blocks_ = static_cast<std::uint32_t>(segment->size() / block_bytes);
  arena.segment_ = std::move(*segment);
  arena.block_bytes_ = block_bytes;
  arena.kv_heads_ = shape.kv_heads;
  return arena;
}

}  // namespace trimtab::engine
