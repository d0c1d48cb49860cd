#include "kv_pool/progress_ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/prng.h"

namespace trimtab::kv_pool {
namespace {

ProgressEntry entry(std::uint64_t n) {
  return {
      n,     static_cast<std::uint32_t>(n * 3), static_cast<std::uint32_t>(n * 7), 1, FetchOutcome::kLayers,
      n * 11};
}

ipc::Segment mapped(const RingWriter& writer) { return *ipc::Segment::adopt(dup(writer.fd())); }

TEST(ProgressRing, AFullRingLosesNothingAndKeepsTheOrder) {
  auto writer = RingWriter::make(4);
  ASSERT_TRUE(writer);
  auto reader = RingReader::open(mapped(*writer));
  ASSERT_TRUE(reader);
  base::Prng prng(5);
  std::uint64_t pushed = 0;
  std::vector<ProgressEntry> got;
  while (got.size() < 1'000) {
    for (std::uint64_t n = prng.below(7); n > 0 && pushed < 1'000; --n) writer->push(entry(pushed++));
    ASSERT_TRUE(writer->flush());
    if (prng.below(3) == 0) {
      ASSERT_TRUE(reader->read(got));
    }
  }
  EXPECT_EQ(writer->waiting(), 0U);
  for (std::uint64_t n = 0; n < 1'000; ++n) ASSERT_EQ(got[n], entry(n));
}

TEST(ProgressRing, WhatWaitsForRoomIsDroppedWithItsPlan) {
  auto writer = RingWriter::make(2);
  auto reader = RingReader::open(mapped(*writer));
  for (const std::uint64_t plan : {1U, 2U, 3U, 4U, 3U}) writer->push(entry(plan));
  ASSERT_TRUE(writer->flush());
  writer->drop(3);
  EXPECT_EQ(writer->waiting(), 1U);
  std::vector<ProgressEntry> got;
  ASSERT_TRUE(reader->read(got));
  ASSERT_TRUE(writer->flush());
  ASSERT_TRUE(reader->read(got));
  ASSERT_EQ(got.size(), 3U);
  EXPECT_EQ(got[2], entry(4));
}

TEST(ProgressRing, ASleeperIsWokenByAnotherProcess) {
  auto writer = RingWriter::make(4);
  auto reader = RingReader::open(mapped(*writer));
  const pid_t child = fork();
  if (child == 0) {
    for (std::uint64_t n = 0; n < 500; ++n) {
      writer->push(entry(n));
      if (!writer->flush()) _exit(1);
      while (writer->waiting() > 0)
        if (!writer->flush()) _exit(1);
    }
    _exit(0);
  }
  std::vector<ProgressEntry> got;
  while (got.size() < 500) {
    const std::uint32_t ticket = reader->ticket();
    const std::size_t had = got.size();
    ASSERT_TRUE(reader->read(got));
    // Each sleep is ended by an entry: one that was missed would hang the test.
    if (got.size() == had) reader->sleep(ticket, base::kForever);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 0);
  for (std::uint64_t n = 0; n < 500; ++n) ASSERT_EQ(got[n], entry(n));
}

// Every word of the ring is overwritten in turn: the reader gives out right entries or an error, and never
// anything else.
TEST(ProgressRing, DamageIsFoundAndNeverBelieved) {
  std::uint64_t found = 0;
  const std::size_t size = mapped(*RingWriter::make(4)).size();
  for (std::size_t at = 0; at + 4 <= size; at += 4) {
    auto writer = RingWriter::make(4);
    auto memory = mapped(*writer);
    auto reader = RingReader::open(mapped(*writer));
    for (std::uint64_t n = 0; n < 3; ++n) writer->push(entry(n));
    ASSERT_TRUE(writer->flush());
    memory.data()[at + 1] ^= std::byte{0x40};
    std::vector<ProgressEntry> got;
    if (!reader->read(got)) ++found;
    for (std::uint64_t n = 0; n < got.size(); ++n) ASSERT_EQ(got[n], entry(n)) << "damaged at " << at;
    ASSERT_LE(got.size(), 3U);
  }
  EXPECT_GE(found, 3U * 10) << "every word of three entries, and the count of them";
}

TEST(ProgressRing, AReaderThatClaimsToHaveReadTheFutureIsFound) {
  auto writer = RingWriter::make(4);
  auto memory = mapped(*writer);
  writer->push(entry(1));
  ASSERT_TRUE(writer->flush());
  for (std::size_t at = 0; at < 256; ++at) memory.data()[at] = std::byte{0x7F};
  writer->push(entry(2));
  EXPECT_FALSE(writer->flush());
}

TEST(ProgressRing, OtherMemoryIsRefused) {
  EXPECT_FALSE(RingReader::open(*ipc::Segment::anonymous("trimtab-test", 64, false)));
  EXPECT_FALSE(RingReader::open(*ipc::Segment::anonymous("trimtab-test", 1 << 16, false)));
  auto writer = RingWriter::make(4);
  auto memory = mapped(*writer);
  memory.data()[8] = std::byte{200};  // more entries than there is memory for
  EXPECT_FALSE(RingReader::open(mapped(*writer)));
}

}  // namespace
}  // namespace trimtab::kv_pool
