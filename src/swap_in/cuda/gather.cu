#include <algorithm>

#include "swap_in/cuda/cuda_backends.h"
#include "swap_in/cuda/stream.cuh"

namespace trimtab::swap_in::cuda {
namespace {

constexpr unsigned kThreads = 512;
constexpr std::size_t kPiece = 16'384;  // bytes that one thread block moves before it takes the next piece

/// One row per copy; thread blocks share the pieces of all rows among themselves. 16 bytes a thread where
/// both sides are aligned, single bytes for what is left.
__global__ void gather(const Copy* copies, unsigned count, unsigned pieces_per_copy) {
  const unsigned long long pieces = static_cast<unsigned long long>(count) * pieces_per_copy;
  for (unsigned long long piece = blockIdx.x; piece < pieces; piece += gridDim.x) {
    const Copy copy = copies[piece / pieces_per_copy];
    const std::size_t begin = piece % pieces_per_copy * kPiece;
    if (begin >= copy.bytes) continue;
    const std::size_t bytes = copy.bytes - begin < kPiece ? copy.bytes - begin : kPiece;
    const std::byte* from = copy.source + begin;
    std::byte* to = copy.destination + begin;
    const bool aligned =
        (reinterpret_cast<std::size_t>(from) | reinterpret_cast<std::size_t>(to)) % sizeof(uint4) == 0;
    const std::size_t words = aligned ? bytes / sizeof(uint4) : 0;
    for (std::size_t i = threadIdx.x; i < words; i += blockDim.x)
      reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
    for (std::size_t i = words * sizeof(uint4) + threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
  }
}

/// Lists of copies lie in pinned memory that the kernel reads; a list is reused when its kernel has ended.
class Gather final : public StreamBackend {
 public:
  explicit Gather(const GatherOptions& options) : options_(options) {}
  ~Gather() override {
    if (stream_ != nullptr) cudaStreamSynchronize(stream_);
    for (List& list : lists_) {
      if (list.ended != nullptr) cudaEventDestroy(list.ended);
      if (list.copies != nullptr) cudaFreeHost(list.copies);
    }
  }
  std::string_view name() const override { return "gather"; }
  std::uint32_t batch_max() const override { return options_.batch; }
  double compute_share() const override { return share_; }

  base::Status prepare() {
    int processors = 0;
    TRIMTAB_TRY(check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device_),
                      "cudaDeviceGetAttribute"));
    share_ = std::min(1.0, static_cast<double>(options_.processors) / processors);
    for (List& list : lists_) {
      TRIMTAB_TRY(check(cudaHostAlloc(reinterpret_cast<void**>(&list.copies), options_.batch * sizeof(Copy),
                                      cudaHostAllocDefault),
                        "cudaHostAlloc"));
      TRIMTAB_TRY(check(cudaEventCreateWithFlags(&list.ended, cudaEventDisableTiming), "cudaEventCreate"));
    }
    return {};
  }

  base::Status start(std::span<const Copy> copies) override {
    if (copies.empty()) return {};
    TRIMTAB_TRY(check(cudaSetDevice(device_), "cudaSetDevice"));
    List& list = lists_[next_++ % kLists];
    TRIMTAB_TRY(check(cudaEventSynchronize(list.ended), "cudaEventSynchronize"));
    std::copy(copies.begin(), copies.end(), list.copies);
    std::size_t largest = 0;
    for (const Copy& copy : copies) largest = std::max(largest, copy.bytes);
    const auto pieces = static_cast<unsigned>((largest + kPiece - 1) / kPiece);
    const auto blocks =
        static_cast<unsigned>(std::min<std::size_t>(copies.size() * pieces, options_.processors * 4UL));
    if (blocks > 0)
      gather<<<blocks, kThreads, 0, stream_>>>(list.copies, static_cast<unsigned>(copies.size()), pieces);
    TRIMTAB_TRY(check(cudaGetLastError(), "gather kernel"));
    return check(cudaEventRecord(list.ended, stream_), "cudaEventRecord");
  }

 private:
  static constexpr std::size_t kLists = 8;
  struct List {
    Copy* copies = nullptr;
    cudaEvent_t ended = nullptr;
  };
  GatherOptions options_;
  List lists_[kLists];
  std::size_t next_ = 0;
  double share_ = 0;
};

}  // namespace

base::Result<std::unique_ptr<Backend>> make_gather(int device, const GatherOptions& options) {
  if (options.batch == 0 || options.processors == 0)
    return base::fail(base::Code::kInvalidArgument, "a gather needs a batch and processors of at least 1",
                      "swap_in/cuda");
  TRIMTAB_TRY(use_device(device));
  auto backend = std::make_unique<Gather>(options);
  TRIMTAB_TRY(backend->open(device));
  TRIMTAB_TRY(backend->prepare());
  return std::unique_ptr<Backend>(std::move(backend));
}

}  // namespace trimtab::swap_in::cuda
