#include "kv_remote/usrbio/usrbio_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <map>

#include "base/prng.h"
#include "kv_remote/testing/usrbio_fake.h"

namespace trimtab::kv_remote {

using usrbio::Fake;

namespace {

class Usrbio : public ::testing::Test {
 protected:
  void SetUp() override {
    Fake::the().reset();
    char path[] = "/tmp/trimtab_usrbio_XXXXXX";
    fd = ::mkstemp(path);
    ::unlink(path);
    ASSERT_GE(fd, 0);
    event = ::eventfd(0, EFD_NONBLOCK);
    options.mount_point = "/3fs/test";
    options.entries = 8;
    options.slots = 6;
    options.slot_bytes = 4'096;
    options.event_fd = event;
  }
  void TearDown() override {
    io.reset();
    ::close(fd);
    ::close(event);
    EXPECT_EQ(Fake::the().misuses, 0U);
    EXPECT_EQ(Fake::the().rings_alive, 0);
    EXPECT_EQ(Fake::the().iovs_alive, 0);
    EXPECT_EQ(Fake::the().files_registered(), 0U);
  }
  void open() {
    auto opened = UsrbioIo::open(options, Fake::api());
    ASSERT_TRUE(opened.has_value()) << base::to_string(opened.error());
    io = std::move(*opened);
    ASSERT_TRUE(io->register_file(fd).has_value());
  }
  /// All of them, by token.
  std::map<std::uint64_t, std::int64_t> run(const std::vector<UsrbioIo::Job>& jobs) {
    for (const auto& job : jobs) io->add(job);
    io->start();
    std::map<std::uint64_t, std::int64_t> results;
    while (io->under_way() > 0) {
      pollfd ready{event, POLLIN, 0};
      EXPECT_GT(::poll(&ready, 1, 10'000), 0) << "the event descriptor tells when there is something";
      std::uint64_t count = 0;
      EXPECT_EQ(::read(event, &count, sizeof count), 8);
      std::vector<UsrbioIo::Done> done;
      io->reap(done);
      for (const auto& one : done) EXPECT_TRUE(results.emplace(one.token, one.result).second) << one.token;
    }
    return results;
  }
  static std::vector<std::byte> random_bytes(std::size_t size, std::uint64_t seed) {
    base::Prng prng(seed);
    std::vector<std::byte> bytes(size);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(prng.next());
    return bytes;
  }

  int fd = -1, event = -1;
  UsrbioOptions options;
  std::unique_ptr<UsrbioIo> io;
};

}  // namespace

TEST_F(Usrbio, WritesAndReadsOfAnySizeInAnyOrderWithShortAnswers) {
  for (const int shorts : {0, 40}) {
    Fake::the().short_percent = shorts;
    open();
    std::vector<std::vector<std::byte>> contents, buffers;
    std::vector<UsrbioIo::Job> writes, reads;
    std::uint64_t offset = 0;
    for (std::uint64_t n = 0; n < 24; ++n) {
      contents.push_back(random_bytes(1 + (n * 977) % 20'000, n));
      buffers.emplace_back(contents.back().size());
    }
    for (std::uint64_t n = 0; n < 24; ++n) {
      writes.push_back({false, fd, contents[n].data(), contents[n].size(), offset, n});
      reads.push_back({true, fd, buffers[n].data(), buffers[n].size(), offset, 100 + n});
      offset += contents[n].size();
    }
    for (const auto& [token, result] : run(writes))
      EXPECT_EQ(result, static_cast<std::int64_t>(contents[token].size())) << token;
    for (const auto& [token, result] : run(reads)) {
      EXPECT_EQ(result, static_cast<std::int64_t>(buffers[token - 100].size())) << token;
      EXPECT_EQ(buffers[token - 100], contents[token - 100]) << token;
    }
    // What the ordinary way to the file says is the judge.
    std::vector<std::byte> plain(contents[23].size());
    ASSERT_EQ(::pread(fd, plain.data(), plain.size(), static_cast<off_t>(offset - plain.size())),
              static_cast<ssize_t>(plain.size()));
    EXPECT_EQ(plain, contents[23]);
    EXPECT_EQ(Fake::the().shorts > 0, shorts > 0);
    io.reset();
  }
}

TEST_F(Usrbio, AReadBeyondTheEndIsShortAndTouchesNothingBehindIt) {
  open();
  const auto content = random_bytes(10'000, 1);
  ASSERT_EQ(::pwrite(fd, content.data(), content.size(), 0), 10'000);
  std::vector<std::byte> buffer(30'000, std::byte{0x5a});
  Fake::the().short_percent = 30;
  EXPECT_EQ(run({{true, fd, buffer.data(), buffer.size(), 500, 1}}).at(1), 9'500);
  EXPECT_EQ(std::memcmp(buffer.data(), content.data() + 500, 9'500), 0);
  for (std::size_t i = 9'500; i < buffer.size(); ++i) ASSERT_EQ(buffer[i], std::byte{0x5a}) << i;
  EXPECT_EQ(run({{true, fd, buffer.data(), 10, 50'000, 2}}).at(2), 0);
}

TEST_F(Usrbio, ErrorsReachTheJobTheyBelongToAndNoOther) {
  open();
  const auto content = random_bytes(9'000, 2);
  std::vector<UsrbioIo::Job> jobs;
  for (std::uint64_t n = 0; n < 40; ++n)
    jobs.push_back({false, fd, const_cast<std::byte*>(content.data()), content.size(), n * 9'000, n});
  Fake::the().error_percent = 10;
  std::uint64_t failed = 0;
  for (const auto& [token, result] : run(jobs)) {
    ASSERT_TRUE(result == 9'000 || result == -EIO) << result;
    failed += result == -EIO;
    if (result != 9'000) continue;
    std::vector<std::byte> there(9'000);
    ASSERT_EQ(::pread(fd, there.data(), there.size(), static_cast<off_t>(token * 9'000)), 9'000);
    EXPECT_EQ(there, content) << token;
  }
  EXPECT_GT(failed, 0U);
  EXPECT_LE(failed, Fake::the().errors);
  Fake::the().error_percent = 0;
  EXPECT_EQ(run({{true, fd, const_cast<std::byte*>(content.data()), 0, 0, 7}}).at(7), 0)
      << "nothing is no error";
}

TEST_F(Usrbio, ARingThatCannotBeAwaitedFailsItsJobsAndHangsNobody) {
  open();
  Fake::the().fail_wait = ENODEV;
  const auto content = random_bytes(100, 3);
  EXPECT_EQ(run({{false, fd, const_cast<std::byte*>(content.data()), 100, 0, 1}}).at(1), -ENODEV);
  Fake::the().fail_wait = 0;
  std::vector<UsrbioIo::Done> done;
  io->add({false, fd, const_cast<std::byte*>(content.data()), 100, 0, 2});
  io->wait();
  io->reap(done);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].result, -ENODEV) << "it stays broken";
}

TEST_F(Usrbio, WhatThreeFsRefusesIsSaid) {
  Fake::the().fail_create = ENOMEM;
  const auto refused = UsrbioIo::open(options, Fake::api());
  ASSERT_FALSE(refused.has_value());
  EXPECT_NE(refused.error().message.find("/3fs/test"), std::string::npos);
  options.slots = 0;
  EXPECT_EQ(UsrbioIo::open(options, Fake::api()).error().code, base::Code::kInvalidArgument);
  options.slots = 6;
  Fake::the().fail_create = 0;
  open();
  EXPECT_FALSE(io->register_file(9'999).has_value());
#ifndef TRIMTAB_USRBIO
  EXPECT_EQ(usrbio::system_api().error().code, base::Code::kUnsupported);
#endif
}

}  // namespace trimtab::kv_remote
