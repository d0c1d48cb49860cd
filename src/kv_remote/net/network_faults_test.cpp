#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "base/codec.h"
#include "kv_remote/testing/local_server.h"
#include "kv_remote/testing/proxy.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_remote::testing {

using kv_target::Completion;
using kv_target::Outcome;
using kv_target::Request;
using kv_target::ShardName;
using kv_target::Verb;
using kv_target::testing::content_of;
using kv_target::testing::Driver;
using kv_target::testing::shard_name;

namespace {

constexpr base::Nanos operator""_millis(unsigned long long v) {
  return base::Nanos{static_cast<std::int64_t>(v) * 1'000'000};
}

Request read_of(const ShardName& name, std::span<std::byte> buffer, std::uint64_t tag) {
  Request request;
  request.name = name;
  request.buffer = buffer;
  request.tag = tag;
  return request;
}
Request write_of(const ShardName& name, std::span<const std::byte> content, std::uint64_t tag) {
  Request request;
  request.verb = Verb::kWrite;
  request.name = name;
  request.content = content;
  request.tag = tag;
  return request;
}

std::unique_ptr<NetworkTarget> client_of(const std::string& address, NetworkOptions options = {}) {
  options.server = address;
  auto target = NetworkTarget::open(options);
  EXPECT_TRUE(target.has_value());
  return std::move(*target);
}

/// A server in a process of its own, which can be killed.
class ServerProcess {
 public:
  explicit ServerProcess(std::uint16_t port = 0) {
    int pipe[2];
    EXPECT_EQ(::pipe(pipe), 0);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // a test that crashes leaves no server behind
      kv_target::MemoryTarget target({64ULL << 20, 1U << 20, static_cast<std::uint64_t>(::getpid())});
      ServerOptions options;
      options.listen = "127.0.0.1:" + std::to_string(port);
      auto server = TargetServer::listen(target, options);
      const std::uint16_t mine = server ? (*server)->port() : 0;
      if (::write(pipe[1], &mine, sizeof mine) != sizeof mine || mine == 0) ::_exit(1);
      while (true) (*server)->step(base::Nanos{1'000'000'000});
    }
    EXPECT_EQ(::read(pipe[0], &port_, sizeof port_), static_cast<ssize_t>(sizeof port_));
    ::close(pipe[0]);
    ::close(pipe[1]);
  }
  ~ServerProcess() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }
  void stop_and(int signal) const { ::kill(pid_, signal); }
  std::uint16_t port() const { return port_; }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  pid_t pid_ = 0;
  std::uint16_t port_ = 0;
};

}  // namespace

