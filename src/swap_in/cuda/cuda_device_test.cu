#include <gtest/gtest.h>

#include <functional>
#include <numeric>
#include <vector>

#include "swap_in/cuda/cuda_backends.h"
#include "swap_in/cuda/stream.cuh"

namespace trimtab::swap_in::cuda {
namespace {

struct Way {
  const char* name;
  std::function<base::Result<std::unique_ptr<Backend>>()> make;
};
void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class CudaSwapIn : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    if (const auto device = use_device(0); !device) GTEST_SKIP() << base::to_string(device.error());
  }
};

/// The published shape on a smaller arena: random blocks of 22,784 bytes, source and destination scattered,
/// odd sizes among them; everything else in device memory stays as it was.
TEST_P(CudaSwapIn, MovesScatteredBlocksAndNothingElse) {
  constexpr std::size_t kSlots = 256, kSlot = 24'576, kBlock = 22'784;
  std::vector<std::byte> host(kSlots * kSlot), back(host.size());
  for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::byte>(i * 2'654'435'761U >> 13);
  const auto pinned = HostRegistration::pin(host);
  ASSERT_TRUE(pinned.has_value()) << base::to_string(pinned.error());
  std::byte* device = nullptr;
  ASSERT_EQ(cudaMalloc(reinterpret_cast<void**>(&device), host.size()), cudaSuccess);
  ASSERT_EQ(cudaMemset(device, 0xa5, host.size()), cudaSuccess);
  auto backend = GetParam().make();
  ASSERT_TRUE(backend.has_value()) << base::to_string(backend.error());
  std::vector<Copy> copies;
  std::vector<std::byte> expected(host.size(), std::byte{0xa5});
  for (std::size_t i = 0; i < kSlots; i += 2) {
    const std::size_t from = i * 37 % kSlots * kSlot, to = i * 91 % kSlots * kSlot, bytes = kBlock - i % 3;
    copies.push_back({host.data() + from, device + to, bytes});
    std::copy_n(host.begin() + static_cast<std::ptrdiff_t>(from), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(to));
  }
  const std::size_t batch = (*backend)->batch_max();
  for (std::size_t i = 0; i < copies.size(); i += batch)
    ASSERT_TRUE(
        (*backend)->start(std::span{copies}.subspan(i, std::min(batch, copies.size() - i))).has_value());
  const auto marker = (*backend)->mark();
  ASSERT_TRUE(marker.has_value());
  cudaStream_t compute = nullptr;
  ASSERT_EQ(cudaStreamCreate(&compute), cudaSuccess);
  ASSERT_TRUE((*backend)->hold_stream(*marker, compute).has_value());
  ASSERT_EQ(cudaMemcpyAsync(back.data(), device, back.size(), cudaMemcpyDeviceToHost, compute), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(compute), cudaSuccess);
  EXPECT_EQ(back, expected);
  EXPECT_TRUE((*backend)->wait(*marker).has_value());
  EXPECT_TRUE(*(*backend)->reached(*marker));
  cudaStreamDestroy(compute);
  cudaFree(device);
}

INSTANTIATE_TEST_SUITE_P(Ways, CudaSwapIn,
                         ::testing::Values(Way{"copy_engine", [] { return make_copy_engine(0); }},
                                           Way{"copy_engine_batch",
                                               [] { return make_copy_engine_batch(0, 64); }},
                                           Way{"gather", [] { return make_gather(0); }}));

TEST(CudaDevice, OneThatIsNotThereIsNamed) {
  const auto device = use_device(4'711);
  ASSERT_FALSE(device.has_value());
  EXPECT_EQ(device.error().code, base::Code::kUnavailable);
}

}  // namespace
}  // namespace trimtab::swap_in::cuda
