#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "swap_in/backend.h"

/// Swapping in with CUDA (built where nvcc is found; TRIMTAB_CUDA tells). Each backend has a stream of its
/// own; `hold_stream` orders a compute stream behind it. Sources are pinned host memory (`HostRegistration`),
/// destinations device memory.
///
/// Compiled and linked, but not run, on machines without a GPU: the device tests there skip.
namespace trimtab::swap_in::cuda {

/// kUnavailable: no driver, or no such device (its number is named).
base::Status use_device(int device);

/// Pins the loader's arena for the device; gives it back on destruction.
class HostRegistration {
 public:
  static base::Result<HostRegistration> pin(std::span<std::byte> arena);
  HostRegistration(HostRegistration&& other) noexcept : base_(other.base_) { other.base_ = nullptr; }
  HostRegistration& operator=(HostRegistration&&) = delete;
  ~HostRegistration();

 private:
  explicit HostRegistration(void* base) : base_(base) {}
  void* base_ = nullptr;
};

/// One asynchronous copy per block on a copy engine: simple, and bound by the cost of submitting.
base::Result<std::unique_ptr<Backend>> make_copy_engine(int device);

/// Many copies in one call (cudaMemcpyBatchAsync), at most `batch` (system facts: it must be bounded).
base::Result<std::unique_ptr<Backend>> make_copy_engine_batch(int device, std::uint32_t batch = 256);

struct GatherOptions {
  std::uint32_t batch = 1'024;
  std::uint32_t processors = 16;  // SMs that the kernel may fill; the rest stay with computing
};
/// A kernel whose threads read the pinned arena over PCIe: cheapest to submit, but it shares the processors
/// with computing.
base::Result<std::unique_ptr<Backend>> make_gather(int device, const GatherOptions& options = {});

}  // namespace trimtab::swap_in::cuda
