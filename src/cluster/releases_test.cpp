#include "cluster/releases.h"

#include <gtest/gtest.h>

namespace trimtab::cluster {
namespace {

using model::Role;

const Place kPrefill{Role::kPrefill, EngineId{1}, 0};
const Place kDecode{Role::kDecode, EngineId{0}, 1};
const RequestId kOne{1}, kTwo{2};

TEST(Releases, APlaceIsPendingUntilItAnswers) {
  Releases releases;
  releases.expect(kOne, kPrefill);
  EXPECT_TRUE(releases.pending(kOne, kPrefill));
  EXPECT_TRUE(releases.pending(kOne, Role::kPrefill));
  EXPECT_FALSE(releases.pending(kOne, Role::kDecode));
  EXPECT_FALSE(releases.pending(kTwo, Role::kPrefill));
  std::optional<Place> next;
  EXPECT_TRUE(releases.released(kOne, kPrefill, next));
  EXPECT_FALSE(next);
  EXPECT_FALSE(releases.released(kOne, kPrefill, next)) << "one abort, one answer";
  EXPECT_EQ(releases.size(), 0U);
}

TEST(Releases, DecodeBlocksStayUntilThePrefillRankHasStoppedWriting) {
  Releases releases;
  releases.expect(kOne, kPrefill, kDecode);
  EXPECT_TRUE(releases.pending(kOne, kDecode));
  std::optional<Place> next;
  EXPECT_FALSE(releases.released(kOne, kDecode, next)) << "nobody has told the decode rank yet";
  EXPECT_TRUE(releases.released(kOne, kPrefill, next));
  ASSERT_TRUE(next);
  EXPECT_EQ(*next, kDecode);
  EXPECT_TRUE(releases.pending(kOne, kDecode));
  EXPECT_TRUE(releases.released(kOne, kDecode, next));
  EXPECT_EQ(releases.size(), 0U);
}

TEST(Releases, ALostWriterFreesTheDecodeSide) {
  Releases releases;
  releases.expect(kOne, kPrefill, kDecode);
  releases.expect(kTwo, kPrefill);
  const auto settled = releases.lost(kPrefill);
  ASSERT_EQ(settled.size(), 2U);
  EXPECT_EQ(settled[0].id, kOne);
  EXPECT_EQ(settled[0].next, kDecode);
  EXPECT_FALSE(settled[1].next);
  EXPECT_EQ(releases.size(), 1U);
}

TEST(Releases, ALostDecodeRankLeavesNothingToAbortLater) {
  Releases releases;
  releases.expect(kOne, kPrefill, kDecode);
  EXPECT_EQ(releases.lost(kDecode).size(), 1U);
  std::optional<Place> next;
  EXPECT_TRUE(releases.released(kOne, kPrefill, next));
  EXPECT_FALSE(next);
  EXPECT_EQ(releases.size(), 0U);
}

}  // namespace
}  // namespace trimtab::cluster
