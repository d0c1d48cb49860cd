#include "swap_in/cuda/cuda_backends.h"
#include "swap_in/cuda/stream.cuh"

namespace trimtab::swap_in::cuda {
namespace {

class CopyEngine final : public StreamBackend {
 public:
  std::string_view name() const override { return "copy_engine"; }
  std::uint32_t batch_max() const override { return 1; }
  base::Status start(std::span<const Copy> copies) override {
    TRIMTAB_TRY(check(cudaSetDevice(device_), "cudaSetDevice"));
    for (const Copy& copy : copies)
      TRIMTAB_TRY(
          check(cudaMemcpyAsync(copy.destination, copy.source, copy.bytes, cudaMemcpyHostToDevice, stream_),
                "cudaMemcpyAsync"));
    return {};
  }
};

class CopyEngineBatch final : public StreamBackend {
 public:
  explicit CopyEngineBatch(std::uint32_t batch) : batch_(batch) {}
  std::string_view name() const override { return "copy_engine_batch"; }
  std::uint32_t batch_max() const override { return batch_; }

  base::Status start(std::span<const Copy> copies) override {
    if (copies.empty()) return {};
    TRIMTAB_TRY(check(cudaSetDevice(device_), "cudaSetDevice"));
    sources_.clear(), destinations_.clear(), bytes_.clear();
    for (const Copy& copy : copies) {
      sources_.push_back(copy.source);
      destinations_.push_back(copy.destination);
      bytes_.push_back(copy.bytes);
    }
    // Sources are final before they are given, so the engine may read them in any order, while the call runs
    // too.
    cudaMemcpyAttributes how{};
    how.srcAccessOrder = cudaMemcpySrcAccessOrderAny;
    how.srcLocHint.type = cudaMemLocationTypeHost;
    how.dstLocHint.type = cudaMemLocationTypeDevice;
    how.dstLocHint.id = device_;
    how.flags = cudaMemcpyFlagPreferOverlapWithCompute;
    std::size_t first = 0;  // the attributes hold from the first copy on
    return check(cudaMemcpyBatchAsync(destinations_.data(), sources_.data(), bytes_.data(), copies.size(),
                                      &how, &first, 1, stream_),
                 "cudaMemcpyBatchAsync");
  }

 private:
  std::uint32_t batch_;
  std::vector<const void*> sources_;
  std::vector<void*> destinations_;
  std::vector<std::size_t> bytes_;
};

template <class B>
base::Result<std::unique_ptr<Backend>> opened(std::unique_ptr<B> backend, int device) {
  TRIMTAB_TRY(use_device(device));
  TRIMTAB_TRY(backend->open(device));
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace

base::Status use_device(int device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess)
    return base::fail(base::Code::kUnavailable, std::string{"no CUDA device: "} + cudaGetErrorString(error),
                      "swap_in/cuda");
  if (device < 0 || device >= count)
    return base::fail(
        base::Code::kUnavailable,
        "no CUDA device " + std::to_string(device) + "; this machine has " + std::to_string(count),
        "swap_in/cuda");
  return check(cudaSetDevice(device), "cudaSetDevice");
}

base::Result<HostRegistration> HostRegistration::pin(std::span<std::byte> arena) {
  TRIMTAB_TRY(
      check(cudaHostRegister(arena.data(), arena.size(), cudaHostRegisterPortable), "cudaHostRegister"));
  return HostRegistration(arena.data());
}
HostRegistration::~HostRegistration() {
  if (base_ != nullptr) cudaHostUnregister(base_);
}

base::Result<std::unique_ptr<Backend>> make_copy_engine(int device) {
  return opened(std::make_unique<CopyEngine>(), device);
}
base::Result<std::unique_ptr<Backend>> make_copy_engine_batch(int device, std::uint32_t batch) {
  return opened(std::make_unique<CopyEngineBatch>(batch), device);
}

}  // namespace trimtab::swap_in::cuda
