#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"

namespace trimtab::swap_in {

/// One piece to move: part of a block from host memory to its place in device memory. Both are addresses the
/// backend can reach: of ordinary memory here, of pinned and of device memory with CUDA, of registered memory
/// with RDMA.
struct Copy {
  const std::byte* source = nullptr;
  std::byte* destination = nullptr;
  std::size_t bytes = 0;
};

/// A place in the order of what a backend was given; bigger is later.
using Marker = std::uint64_t;

/// One way of moving blocks from host to device memory (system facts, section 12). Used by one thread.
class Backend {
 public:
  Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;
  /// Copies that one `start` takes.
  virtual std::uint32_t batch_max() const = 0;
  /// Part of its speed that computing loses while this copies; an assumption until it is measured.
  virtual double compute_share() const { return 0; }

  /// Starts copies (at most batch_max); sources and destinations stay valid until a later marker is reached.
  /// kUnavailable, kIo: the device refused; what was started before may still land.
  virtual base::Status start(std::span<const Copy> copies) = 0;
  /// Marks the end of everything started so far.
  virtual base::Result<Marker> mark() = 0;
  /// Whether everything before the marker has landed, without waiting.
  virtual base::Result<bool> reached(Marker marker) = 0;
  /// Waits for it.
  virtual base::Status wait(Marker marker) = 0;
  /// Lets work that is put on the device's `stream` from now on wait for the marker, without the host:
  /// kUnsupported where computing is not ordered by a stream.
  virtual base::Status hold_stream(Marker marker, void* stream);
};

}  // namespace trimtab::swap_in
