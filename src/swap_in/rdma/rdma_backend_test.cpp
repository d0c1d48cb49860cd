#include "swap_in/rdma/rdma_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace trimtab::swap_in {
namespace {

TEST(RdmaBackend, ADeviceThatIsNotThereIsNamed) {
  std::vector<std::byte> memory(4'096);
  RdmaOptions options;
  options.device = "mlx5_no_such";
  const auto backend =
      make_rdma_backend(options, {memory.data(), memory.size()}, {memory.data(), memory.size()});
  ASSERT_FALSE(backend.has_value());
  EXPECT_EQ(backend.error().code, base::Code::kUnavailable);
  EXPECT_THAT(backend.error().message, ::testing::HasSubstr("mlx5_no_such"));
}

TEST(RdmaBackend, CopiesThroughTheCard) {
  if (rdma_devices().empty()) GTEST_SKIP() << "this machine has no RDMA device";
  std::vector<std::byte> source(1U << 20), destination(1U << 20);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 31 + i / 977);
  auto backend =
      make_rdma_backend({}, {source.data(), source.size()}, {destination.data(), destination.size()});
  ASSERT_TRUE(backend.has_value()) << base::to_string(backend.error());
  std::vector<Copy> copies;
  for (std::size_t i = 0; i < 32; ++i)
    copies.push_back({source.data() + i * 32'768, destination.data() + (31 - i) * 32'768, 22'784});
  ASSERT_TRUE((*backend)->start(copies).has_value());
  const auto marker = (*backend)->mark();
  ASSERT_TRUE((*backend)->wait(*marker).has_value());
  for (const Copy& copy : copies)
    ASSERT_TRUE(std::equal(copy.source, copy.source + copy.bytes, copy.destination));
  const Copy outside{source.data() + source.size() - 8, destination.data(), 16};
  EXPECT_FALSE((*backend)->start({&outside, 1}).has_value());
}

}  // namespace
}  // namespace trimtab::swap_in
