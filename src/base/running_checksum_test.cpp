#include "base/running_checksum.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "base/hash.h"

namespace trimtab::base {
namespace {

RC_GTEST_PROP(RunningChecksum, IsThatOfTheWhole, (const std::vector<std::vector<std::uint8_t>>& pieces)) {
  RunningChecksum running;
  running.add(std::as_bytes(std::span("what reset forgets")));
  running.reset();
  std::vector<std::uint8_t> whole;
  for (const auto& piece : pieces) {
    running.add(std::as_bytes(std::span(piece)));
    whole.insert(whole.end(), piece.begin(), piece.end());
  }
  RC_ASSERT(running.value() == checksum_of(std::span<const std::uint8_t>(whole)));
}

TEST(RunningChecksum, IsThatOfALongWhole) {
  std::vector<std::byte> whole(200'000);
  for (std::size_t i = 0; i < whole.size(); ++i) whole[i] = static_cast<std::byte>(i * i >> 5);
  RunningChecksum running;
  for (std::size_t at = 0; at < whole.size();) {
    const std::size_t bytes = std::min<std::size_t>(whole.size() - at, at % 977 * 13 + 1);
    running.add(std::span<const std::byte>(whole).subspan(at, bytes));
    at += bytes;
  }
  EXPECT_EQ(running.value(), checksum(whole));
}

}  // namespace
}  // namespace trimtab::base
