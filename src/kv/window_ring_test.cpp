#include "kv/window_ring.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <vector>

#include "base/prng.h"

namespace trimtab::kv {
namespace {

constexpr RingShape kV41{20, 134, 128, 528};

/// The row that token `position` leaves in `layer`: nothing else writes these bytes.
std::vector<std::byte> row_of(const RingShape& shape, std::uint64_t request, std::int64_t layer,
                              std::int64_t position) {
  base::Prng prng(request, static_cast<std::uint64_t>(layer * 1'000'000 + position));
  std::vector<std::byte> row(static_cast<std::size_t>(shape.row_bytes));
  for (std::byte& b : row) b = static_cast<std::byte>(prng.next());
  return row;
}

class Ring {
 public:
  Ring(const RingShape& shape, std::uint64_t request)
      : bytes(static_cast<std::size_t>(ring_bytes(shape).value)), shape_(shape), request_(request) {}

  void roll(std::int64_t from, std::int64_t to) {
    for (std::int64_t p = from; p < to; ++p) {
      for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
        const auto row = row_of(shape_, request_, layer, p);
        std::copy(row.begin(), row.end(), bytes.begin() + offset(layer, p));
      }
    }
  }
  /// The last tokens before `end` are those of the request, each in its row.
  bool has_window(std::int64_t end) const {
    for (std::int64_t p = end - snapshot_tokens(shape_, end); p < end; ++p) {
      for (std::int64_t layer = 0; layer < shape_.layers; ++layer) {
        const auto row = row_of(shape_, request_, layer, p);
        if (!std::equal(row.begin(), row.end(), bytes.begin() + offset(layer, p))) return false;
      }
    }
    return true;
  }

  std::vector<std::byte> bytes;

 private:
  std::ptrdiff_t offset(std::int64_t layer, std::int64_t position) const {
    return (layer * shape_.ring_slots + position % shape_.ring_slots) * shape_.row_bytes;
  }
  RingShape shape_;
  std::uint64_t request_;
};

std::vector<std::byte> snapshot_of(const RingShape& shape, const Ring& ring, std::int64_t written,
                                   std::int64_t position) {
  std::vector<std::byte> snapshot(static_cast<std::size_t>(snapshot_bytes(shape, position).value));
  const auto copied = copy_window_out(shape, ring.bytes, written, position, snapshot);
  EXPECT_TRUE(copied) << base::to_string(copied.error());
  return snapshot;
}

TEST(WindowRing, SizesOfV41) {
  EXPECT_EQ(ring_bytes(kV41).value, 1'415'040) << "what the open engine stores: all 134 rows";
  EXPECT_EQ(snapshot_bytes(kV41, 96'896).value, 1'351'680) << "what the next token sees: 128 rows";
}

// With V4.1's shape, at the worked example's hit: restored, it goes on as if it had never been left.
TEST(WindowRing, ARestoredRingIsTheOneThatWasRolledForward) {
  const std::int64_t end = 96'896;
  Ring rolled(kV41, 1);
  rolled.roll(end - 200, end);
  Ring restored(kV41, 1);
  copy_window_in(kV41, snapshot_of(kV41, rolled, end, end), end, restored.bytes);
  EXPECT_TRUE(restored.has_window(end));
  rolled.roll(end, end + 150);
  restored.roll(end, end + 150);
  EXPECT_EQ(restored.bytes, rolled.bytes) << "every row was written since";
}

TEST(WindowRing, RejectedDraftsCanBeTakenBackAfterARestore) {
  Ring rolled(kV41, 1);
  rolled.roll(0, 256);
  Ring restored(kV41, 1);
  copy_window_in(kV41, snapshot_of(kV41, rolled, 256, 256), 256, restored.bytes);
  restored.roll(256, 262);
  EXPECT_TRUE(restored.has_window(256)) << "six drafts are rejected: the window before them is whole";
  restored.roll(262, 263);
  EXPECT_FALSE(restored.has_window(256));
}

TEST(WindowRing, ARingThatHasGoneOnGivesNoSnapshot) {
  Ring ring(kV41, 1);
  ring.roll(0, 391);
  std::vector<std::byte> snapshot(static_cast<std::size_t>(snapshot_bytes(kV41, 384).value));
  EXPECT_TRUE(copy_window_out(kV41, ring.bytes, 390, 384, snapshot));
  const auto late = copy_window_out(kV41, ring.bytes, 391, 384, snapshot);
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, base::Code::kInvalidArgument);
  EXPECT_EQ(late.error().message,
            "the window before token 384 is not in a ring of 134 after 391 tokens: take the snapshot before "
            "the computation goes on");
  EXPECT_FALSE(copy_window_out(kV41, ring.bytes, 383, 384, snapshot)) << "not there yet";
}

TEST(WindowRing, NothingOfTheSlotsLastRequestStays) {
  Ring slot(kV41, 9);
  slot.roll(0, 300);
  Ring other(kV41, 1);
  other.roll(0, 128);
  copy_window_in(kV41, snapshot_of(kV41, other, 128, 128), 128, slot.bytes);
  Ring clean(kV41, 1);
  clean.roll(0, 128);
  EXPECT_EQ(slot.bytes, clean.bytes);
}

TEST(WindowRingDeathTest, SnapshotsAreAtMultiplesOf128) {
  Ring ring(kV41, 1);
  EXPECT_DEATH(copy_window_in(kV41, {}, 130, ring.bytes), "not at 130");
  EXPECT_DEATH(copy_window_in(kV41, {}, 128, ring.bytes), "another shape");
}

RC_GTEST_PROP(WindowRingProperty, AnyShapeAnyPositionAnyRollAfter, ()) {
  base::Prng prng(*rc::gen::arbitrary<std::uint64_t>());
  RingShape shape;
  shape.layers = 1 + static_cast<std::int64_t>(prng.below(3));
  shape.window_tokens = 1 + static_cast<std::int64_t>(prng.below(200));
  shape.ring_slots = shape.window_tokens + static_cast<std::int64_t>(prng.below(9));
  shape.row_bytes = 1 + static_cast<std::int64_t>(prng.below(12));
  const std::int64_t position = 128 * (1 + static_cast<std::int64_t>(prng.below(5)));
  const std::int64_t spare = position - snapshot_tokens(shape, position) + shape.ring_slots - position;
  const std::int64_t written =
      position + static_cast<std::int64_t>(prng.below(static_cast<std::uint64_t>(spare) + 1));
  Ring rolled(shape, 1);
  rolled.roll(0, written);
  Ring restored(shape, 1);
  for (std::byte& b : restored.bytes) b = std::byte{0xee};
  copy_window_in(shape, snapshot_of(shape, rolled, written, position), position, restored.bytes);
  RC_ASSERT(restored.has_window(position));
  const auto more = static_cast<std::int64_t>(prng.below(300));
  restored.roll(position, position + more);
  RC_ASSERT(restored.has_window(position + more));
}

}  // namespace
}  // namespace trimtab::kv