TEST(NetworkFaults, AKilledServerFailsWhatWasUnderWayOnceAndIsFoundAgain) {
  auto server = std::make_unique<ServerProcess>();
  NetworkOptions options;
  options.backoff_first = 5_millis;
  const auto target = client_of(server->address(), options);
  ASSERT_TRUE(target->wait_until_connected(60'000_millis));
  const auto content = content_of(shard_name(1), 700'000);
  std::vector<Request> writes;
  for (std::uint64_t n = 0; n < 200; ++n) writes.push_back(write_of(shard_name(n), content, n));
  target->submit(writes);
  std::map<std::uint64_t, Outcome> outcomes;
  std::vector<Completion> some;
  const auto collect = [&] {
    some.clear();
    target->poll(some);
    for (const Completion& done : some)
      EXPECT_TRUE(outcomes.emplace(done.tag, done.outcome).second) << "twice: " << done.tag;
  };
  while (outcomes.size() < 5) collect();
  const std::uint16_t port = server->port();
  server->kill();
  for (int turn = 0; turn < 10'000 && outcomes.size() < writes.size(); ++turn) {
    collect();
    pollfd wait{target->wake_fd(), POLLIN, 0};
    ::poll(&wait, 1, 10);
  }
  ASSERT_EQ(outcomes.size(), writes.size());
  const auto failed = std::ranges::count(outcomes, Outcome::kFailed, [](const auto& o) { return o.second; });
  EXPECT_GT(failed, 0);
  EXPECT_FALSE(target->trouble().empty());

  server = std::make_unique<ServerProcess>(port);
  ASSERT_TRUE(target->wait_until_connected(60'000_millis)) << target->trouble();
  Driver drive(*target);
  EXPECT_EQ(drive.write(shard_name(5), content), Outcome::kDone);
  EXPECT_EQ(drive.content(shard_name(5)), content);
  EXPECT_TRUE(target->trouble().empty());
  EXPECT_EQ(target->stats().connects, 2U);
}

TEST(NetworkFaults, AServerThatHangsDoesNotHangTheCallerNorTouchItsMemoryLater) {
  ServerProcess server;
  NetworkOptions options;
  options.request_timeout = 100_millis;
  const auto target = client_of(server.address(), options);
  ASSERT_TRUE(target->wait_until_connected(60'000_millis));
  const auto content = content_of(shard_name(1), 200'000);
  {
    NetworkOptions patient;
    const auto other = client_of(server.address(), patient);
    ASSERT_TRUE(other->wait_until_connected(60'000_millis));
    ASSERT_EQ(Driver(*other).write(shard_name(1), content), Outcome::kDone);
  }
  server.stop_and(SIGSTOP);
  std::vector<std::byte> buffer(200'000, std::byte{0x11});
  Driver drive(*target);
  EXPECT_EQ(drive.read(shard_name(1), buffer).outcome, Outcome::kFailed);
  EXPECT_EQ(target->stats().timeouts, 1U);
  std::ranges::fill(buffer, std::byte{0x22});
  server.stop_and(SIGCONT);
  ASSERT_TRUE(target->wait_until_connected(60'000_millis)) << target->trouble();
  // Another read has come and gone on the new connection, so the late answer would have, too.
  std::vector<std::byte> second(200'000);
  Completion done;
  for (int tries = 0; tries < 50 && done.bytes == 0; ++tries) done = drive.read(shard_name(1), second);
  EXPECT_EQ(second, content);
  EXPECT_TRUE(std::ranges::all_of(buffer, [](std::byte b) { return b == std::byte{0x22}; }));
}

// Stopped, or busy elsewhere, for longer than a request may take: the answers were there all the time.
TEST(NetworkFaults, ACallerThatStoodStillTakesWhatArrivedBeforeItLooksAtDeadlines) {
  kv_target::MemoryTarget held({64ULL << 20, 1U << 20, 1});
  auto server = TargetServer::listen(held, {});
  ASSERT_TRUE(server);
  NetworkOptions options;
  options.server = "127.0.0.1:" + std::to_string((*server)->port());
  options.request_timeout = 300_millis;
  auto opened = NetworkTarget::open(options);
  ASSERT_TRUE(opened);
  NetworkTarget& target = **opened;
  std::vector<Completion> done;
  while (target.stats().connects == 0) {
    (*server)->step(1_millis);
    target.poll(done);
  }
  const auto content = content_of(shard_name(1), 1'000);
  std::vector<Request> requests;
  for (std::uint64_t n = 0; n < 20; ++n) requests.push_back(write_of(shard_name(n), content, n));
  target.submit(requests);
  while ((*server)->stats().writes < 20) (*server)->step(1_millis);
  for (int turn = 0; turn < 20; ++turn) (*server)->step(base::Nanos{0});  // until the last answer has left
  ::usleep(400'000);
  EXPECT_EQ(target.poll(done), 20U);
  for (const Completion& one : done) EXPECT_EQ(one.outcome, Outcome::kDone);
  EXPECT_EQ(target.stats().timeouts, 0U);
  EXPECT_EQ(target.stats().breaks, 0U);
}

TEST(NetworkFaults, AHalfOpenConnectionIsGivenUp) {
  LocalServer server;
  Proxy proxy(server.address());
  NetworkOptions options;
  options.request_timeout = options.connect_timeout = options.question_timeout = 1'000_millis;
  const auto target = client_of(proxy.address(), options);
  ASSERT_TRUE(target->wait_until_connected(60'000_millis));
  Driver drive(*target);
  const auto content = content_of(shard_name(2), 50'000);
  ASSERT_EQ(drive.write(shard_name(2), content), Outcome::kDone);
  proxy.silent = true;
  std::vector<std::byte> buffer(50'000);
  EXPECT_EQ(drive.read(shard_name(2), buffer).outcome, Outcome::kFailed);
  EXPECT_FALSE(target->space().has_value());
  EXPECT_EQ(target->changes({}, 10).error().code, base::Code::kUnavailable);
  proxy.silent = false;
  ASSERT_TRUE(target->wait_until_connected(60'000_millis));
  for (int tries = 0; tries < 50 && drive.read(shard_name(2), buffer).outcome != Outcome::kDone; ++tries) {
  }
  EXPECT_EQ(buffer, content);
}

TEST(NetworkFaults, ADamagedByteAnywhereEndsTheConnectionAndIsNeverDelivered) {
  LocalServer server(64ULL << 20);
  Proxy proxy(server.address());
  NetworkOptions options;
  options.backoff_first = 1_millis;
  const auto content = content_of(shard_name(3), 9'000);
  ASSERT_EQ(Driver(*server.client()).write(shard_name(3), content), Outcome::kDone);
  std::uint64_t failed = 0;
  for (std::int64_t at = 0; at < 9'400; at += at < 400 ? 13 : 611) {
    for (const bool to_client : {false, true}) {
      (to_client ? proxy.flip_to_client : proxy.flip_to_server) = at;
      const auto target = client_of(proxy.address(), options);
      Driver drive(*target);
      std::vector<std::byte> buffer(9'000);
      const Completion read = drive.read(shard_name(3), buffer);
      ASSERT_TRUE(read.outcome == Outcome::kDone || read.outcome == Outcome::kFailed) << at;
      if (read.outcome == Outcome::kDone) {
        ASSERT_EQ(buffer, content) << at;
      }
      const ShardName other = shard_name(1'000 + static_cast<std::uint64_t>(at), to_client);
      const auto written = drive.write(other, content);
      ASSERT_TRUE(written == Outcome::kDone || written == Outcome::kFailed) << at;
      failed += read.outcome == Outcome::kFailed || written == Outcome::kFailed;
      // Whatever happened, what is there is right.
      const auto there = Driver(*server.client()).content(other);
      ASSERT_TRUE(there.has_value() || written != Outcome::kDone) << at;
      ASSERT_TRUE(!there || *there == content) << at;
    }
  }
  EXPECT_GT(failed, 50U) << "the damage must have hit something";
  server.stop();
  EXPECT_GT(server.stats().broken_frames, 10U);
}

TEST(NetworkFaults, ASlowReaderStallsOnlyItself) {
  ServerOptions server_options;
  server_options.credit_bytes = 8U << 20;
  server_options.credit_requests = 64;
  LocalServer server(64ULL << 20, server_options);
  const auto content = content_of(shard_name(4), 1U << 20);
  const auto quick = server.client();
  Driver drive(*quick);
  ASSERT_EQ(drive.write(shard_name(4), content), Outcome::kDone);
  // Asks for 40 MB and does not read: submit sends, poll is not called.
  const auto slow = server.client();
  std::vector<std::vector<std::byte>> buffers(40, std::vector<std::byte>(1U << 20));
  std::vector<Request> reads;
  for (std::uint64_t n = 0; n < 40; ++n) reads.push_back(read_of(shard_name(4), buffers[n], n));
  slow->submit(reads);
  for (int n = 0; n < 60; ++n) ASSERT_EQ(drive.content(shard_name(4)), content);
  std::vector<Completion> done;
  for (int turn = 0; turn < 10'000 && done.size() < 40; ++turn) {
    slow->poll(done);
    pollfd wait{slow->wake_fd(), POLLIN, 0};
    ::poll(&wait, 1, 10);
  }
  ASSERT_EQ(done.size(), 40U);
  for (const auto& buffer : buffers) ASSERT_EQ(buffer, content);
  server.stop();
  EXPECT_LE(server.stats().memory_bytes_peak, server_options.credit_bytes);
  EXPECT_EQ(server.stats().credit_overdrawn, 0U);
}

TEST(NetworkFaults, TwoWritersOfOneShardLeaveOneOfTheirContents) {
  LocalServer server;
  const auto a = server.client(), b = server.client();
  const auto first = content_of(shard_name(6), 100'000, 1), second = content_of(shard_name(6), 70'000, 2);
  for (int round = 0; round < 50; ++round) {
    const Request one = write_of(shard_name(6), first, 1), two = write_of(shard_name(6), second, 2);
    a->submit({&one, 1});
    b->submit({&two, 1});
    std::vector<Completion> done;
    while (done.size() < 2) {
      a->poll(done);
      b->poll(done);
    }
    EXPECT_EQ(done[0].outcome, Outcome::kDone);
    EXPECT_EQ(done[1].outcome, Outcome::kDone);
    const auto there = Driver(*a).content(shard_name(6));
    ASSERT_TRUE(there == first || there == second) << round;
  }
}

TEST(NetworkFaults, CancelEndsReadsAtOnceAndKeepsLateAnswersAway) {
  ServerProcess server;
  const auto target = client_of(server.address());
  ASSERT_TRUE(target->wait_until_connected(60'000_millis));
  Driver drive(*target);
  const auto content = content_of(shard_name(7), 100'000);
  ASSERT_EQ(drive.write(shard_name(7), content), Outcome::kDone);
  server.stop_and(SIGSTOP);
  std::vector<std::byte> buffer(100'000, std::byte{7});
  const Request read = read_of(shard_name(7), buffer, 77);
  target->submit({&read, 1});
  target->cancel(77);
  std::vector<Completion> done;
  ASSERT_EQ(target->poll(done), 1U);
  EXPECT_EQ(done[0].outcome, Outcome::kCancelled);
  server.stop_and(SIGCONT);
  EXPECT_EQ(drive.content(shard_name(7)), content);
  EXPECT_EQ(target->stats().answers_dropped, 1U);
  EXPECT_TRUE(std::ranges::all_of(buffer, [](std::byte b) { return b == std::byte{7}; }));
}

}  // namespace trimtab::kv_remote::testing
