#include "policy/experts/types.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "policy/experts/load_window.h"

namespace trimtab::experts {
namespace {

using testing::HasSubstr;

std::string message(const base::Status& status) { return status ? "" : status.error().message; }

TEST(Shape, RefusesWhatCannotBePlaced) {
  EXPECT_TRUE(check(Shape{384, 448, 64}).has_value());
  EXPECT_THAT(message(check(Shape{384, 450, 64})),
              HasSubstr("450 physical slots do not divide evenly over 64 ranks: use 512"));
  EXPECT_THAT(message(check(Shape{384, 256, 64})), HasSubstr("cannot hold 384 experts"));
  EXPECT_THAT(message(check(Shape{4, 12, 2})), HasSubstr("use at most 8"));
  EXPECT_THAT(message(check(Shape{8, 8, 4, 3})), HasSubstr("4 ranks do not divide evenly over 3 nodes"));
  EXPECT_THAT(message(check(Shape{8, 8, 4, 1, 3})),
              HasSubstr("8 experts do not divide evenly into 3 groups"));
  EXPECT_THAT(message(check(Shape{8, 8, 4, 1, 0})), HasSubstr("a model without groups has 1"));
  EXPECT_THAT(message(check(Shape{0, 8, 4})), HasSubstr("0 experts"));
}

TEST(Shape, SlotsAreRoundedUpToTheGroup) {
  EXPECT_EQ(physical_slots(384, 64, 64), 448);
  EXPECT_EQ(physical_slots(384, 16, 64), 448);
  EXPECT_EQ(physical_slots(384, 1, 8), 392);
}

TEST(Map, InitialMapIsLegalAndHasNoDuplicates) {
  for (const Shape shape :
       {Shape{384, 448, 64}, Shape{384, 400, 4}, Shape{3, 8, 4}, Shape{5, 10, 2}, Shape{4, 16, 4}}) {
    EXPECT_EQ(message(check(shape, initial_map(shape), true)), "") << shape.experts << " " << shape.slots;
  }
}

TEST(Map, ErrorsNameTheSlot) {
  const Shape shape{4, 6, 3};
  EXPECT_THAT(message(check(shape, SlotMap{0, 1, 2, 3, 0}, true)), HasSubstr("5 slots, the shape 6"));
  EXPECT_THAT(message(check(shape, SlotMap{0, 1, 2, 4, 0, 1}, true)),
              HasSubstr("slot 3 of the map holds expert 4"));
  EXPECT_THAT(message(check(shape, SlotMap{0, 1, 2, 2, 0, 1}, false)), HasSubstr("expert 3 has no slot"));
  EXPECT_THAT(message(check(shape, SlotMap{0, 1, 2, 3, 0, 0}, true)),
              HasSubstr("rank 2 holds expert 0 twice"));
  EXPECT_TRUE(check(shape, SlotMap{0, 1, 2, 3, 0, 0}, false).has_value());
}

TEST(Map, ReceivedCopiesCountsRanksNotSlots) {
  const Shape shape{4, 6, 3};
  EXPECT_EQ(received_copies(shape, SlotMap{0, 1, 2, 3, 0, 1}, SlotMap{1, 0, 3, 2, 1, 0}), 0);
  EXPECT_EQ(received_copies(shape, SlotMap{0, 1, 2, 3, 0, 1}, SlotMap{2, 3, 0, 1, 0, 1}), 4);
  EXPECT_EQ(duplicate_copies(shape, SlotMap{0, 0, 2, 3, 0, 1}), 1);
}

TEST(LoadWindow, RefusesWhatIsNoCount) {
  std::vector<double> loads{1, 2, 3, 4};
  EXPECT_TRUE(LoadWindow::make(loads.data(), 2, 2, 2).has_value());
  const auto said = [&](double value) {
    loads[3] = value;
    return LoadWindow::make(loads.data(), 2, 2, 2).error().message;
  };
  EXPECT_THAT(said(std::numeric_limits<double>::quiet_NaN()),
              HasSubstr("expert 1 in step 1 is nan, which is not a number"));
  EXPECT_THAT(said(std::numeric_limits<double>::infinity()), HasSubstr("is infinite"));
  EXPECT_THAT(said(-1), HasSubstr("is negative"));
  EXPECT_THAT(LoadWindow::make(loads.data(), 0, 2, 2).error().message, HasSubstr("window of loads is empty"));
}

TEST(LoadWindow, CountsBeyond32BitsAndStrides) {
  const std::vector<std::int64_t> loads{3'000'000'000, 1, 7, 7, 5'000'000'000, 2, 7, 7};
  const LoadWindow window = LoadWindow::make(loads.data(), 2, 2, 4).value();
  EXPECT_EQ(window.totals()[0], 8e9);
  EXPECT_EQ(window.of(1)[1], 2.0F);
  EXPECT_EQ(window.padded_steps(), 16);
  EXPECT_EQ(window.of(1)[2], 0.0F);
}

}  // namespace
}  // namespace trimtab::experts
