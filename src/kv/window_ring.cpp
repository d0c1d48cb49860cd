#include "kv/window_ring.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/check.h"
#include "model/ids.h"

namespace trimtab::kv {

namespace {

/// Calls `copy(offset in the ring, offset in the snapshot, bytes)` for each run of rows that is contiguous in
/// both: one a layer, two where the window lies across the ring's end.
template <class Copy>
void for_each_run(const RingShape& shape, std::int64_t position, Copy&& copy) {
  const std::int64_t tokens = snapshot_tokens(shape, position);
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    for (std::int64_t done = 0; done < tokens;) {
      const std::int64_t row = (position - tokens + done) % shape.ring_slots;
      const std::int64_t run = std::min(tokens - done, shape.ring_slots - row);
      copy(static_cast<std::size_t>((layer * shape.ring_slots + row) * shape.row_bytes),
           static_cast<std::size_t>((layer * tokens + done) * shape.row_bytes),
           static_cast<std::size_t>(run * shape.row_bytes));
      done += run;
    }
  }
}

void check(const RingShape& shape, std::int64_t position, std::size_t ring, std::size_t snapshot) {
  TRIMTAB_CHECK(shape.window_tokens > 0 && shape.ring_slots >= shape.window_tokens,
                "a ring holds its window");
  TRIMTAB_CHECK(position > 0 && position % model::kBlockTokens == 0,
                "snapshots are at multiples of 128 tokens, not at " + std::to_string(position));
  TRIMTAB_CHECK(static_cast<std::int64_t>(ring) == ring_bytes(shape).value, "a ring of another shape");
  TRIMTAB_CHECK(static_cast<std::int64_t>(snapshot) == snapshot_bytes(shape, position).value,
                "a snapshot of another shape");
}

}  // namespace

base::Status copy_window_out(const RingShape& shape, std::span<const std::byte> ring, std::int64_t written,
                             std::int64_t position, std::span<std::byte> snapshot) {
  check(shape, position, ring.size(), snapshot.size());
  // A row is overwritten by the token ring_slots later; the oldest row of the window goes first.
  if (written < position || written > position - snapshot_tokens(shape, position) + shape.ring_slots) {
    return base::fail(base::Code::kInvalidArgument,
                      "the window before token " + std::to_string(position) + " is not in a ring of " +
                          std::to_string(shape.ring_slots) + " after " + std::to_string(written) +
                          " tokens: take the snapshot before the computation goes on",
                      "kv");
  }
  for_each_run(shape, position, [&](std::size_t from, std::size_t to, std::size_t bytes) {
    std::memcpy(snapshot.data() + to, ring.data() + from, bytes);
  });
  return {};
}

void copy_window_in(const RingShape& shape, std::span<const std::byte> snapshot, std::int64_t position,
                    std::span<std::byte> ring) {
  check(shape, position, ring.size(), snapshot.size());
  std::memset(ring.data(), 0, ring.size());
  for_each_run(shape, position, [&](std::size_t to, std::size_t from, std::size_t bytes) {
    std::memcpy(ring.data() + to, snapshot.data() + from, bytes);
  });
}

}  // namespace trimtab::kv
