#include "engine/state_arena.h"

#include <cstring>

#include "base/check.h"
#include "engine/arena_segment.h"

namespace trimtab::engine {

base::Result<StateArena> StateArena::create(const std::string& path, const kv::RingShape& ring,
                                            std::uint32_t slots) {
  StateArena arena;
  arena.slot_bytes_ = kHeaderBytes + static_cast<std::size_t>(kv::ring_bytes(ring).value);
  auto segment = ipc::Segment::create(path, arena.slot_bytes_ * slots);
  if (!segment) return tl::unexpected(segment.error());
  arena.segment_ = std::move(*segment);
  arena.slots_ = slots;
  return arena;
}

base::Result<StateArena> StateArena::open(const std::string& path, const kv::RingShape& ring) {
  StateArena arena;
  arena.slot_bytes_ = kHeaderBytes + static_cast<std::size_t>(kv::ring_bytes(ring).value);
  auto segment = open_segment(path, arena.slot_bytes_, "state slots");
  if (!segment) return tl::unexpected(segment.error());
  arena.slots_ = static_cast<std::uint32_t>(segment->size() / arena.slot_bytes_);
  arena.segment_ = std::move(*segment);
  return arena;
}

std::span<std::byte> StateArena::slot(std::uint32_t number) const {
  TRIMTAB_CHECK(number < slots_, "state slot " + std::to_string(number) + " of " + std::to_string(slots_));
  return segment_.bytes().subspan(number * slot_bytes_, slot_bytes_);
}

std::int64_t StateArena::from(std::uint32_t number) const {
  std::int64_t position = 0;
  std::memcpy(&position, slot(number).data(), sizeof position);
  return position;
}

void StateArena::set_from(std::uint32_t number, std::int64_t position) const {
  std::memcpy(slot(number).data(), &position, sizeof position);
}

}  // namespace trimtab::engine
