#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::kv {

/// The sliding-window part of a state slot: for each layer a ring of rows, token `position` in row
/// `position % ring_slots`. For V4.1: 20 layers x 134 rows x 528 bytes (system facts, section 10).
struct RingShape {
  std::int64_t layers = 0;
  std::int64_t ring_slots = 0;  // window_tokens + the tokens that may be taken back
  std::int64_t window_tokens = 0;
  std::int64_t row_bytes = 0;  // of one token in one layer
};

constexpr base::Bytes ring_bytes(const RingShape& shape) {
  return base::Bytes{shape.layers * shape.ring_slots * shape.row_bytes};
}
/// Tokens whose rows a snapshot at `position` has: those that the next token sees.
constexpr std::int64_t snapshot_tokens(const RingShape& shape, std::int64_t position) {
  return position < shape.window_tokens ? position : shape.window_tokens;
}
constexpr base::Bytes snapshot_bytes(const RingShape& shape, std::int64_t position) {
  return base::Bytes{shape.layers * snapshot_tokens(shape, position) * shape.row_bytes};
}

/// Copies the window before `position`, a multiple of 128, out of a ring into which `written` tokens have
/// gone: [layer][token, oldest first][row]. `snapshot` has `snapshot_bytes` bytes.
/// kInvalidArgument when the ring has gone on too far (its rows of the window are overwritten: a chunk must
/// end, or stop for the copy, at most ring - window tokens after the multiple) or has not come that far.
base::Status copy_window_out(const RingShape& shape, std::span<const std::byte> ring, std::int64_t written,
                             std::int64_t position, std::span<std::byte> snapshot);

/// Puts a snapshot of `position` into a ring: the next token is the one at `position`. Rows that the snapshot
/// does not have become zero, so that nothing of the slot's last request stays.
void copy_window_in(const RingShape& shape, std::span<const std::byte> snapshot, std::int64_t position,
                    std::span<std::byte> ring);

}  // namespace trimtab::kv
