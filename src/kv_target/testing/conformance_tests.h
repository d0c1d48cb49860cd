#pragma once

#include "kv_target/testing/conformance.h"

namespace trimtab::kv_target::testing {

TEST_P(TargetConformance, GivesBackWhatWasWritten) {
  const auto target = make();
  Driver drive(*target);
  for (const std::size_t bytes : {1, 511, 4'096, 23'041, 300'000}) {
    const ShardName name = shard_name(bytes, 3);
    const auto content = content_of(name, bytes);
    ASSERT_EQ(drive.write(name, content), Outcome::kDone) << bytes;
    EXPECT_EQ(drive.content(name), content) << bytes;
  }
}

TEST_P(TargetConformance, ReadsAnyPart) {
  const auto target = make();
  Driver drive(*target);
  const ShardName name = shard_name(1);
  const auto content = content_of(name, 10'000);
  ASSERT_EQ(drive.write(name, content), Outcome::kDone);
  for (const auto& [offset, bytes] : {std::pair{0, 1}, {1, 4'096}, {4'095, 3}, {9'999, 1}, {5'000, 5'000}}) {
    std::vector<std::byte> part(static_cast<std::size_t>(bytes));
    const Completion done = drive.read(name, part, static_cast<std::uint64_t>(offset));
    ASSERT_EQ(done.outcome, Outcome::kDone);
    EXPECT_EQ(done.bytes, part.size());
    EXPECT_EQ(std::memcmp(part.data(), content.data() + offset, part.size()), 0) << offset;
  }
}

TEST_P(TargetConformance, AReadBeyondTheEndIsShortAndTouchesNothingBehindIt) {
  const auto target = make();
  Driver drive(*target);
  const ShardName name = shard_name(2);
  ASSERT_EQ(drive.write(name, content_of(name, 100)), Outcome::kDone);
  std::vector<std::byte> buffer(200, std::byte{0x5a});
  const Completion done = drive.read(name, buffer, 40);
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_EQ(done.bytes, 60U);
  for (std::size_t i = 60; i < buffer.size(); ++i) ASSERT_EQ(buffer[i], std::byte{0x5a}) << i;
  EXPECT_EQ(drive.read(name, buffer, 101).outcome, Outcome::kTooLarge);
  EXPECT_EQ(drive.read(name, buffer, 100).bytes, 0U);
}

TEST_P(TargetConformance, WhatItLendsStaysWhatItWas) {
  auto target = make();
  Driver drive(*target);
  const ShardName name = shard_name(6);
  const auto content = content_of(name, 5'000, 1);
  ASSERT_EQ(drive.write(name, content), Outcome::kDone);
  std::vector<std::byte> buffer(6'000);
  Request request;
  request.name = name, request.offset = 100, request.buffer = buffer, request.lend = true;
  const Completion done = drive.one(request);
  ASSERT_EQ(done.outcome, Outcome::kDone);
  ASSERT_EQ(done.bytes, 4'900U);
  const std::byte* at = done.lent ? done.lent.get() : buffer.data();
  const auto is_right = [&] { return std::memcmp(at, content.data() + 100, done.bytes) == 0; };
  EXPECT_TRUE(is_right());
  ASSERT_EQ(drive.write(name, content_of(name, 5'000, 2)), Outcome::kDone);
  EXPECT_TRUE(is_right());
  EXPECT_EQ(drive.content(name), content_of(name, 5'000, 2));
  ASSERT_EQ(drive.erase(name), Outcome::kDone);
  ASSERT_EQ(drive.write(name, content_of(name, 5'000, 3)), Outcome::kDone);
  EXPECT_TRUE(is_right());
  target.reset();
  EXPECT_TRUE(is_right());
}

TEST_P(TargetConformance, WhatIsNotThereIsMissing) {
  const auto target = make();
  Driver drive(*target);
  EXPECT_EQ(drive.content(shard_name(3)), std::nullopt);
  EXPECT_EQ(drive.erase(shard_name(3)), Outcome::kMissing);
  ASSERT_EQ(drive.write(shard_name(3, 1), content_of(shard_name(3, 1), 50)), Outcome::kDone);
  EXPECT_EQ(drive.content(shard_name(3, 2)), std::nullopt) << "another shard of the same block";
}

TEST_P(TargetConformance, AWriteReplacesAndAnEraseRemoves) {
  const auto target = make();
  Driver drive(*target);
  const ShardName name = shard_name(4);
  ASSERT_EQ(drive.write(name, content_of(name, 9'000, 1)), Outcome::kDone);
  ASSERT_EQ(drive.write(name, content_of(name, 500, 2)), Outcome::kDone);
  EXPECT_EQ(drive.content(name), content_of(name, 500, 2));
  EXPECT_EQ(drive.erase(name), Outcome::kDone);
  EXPECT_EQ(drive.content(name), std::nullopt);
  EXPECT_EQ(target->space()->shards, 0U);
}

TEST_P(TargetConformance, RequestsForOneShardKeepTheirOrder) {
  const auto target = make();
  Driver drive(*target);
  const ShardName name = shard_name(5);
  std::vector<std::vector<std::byte>> contents;
  for (std::uint64_t v = 0; v < 8; ++v) contents.push_back(content_of(name, 3'000 + v, v));
  std::vector<std::vector<std::byte>> reads(8, std::vector<std::byte>(4'000));
  std::vector<Request> requests;
  for (std::uint64_t v = 0; v < 8; ++v) {
    Request write;
    write.verb = Verb::kWrite, write.name = name, write.content = contents[v], write.tag = 100 + v;
    Request read;
    read.name = name, read.buffer = reads[v], read.tag = 200 + v;
    requests.push_back(write);
    requests.push_back(read);
  }
  const auto done = drive.run(requests);
  for (std::uint64_t v = 0; v < 8; ++v) {
    ASSERT_EQ(done.at(200 + v).bytes, contents[v].size()) << v;
    reads[v].resize(contents[v].size());
    EXPECT_EQ(reads[v], contents[v]) << v;
  }
}

TEST_P(TargetConformance, ManyAtOnceAreEachCompletedOnce) {
  const auto target = make();
  Driver drive(*target);
  std::vector<std::vector<std::byte>> contents;
  std::vector<Request> writes, reads;
  for (std::uint64_t n = 0; n < 300; ++n) contents.push_back(content_of(shard_name(n), 1'000 + n * 37));
  for (std::uint64_t n = 0; n < 300; ++n) {
    Request write;
    write.verb = Verb::kWrite, write.name = shard_name(n), write.content = contents[n], write.tag = n;
    writes.push_back(write);
  }
  for (const auto& [tag, done] : drive.run(writes)) ASSERT_EQ(done.outcome, Outcome::kDone) << tag;
  std::vector<std::vector<std::byte>> buffers(300, std::vector<std::byte>(13'000));
  for (std::uint64_t n = 0; n < 300; ++n) {
    Request read;
    read.name = shard_name(n), read.buffer = buffers[n], read.tag = n;
    reads.push_back(read);
  }
  for (const auto& [tag, done] : drive.run(reads)) {
    ASSERT_EQ(done.bytes, contents[tag].size()) << tag;
    buffers[tag].resize(done.bytes);
    EXPECT_EQ(buffers[tag], contents[tag]) << tag;
  }
}

TEST_P(TargetConformance, FullIsAnAnswerAndErasingMakesRoom) {
  const auto target = make(2U << 20);
  Driver drive(*target);
  std::uint64_t written = 0;
  Outcome outcome = Outcome::kDone;
  while (written < 10'000 && outcome == Outcome::kDone) {
    const ShardName name = shard_name(written);
    outcome = drive.write(name, content_of(name, 60'000));
    written += outcome == Outcome::kDone;
  }
  ASSERT_EQ(outcome, Outcome::kFull);
  ASSERT_GT(written, 4U);
  for (std::uint64_t n = 0; n < written; ++n)
    ASSERT_EQ(drive.content(shard_name(n)), content_of(shard_name(n), 60'000))
        << "a refused write harms none";
  ASSERT_EQ(drive.erase(shard_name(0)), Outcome::kDone);
  ASSERT_EQ(drive.erase(shard_name(1)), Outcome::kDone);
  EXPECT_EQ(drive.write(shard_name(90'000), content_of(shard_name(90'000), 60'000)), Outcome::kDone);
}

TEST_P(TargetConformance, WhatIsTooLargeIsRefused) {
  const auto target = make();
  Driver drive(*target);
  const std::vector<std::byte> content(target->limits().shard_bytes + 1);
  EXPECT_EQ(drive.write(shard_name(6), content), Outcome::kTooLarge);
  EXPECT_EQ(drive.write(shard_name(6), {}), Outcome::kTooLarge) << "nothing is no shard";
  EXPECT_EQ(drive.content(shard_name(6)), std::nullopt);
}

TEST_P(TargetConformance, ChangesTellWhatIsHeld) {
  const auto target = make();
  Driver drive(*target);
  base::Prng prng(7, 7);
  std::map<ShardName, std::uint32_t> truth, told;
  Cursor cursor;
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 10; ++i) {
      const ShardName name = shard_name(prng.next() % 24, static_cast<std::uint8_t>(prng.next() % 12));
      const std::uint32_t bytes = 100 + static_cast<std::uint32_t>(prng.next() % 5'000);
      if (prng.next() % 3 == 0) {
        drive.erase(name);
        truth.erase(name);
      } else {
        ASSERT_EQ(drive.write(name, content_of(name, bytes)), Outcome::kDone);
        truth[name] = bytes;
      }
    }
    drive.follow(cursor, told);
    ASSERT_EQ(told, truth) << round;
  }
  std::map<ShardName, std::uint32_t> afresh;
  Cursor nothing;
  drive.follow(nothing, afresh);
  EXPECT_EQ(afresh, truth);
}

TEST_P(TargetConformance, AnOrderlyStopKeepsWhatIsDurable) {
  if (!GetParam().reopen) GTEST_SKIP() << "keeps nothing when it ends";
  auto target = make();
  Cursor cursor;
  std::map<ShardName, std::uint32_t> told;
  {
    Driver drive(*target);
    for (std::uint64_t n = 0; n < 40; ++n)
      ASSERT_EQ(drive.write(shard_name(n), content_of(shard_name(n), 2'000 + n)), Outcome::kDone);
    for (std::uint64_t n = 0; n < 40; n += 4) ASSERT_EQ(drive.erase(shard_name(n)), Outcome::kDone);
    drive.follow(cursor, told);
  }
  target = GetParam().reopen(std::move(target));
  ASSERT_TRUE(target);
  Driver drive(*target);
  for (std::uint64_t n = 0; n < 40; ++n) {
    const auto content = drive.content(shard_name(n));
    if (n % 4 == 0)
      EXPECT_EQ(content, std::nullopt) << n;
    else
      EXPECT_EQ(content, content_of(shard_name(n), 2'000 + n)) << n;
  }
  const auto before = told;
  drive.follow(cursor, told);
  EXPECT_EQ(told, before) << "somebody who followed before the stop knows the same after it";
}

TEST_P(TargetConformance, BuffersMayLieAnywhere) {
  const auto target = make();
  Driver drive(*target);
  std::vector<std::byte> memory(40'000), back(40'000);
  for (const std::size_t shift : {0, 1, 8, 511, 512, 4'095, 4'096}) {
    for (const std::size_t bytes : {std::size_t{4'096}, std::size_t{8'192}, std::size_t{12'001}}) {
      const ShardName name = shard_name(shift, static_cast<std::uint8_t>(bytes % 12));
      const auto content = content_of(name, bytes, shift);
      std::copy(content.begin(), content.end(), memory.begin() + static_cast<std::ptrdiff_t>(shift));
      ASSERT_EQ(drive.write(name, std::span(memory).subspan(shift, bytes)), Outcome::kDone);
      const Completion done = drive.read(name, std::span(back).subspan(shift, bytes + 100));
      ASSERT_EQ(done.bytes, bytes) << shift;
      ASSERT_EQ(std::memcmp(back.data() + shift, content.data(), bytes), 0) << shift << " " << bytes;
    }
  }
}

TEST_P(TargetConformance, AReadOfNothingSaysWhetherTheShardIsThere) {
  const auto target = make();
  Driver drive(*target);
  ASSERT_EQ(drive.write(shard_name(7), content_of(shard_name(7), 10)), Outcome::kDone);
  const Completion done = drive.read(shard_name(7), {});
  EXPECT_EQ(done.outcome, Outcome::kDone);
  EXPECT_EQ(done.bytes, 0U);
  EXPECT_EQ(drive.read(shard_name(8), {}).outcome, Outcome::kMissing);
}

TEST_P(TargetConformance, WhatIsCancelledStillEndsOnceAndIsWholeOrNot) {
  const auto target = make();
  Driver drive(*target);
  ASSERT_EQ(drive.write(shard_name(0), content_of(shard_name(0), 50'000)), Outcome::kDone);
  std::vector<std::vector<std::byte>> contents, buffers;
  std::vector<Request> requests;
  for (std::uint64_t n = 0; n < 60; ++n) {
    contents.push_back(content_of(shard_name(n), 20'000, 1));
    buffers.emplace_back(50'000);
  }
  for (std::uint64_t n = 0; n < 60; ++n) {
    Request request;  // of few shards, so that some wait for others
    request.name = shard_name(n % 20);
    request.tag = n;
    request.verb = n % 3 == 0 ? Verb::kRead : n % 3 == 1 ? Verb::kWrite : Verb::kErase;
    request.buffer = buffers[n];
    contents[n] = content_of(request.name, 20'000, n);
    if (request.verb == Verb::kWrite) request.content = contents[n];
    requests.push_back(request);
  }
  target->submit(requests);
  for (std::uint64_t n = 0; n < 60; n += 2) target->cancel(n);
  target->cancel(12'345);  // nobody's
  const auto done = drive.wait_for(requests.size());
  ASSERT_EQ(done.size(), 60U);
  for (std::uint64_t n = 1; n < 60; n += 2) EXPECT_NE(done.at(n).outcome, Outcome::kCancelled) << n;
  target->cancel(2);  // ended long ago
  for (std::uint64_t n = 0; n < 20; ++n) {
    const auto found = drive.content(shard_name(n));
    if (!found) continue;
    bool known = n == 0 && found == content_of(shard_name(0), 50'000);
    for (std::uint64_t writer = n; writer < 60; writer += 20)
      known = known || (writer % 3 == 1 && found == contents[writer]);
    EXPECT_TRUE(known) << n;
  }
}

TEST_P(TargetConformance, WhoWaitsForTheDescriptorMissesNothing) {
  const auto target = make();
  if (target->wake_fd() < 0) GTEST_SKIP() << "completes within submit";
  std::vector<std::vector<std::byte>> contents;
  std::vector<Request> requests;
  for (std::uint64_t n = 0; n < 40; ++n) contents.push_back(content_of(shard_name(n), 3'000 + n));
  for (std::uint64_t n = 0; n < 40; ++n) {
    Request request;
    request.verb = n % 5 == 4 ? Verb::kErase : Verb::kWrite;  // erases of what is missing end at once
    request.name = shard_name(n);
    request.content = contents[n];
    requests.push_back(request);
  }
  std::size_t ended = 0;
  for (const Request& request : requests) {
    target->submit({&request, 1});
    std::vector<Completion> some;
    if (request.verb == Verb::kErase) continue;
    target->poll(some);
    ended += some.size();
  }
  while (ended < requests.size()) {
    pollfd wait{target->wake_fd(), POLLIN, 0};
    ASSERT_EQ(::poll(&wait, 1, 30'000), 1) << "asleep with " << requests.size() - ended << " to come";
    std::vector<Completion> some;
    target->poll(some);
    ended += some.size();
  }
  EXPECT_EQ(ended, requests.size());
}

TEST_P(TargetConformance, EndingWithRequestsUnderWayTouchesNobodysMemoryLater) {
  std::vector<std::byte> buffer(64'000, std::byte{1});
  const auto content = content_of(shard_name(1), 64'000);
  for (int round = 0; round < 4; ++round) {
    auto target = make();
    std::vector<Request> requests(40);
    for (std::uint64_t n = 0; n < 40; ++n) {
      requests[n].name = shard_name(1, static_cast<std::uint8_t>(n % 7));
      requests[n].verb = n < 20 ? Verb::kWrite : Verb::kRead;
      requests[n].tag = n;
      requests[n].content = content;
      requests[n].buffer = buffer;
    }
    target->submit(requests);
    std::vector<Completion> some;
    if (round % 2 == 1) target->poll(some);
    target.reset();
    std::fill(buffer.begin(), buffer.end(), std::byte{2});
    ASSERT_EQ(std::count(buffer.begin(), buffer.end(), std::byte{2}), 64'000);
  }
}

TEST_P(TargetConformance, SpaceCountsWhatIsHeldAndWritten) {
  const auto target = make();
  Driver drive(*target);
  for (std::uint64_t n = 0; n < 10; ++n)
    ASSERT_EQ(drive.write(shard_name(n), content_of(shard_name(n), 12'000)), Outcome::kDone);
  const Space full = *target->space();
  EXPECT_EQ(full.shards, 10U);
  EXPECT_EQ(full.caller_bytes_written, 120'000U);
  EXPECT_GE(full.device_bytes_written, 120'000U);
  EXPECT_GE(full.used_bytes, 120'000U);
  EXPECT_LE(full.used_bytes, full.capacity_bytes);
  for (std::uint64_t n = 0; n < 10; ++n) ASSERT_EQ(drive.erase(shard_name(n)), Outcome::kDone);
  EXPECT_LT(target->space()->used_bytes, 120'000U);
  EXPECT_EQ(target->space()->caller_bytes_written, 120'000U);
}

}  // namespace trimtab::kv_target::testing
