#include "vision/encode_queue.h"

#include <gtest/gtest.h>

namespace trimtab::vision {
namespace {

wire::Encode job(std::uint64_t request, std::uint32_t image) {
  wire::Encode encode;
  encode.id = model::RequestId{request};
  encode.image = image;
  return encode;
}

TEST(EncodeQueue, FirstComeFirstServedOneAtATime) {
  EncodeQueue queue;
  EXPECT_TRUE(queue.idle());
  queue.push(job(1, 0));
  queue.push(job(2, 0));
  EXPECT_EQ(queue.begin(base::Nanos{5}).job.id.value, 1U);
  EXPECT_FALSE(queue.has_waiting());  // while one is being read
  const auto first = queue.end();
  EXPECT_EQ(first.begun, base::Nanos{5});
  const auto& second = queue.begin(base::Nanos{6});
  EXPECT_EQ(second.job.id.value, 2U);
  EXPECT_NE(second.number, first.number);
  queue.end();
  EXPECT_TRUE(queue.idle());
}

TEST(EncodeQueue, AbortDropsWhatWaitsAndMarksWhatIsBeingRead) {
  EncodeQueue queue;
  for (const std::uint32_t image : {0U, 1U, 2U}) queue.push(job(1, image));
  queue.push(job(2, 0));
  queue.begin(base::Nanos{0});
  EXPECT_FALSE(queue.abort(model::RequestId{1}));
  EXPECT_TRUE(queue.running()->aborted);
  queue.end();
  EXPECT_EQ(queue.begin(base::Nanos{0}).job.id.value, 2U);
  EXPECT_TRUE(queue.abort(model::RequestId{7}));  // unknown: nothing of it is left
  EXPECT_FALSE(queue.running()->aborted);
}

TEST(EncodeQueue, TakeWaitingLeavesTheRunningOne) {
  EncodeQueue queue;
  queue.push(job(1, 0));
  queue.push(job(2, 0));
  queue.push(job(3, 0));
  queue.begin(base::Nanos{0});
  EXPECT_EQ(queue.take_waiting().size(), 2U);
  EXPECT_NE(queue.running(), nullptr);
}

}  // namespace
}  // namespace trimtab::vision
