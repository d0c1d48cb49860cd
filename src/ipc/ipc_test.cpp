#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <new>
#include <numeric>

#include "base/prng.h"
#include "ipc/channel.h"
#include "ipc/futex.h"
#include "ipc/segment.h"
#include "ipc/steady_clock.h"

namespace trimtab::ipc {
namespace {

constexpr base::Nanos kSecond{1'000'000'000};

std::string unique(const std::string& name) {
  return testing::TempDir() + "/trimtab-ipc-" + name + "-" + std::to_string(getpid());
}

Frame frame_of(std::uint16_t type, std::size_t size) {
  Frame frame{type, std::vector<std::byte>(size)};
  for (std::size_t i = 0; i < size; ++i) frame.payload[i] = static_cast<std::byte>(i * 31 + type);
  return frame;
}

TEST(FrameSplitter, FindsTheFramesInAnyPieces) {
  std::vector<std::byte> stream;
  const std::size_t sizes[] = {0, 1, 5, 70'000, 3, 0};
  for (std::uint16_t i = 0; i < 6; ++i) {
    const auto bytes = pack(frame_of(i, sizes[i]));
    stream.insert(stream.end(), bytes.begin(), bytes.end());
  }
  base::Prng prng(3);
  for (int round = 0; round < 50; ++round) {
    FrameSplitter splitter;
    std::uint16_t next = 0;
    for (std::size_t at = 0; at < stream.size();) {
      const std::size_t piece =
          std::min<std::size_t>(stream.size() - at, 1 + prng.below(round < 25 ? 9 : 40'000));
      splitter.append({stream.data() + at, piece});
      at += piece;
      while (true) {
        auto frame = splitter.next();
        ASSERT_TRUE(frame);
        if (!*frame) break;
        EXPECT_EQ((*frame)->type, next);
        EXPECT_EQ((*frame)->payload, frame_of(next, sizes[next]).payload);
        ++next;
      }
    }
    EXPECT_EQ(next, 6);
  }
}

TEST(FrameSplitter, AnEnormousLengthIsABrokenPeer) {
  FrameSplitter splitter;
  const std::byte bytes[6] = {std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF}, std::byte{0xFF}};
  splitter.append(bytes);
  EXPECT_FALSE(splitter.next());
}

TEST(Channel, CarriesLargeFramesBothWaysAndSeesTheEnd) {
  const std::string path = unique("socket");
  auto listener = Listener::bind(path);
  ASSERT_TRUE(listener);
  const pid_t child = fork();
  if (child == 0) {  // echoes until the peer closes
    auto channel = Channel::connect(path, kSecond);
    if (!channel) _exit(1);
    while (true) {
      auto frame = channel->receive();
      if (!frame) _exit(frame.error().code == base::Code::kUnavailable ? 0 : 2);
      if (*frame && !channel->send(**frame)) _exit(3);
    }
  }
  auto fd = listener->accept(kSecond * 60);
  ASSERT_TRUE(fd && *fd);
  {
    Channel channel(**fd);
    for (const std::size_t size : {0UL, 10UL, 3'000'000UL}) {
      const Frame sent = frame_of(7, size);
      ASSERT_TRUE(channel.send(sent));
      auto back = channel.receive(kSecond * 10);
      ASSERT_TRUE(back && *back);
      EXPECT_EQ((*back)->payload, sent.payload);
    }
    auto nothing = channel.receive(base::Nanos{20'000'000});
    ASSERT_TRUE(nothing);
    EXPECT_FALSE(nothing->has_value()) << "a timeout is no frame and no error";
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  std::filesystem::remove(path);
}

TEST(Channel, SaysWhoDoesNotListenAndWhatIsTooLong) {
  auto absent = Channel::connect(unique("absent"), base::Nanos{10'000'000});
  ASSERT_FALSE(absent);
  EXPECT_NE(absent.error().message.find("absent"), std::string::npos);
  auto longer = Listener::bind("/tmp/" + std::string(200, 'x'));
  ASSERT_FALSE(longer);
  EXPECT_NE(longer.error().message.find("shorter runtime directory"), std::string::npos);
}

TEST(Segment, IsSharedAndZeroAndReplaced) {
  const std::string path = unique("segment");
  auto mine = Segment::create(path, 8192);
  ASSERT_TRUE(mine);
  for (const std::byte b : mine->bytes()) ASSERT_EQ(b, std::byte{0});
  auto theirs = Segment::open(path);
  ASSERT_TRUE(theirs);
  mine->data()[100] = std::byte{42};
  EXPECT_EQ(theirs->data()[100], std::byte{42});
  auto again = Segment::create(path, 4096);  // a restarted owner: new memory, old mappings stay valid
  ASSERT_TRUE(again);
  again->data()[100] = std::byte{1};
  EXPECT_EQ(theirs->data()[100], std::byte{42});
  Segment::remove(path);
  EXPECT_FALSE(Segment::open(path));
}

TEST(Segment, TooLittleRoomIsAnErrorNow) {
  auto huge = Segment::create("/dev/shm/trimtab-ipc-huge", 1UL << 50);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, base::Code::kResourceExhausted);
  EXPECT_NE(huge.error().message.find("kv_blocks"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists("/dev/shm/trimtab-ipc-huge"));
}

// What one process made reaches another by descriptor, and no file system ever sees it.
TEST(Segment, PassedOnByDescriptor) {
  for (const bool huge_pages : {false, true}) {
    auto segment = Segment::anonymous("trimtab-test", 8'192, huge_pages);
    ASSERT_TRUE(segment) << base::to_string(segment.error());
    EXPECT_GE(segment->size(), 8'192U);
    segment->data()[5'000] = std::byte{7};
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      Channel mine(ends[1]);
      const auto frame = mine.receive(kSecond * 10);
      const auto fds = mine.take_descriptors();
      if (!frame || !frame->has_value() || (*frame)->type != 9 || fds.size() != 1) _exit(1);
      auto theirs = Segment::adopt(fds[0]);
      if (!theirs || theirs->data()[5'000] != std::byte{7}) _exit(2);
      if (ftruncate(theirs->fd(), 4'096) == 0) _exit(3);
      theirs->data()[5'001] = std::byte{8};
      _exit(0);
    }
    close(ends[1]);
    const int fds[] = {segment->fd()};
    ASSERT_TRUE(send_with_descriptors(ends[0], {9, {std::byte{1}}}, fds));
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_EQ(WEXITSTATUS(status), 0);
    EXPECT_EQ(segment->data()[5'001], std::byte{8});
    Channel parent(ends[0]);
    EXPECT_TRUE(parent.peer_gone());
  }
}

TEST(Segment, MemoryThatAPeerCouldCutShortIsNotMapped) {
  const int fd = memfd_create("trimtab-test", MFD_CLOEXEC);
  ASSERT_EQ(ftruncate(fd, 4'096), 0);
  const auto mapped = Segment::adopt(fd);
  ASSERT_FALSE(mapped);
  EXPECT_EQ(mapped.error().code, base::Code::kInvalidArgument);
}

TEST(Segment, MoreThanTheMachineHasIsAnErrorNow) {
  const auto huge = Segment::anonymous("trimtab-test", 1UL << 50, true);
  ASSERT_FALSE(huge);
  EXPECT_EQ(huge.error().code, base::Code::kResourceExhausted);
  EXPECT_NE(huge.error().message.find("lower memory_bytes"), std::string::npos);
}

TEST(Futex, WakesAcrossProcessesAndTimesOut) {
  const std::string path = unique("futex");
  auto segment = Segment::create(path, 4096);
  ASSERT_TRUE(segment);
  auto* word = new (segment->data()) std::atomic<std::uint32_t>(0);
  const base::Nanos began = SteadyClock().now();
  EXPECT_FALSE(wait_while_equal(*word, 0, base::Nanos{30'000'000}));
  EXPECT_GE(SteadyClock().now() - began, base::Nanos{30'000'000});
  const pid_t child = fork();
  if (child == 0) {
    usleep(30'000);
    word->store(1);
    futex_wake_all(*word);
    _exit(0);
  }
  EXPECT_TRUE(wait_while_equal(*word, 0, kSecond * 10));
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(wait_while_equal(*word, 0, base::Nanos{0})) << "already different";
  Segment::remove(path);
}

}  // namespace
}  // namespace trimtab::ipc
