#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/error.h"
#include "engine/llama_weights.h"
#include "ipc/segment.h"

namespace trimtab::engine {

/// The state slots of one rank, in a shared segment beside its KV arena, so that a prefill rank writes
/// straight into a decode rank's slot. A slot is a header of 64 bytes and the rings of all window layers.
class StateArena {
 public:
  /// Where the slots of the rank with this KV arena lie.
  static std::string path_beside(const std::string& kv_segment) { return kv_segment + ".state"; }
  static base::Result<StateArena> create(const std::string& path, const kv::RingShape& ring,
                                         std::uint32_t slots);
  /// Another rank's. kDataLoss when its size is no whole number of such slots.
  static base::Result<StateArena> open(const std::string& path, const kv::RingShape& ring);

  std::uint32_t slots() const { return slots_; }
  const std::string& path() const { return segment_.path(); }
  std::span<std::byte> slot(std::uint32_t number) const;
  std::span<std::byte> ring(std::uint32_t number) const { return slot(number).subspan(kHeaderBytes); }
  /// The first position whose rows are in the slot (SequenceWindow::from); it travels with the slot.
  std::int64_t from(std::uint32_t number) const;
  void set_from(std::uint32_t number, std::int64_t position) const;

 private:
  static constexpr std::size_t kHeaderBytes = 64;

  ipc::Segment segment_;
  std::size_t slot_bytes_ = 0;
  std::uint32_t slots_ = 0;
};

}  // namespace trimtab::engine
