#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>

#include "base/error.h"
#include "base/units.h"

namespace trimtab::swap_in {

/// What the computing thread waits at: layers are there in order, each before it is computed. One writer (the
/// swap thread), one reader.
class LayerGate {
 public:
  explicit LayerGate(std::uint32_t layers) : layers_(layers) {}

  /// Layers [0, count) are in device memory.
  void open(std::uint32_t count);
  /// No more layers will come: whoever waits, or will wait for one that is not there, is told so.
  void fail(base::Error error);

  /// Returns when `layer` is there. Errors: what `fail` was told; kDeadlineExceeded.
  base::Status wait(std::uint32_t layer, base::Nanos timeout = base::kForever);

  std::uint32_t layers() const { return layers_; }
  std::uint32_t open_layers() const { return open_.load(std::memory_order_acquire) & kCount; }
  bool failed() const { return (open_.load(std::memory_order_acquire) & kFailed) != 0; }
  /// Time that `wait` has waited so far: what the copies cost computing.
  base::Nanos stalled() const { return base::Nanos{stalled_ns_.load(std::memory_order_relaxed)}; }

 private:
  static constexpr std::uint32_t kFailed = 1U << 31, kCount = kFailed - 1;
  std::uint32_t layers_;
  std::atomic<std::uint32_t> open_{0};
  std::atomic<std::int64_t> stalled_ns_{0};
  mutable std::mutex mutex_;
  base::Error error_;
};

}  // namespace trimtab::swap_in
