#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "base/prng.h"
#include "ipc/steady_clock.h"
#include "kv_state/directory_feed.h"
#include "kv_state/snapshot_client.h"
#include "kv_state/snapshot_server.h"

namespace trimtab::kv_state {
namespace {

using base::operator""_s;
using base::operator""_ms;

constexpr std::size_t kBytes = 1'351'680;  // of V4.1
constexpr base::Nanos kPatience = 20_s;    // never reached unless something hangs

SnapshotName name(std::uint64_t n) { return {{n, n}, 128 * static_cast<std::int64_t>(n + 1), {7, 7}}; }

std::vector<std::byte> content(std::uint64_t n, std::size_t bytes = kBytes) {
  base::Prng prng(n);
  std::vector<std::byte> out(bytes);
  for (std::byte& b : out) b = static_cast<std::byte>(prng.next());
  return out;
}

void rest() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

/// One machine: its store and its server, on a free port of this one.
struct Machine {
  explicit Machine(std::uint32_t id, std::uint64_t epoch, ServerOptions options = {})
      : store(base::Bytes{64 << 20}, HostId{id}, epoch) {
    options.listen.host = "127.0.0.1";
    auto started = SnapshotServer::start(store, options);
    EXPECT_TRUE(started) << base::to_string(started.error());
    server = std::move(*started);
  }
  Endpoint endpoint() const { return {"127.0.0.1", server->port()}; }
  /// The last answer may have arrived a moment before the server has put it away.
  std::int64_t pinned_at_rest() const {
    while (server->stats().transfers > 0) rest();
    return store.stats().pinned_bytes.value;
  }

  SnapshotStore store;
  std::unique_ptr<SnapshotServer> server;
};

/// Answers one question with whatever the test wants.
class RawServer {
 public:
  explicit RawServer(std::function<void(int fd, const FetchRequest&)> answer)
      : listener_(*listen_on({"127.0.0.1", 0})) {
    thread_ = std::thread([this, answer = std::move(answer)] {
      wait_until(listener_.fd(), POLLIN, ipc::SteadyClock().now() + kPatience);
      Socket peer(::accept(listener_.fd(), nullptr, nullptr));
      std::array<std::byte, kRequestBytes> question;
      if (::recv(peer.fd(), question.data(), question.size(), MSG_WAITALL) != kRequestBytes) return;
      answer(peer.fd(), *decode_request(question));
    });
  }
  ~RawServer() { thread_.join(); }
  Endpoint endpoint() const { return {"127.0.0.1", *port_of(listener_)}; }

 private:
  Socket listener_;
  std::thread thread_;
};

void send_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return;
    bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

std::vector<std::byte> good_answer(const FetchRequest& asked, std::span<const std::byte> bytes) {
  AnswerHeader header;
  header.id = asked.id;
  header.epoch = asked.epoch;
  header.content_bytes = bytes.size();
  header.content_checksum = kv::snapshot_checksum(asked.name, bytes);
  const auto head = encode(header);
  std::vector<std::byte> out(head.begin(), head.end());
  out.insert(out.end(), bytes.begin(), bytes.end());
  return out;
}

base::Code code_of(const base::Status& status) {
  EXPECT_FALSE(status);
  return status ? base::Code::kInternal : status.error().code;
}

TEST(SnapshotFetch, AnotherMachinesSnapshotArrivesWhole) {
  Machine machine(1, 9);
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  for (std::uint64_t n = 0; n < 5; ++n) ASSERT_TRUE(machine.store.put(name(n), content(n)));
  for (std::uint64_t n = 0; n < 5; ++n) {
    const auto fetched = client.fetch(machine.endpoint(), 9, name(n), into, kPatience);
    ASSERT_TRUE(fetched) << base::to_string(fetched.error());
    EXPECT_EQ(into, content(n));
  }
  EXPECT_EQ(code_of(client.fetch(machine.endpoint(), 9, name(99), into, kPatience)), base::Code::kNotFound);
  EXPECT_EQ(client.stats().fetched, 5U);
  EXPECT_EQ(client.stats().not_found, 1U);
  EXPECT_EQ(client.stats().connections, 1U) << "one connection serves them all";
  EXPECT_EQ(machine.pinned_at_rest(), 0);
}

TEST(SnapshotFetch, AMachineThatWasRestartedIsAMiss) {
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  Machine machine(1, 9);
  ASSERT_TRUE(machine.store.put(name(1), content(1)));
  const auto old = client.fetch(machine.endpoint(), 8, name(1), into, kPatience);
  EXPECT_EQ(code_of(old), base::Code::kNotFound) << "even if the new life holds it too";
  EXPECT_EQ(old.error().message, "the machine was restarted: it is in epoch 9, not 8");
  EXPECT_EQ(read_result(old), kv::ReadResult::kGone);
}

TEST(SnapshotFetch, AMachineThatIsDownIsAMiss) {
  Endpoint endpoint;
  {
    const Machine machine(1, 9);
    endpoint = machine.endpoint();
  }
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  const auto status = client.fetch(endpoint, 9, name(1), into, kPatience);
  EXPECT_EQ(code_of(status), base::Code::kUnavailable);
  EXPECT_EQ(read_result(status), kv::ReadResult::kFailed);
  EXPECT_EQ(code_of(client.fetch({"localhost", 1}, 9, name(1), into, kPatience)),
            base::Code::kInvalidArgument);
}

TEST(SnapshotFetch, ATruncatedAnswerIsAMiss) {
  RawServer server([](int fd, const FetchRequest& asked) {
    const auto answer = good_answer(asked, content(1));
    send_all(fd, std::span{answer}.first(answer.size() - 1));
  });
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  EXPECT_EQ(code_of(client.fetch(server.endpoint(), 9, name(1), into, kPatience)), base::Code::kUnavailable);
}

TEST(SnapshotFetch, ACorruptAnswerIsAMissAndItsConnectionIsNotUsedAgain) {
  RawServer server([](int fd, const FetchRequest& asked) {
    auto answer = good_answer(asked, content(1));
    answer[1'000'000] ^= std::byte{1};
    send_all(fd, answer);
    std::byte more;
    EXPECT_EQ(::recv(fd, &more, 1, 0), 0) << "the client closed it";
  });
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  EXPECT_EQ(code_of(client.fetch(server.endpoint(), 9, name(1), into, kPatience)), base::Code::kDataLoss);
  EXPECT_EQ(client.stats().corrupt, 1U);
}

TEST(SnapshotFetch, AMachineThatHangsIsAMissWithinTheTimeout) {
  std::atomic<bool> over{false};
  RawServer server([&](int fd, const FetchRequest& asked) {
    const auto answer = good_answer(asked, content(1));
    send_all(fd, std::span{answer}.first(1'000));
    while (!over) rest();
  });
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  EXPECT_EQ(code_of(client.fetch(server.endpoint(), 9, name(1), into, 50_ms)), base::Code::kDeadlineExceeded);
  over = true;
}

TEST(SnapshotFetch, TransfersAreBoundedOnTheClient) {
  std::atomic<bool> asked{false}, over{false};
  RawServer server([&](int fd, const FetchRequest& request) {
    asked = true;
    while (!over) rest();
    send_all(fd, good_answer(request, content(1)));
  });
  SnapshotClient client({1, 1, 1'000});
  std::vector<std::byte> first(kBytes), second(kBytes);
  std::thread busy([&] { EXPECT_TRUE(client.fetch(server.endpoint(), 9, name(1), first, kPatience)); });
  while (!asked) rest();
  EXPECT_EQ(code_of(client.fetch(server.endpoint(), 9, name(1), second, 20_ms)),
            base::Code::kResourceExhausted);
  over = true;
  busy.join();
  EXPECT_EQ(first, content(1));
}

// A reader that does not read keeps its snapshot referenced, but not for ever; meanwhile others wait their
// turn, and are told when it does not come.
TEST(SnapshotFetch, AStuckReaderIsCutOffAndOthersAreTold) {
  ServerOptions options;
  options.transfers_max = 1;
  options.turn_timeout = 100_ms;
  options.transfer_timeout = 3_s;
  Machine machine(1, 9, options);
  const std::size_t large = 32 << 20;  // more than socket buffers take
  ASSERT_TRUE(machine.store.put(name(1), content(1, large)));
  ASSERT_TRUE(machine.store.put(name(2), content(2)));
  auto stuck = connect_to(machine.endpoint(), ipc::SteadyClock().now() + kPatience);
  ASSERT_TRUE(stuck);
  FetchRequest request;
  request.epoch = 9;
  request.name = name(1);
  send_all(stuck->fd(), encode(request));
  while (machine.server->stats().transfers == 0) rest();
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  EXPECT_EQ(code_of(client.fetch(machine.endpoint(), 9, name(2), into, kPatience)),
            base::Code::kResourceExhausted);
  while (machine.server->stats().timed_out == 0) rest();
  EXPECT_EQ(machine.pinned_at_rest(), 0) << "given back";
  EXPECT_TRUE(client.fetch(machine.endpoint(), 9, name(2), into, kPatience));
  EXPECT_EQ(into, content(2));
}

TEST(SnapshotServer, APeerThatSpeaksSomethingElseIsClosed) {
  Machine machine(1, 9);
  auto peer = connect_to(machine.endpoint(), ipc::SteadyClock().now() + kPatience);
  ASSERT_TRUE(peer);
  const std::vector<std::byte> nonsense(kRequestBytes, std::byte{'x'});
  send_all(peer->fd(), nonsense);
  std::byte answer;
  wait_until(peer->fd(), POLLIN, ipc::SteadyClock().now() + kPatience);
  EXPECT_LE(::recv(peer->fd(), &answer, 1, 0), 0);
  EXPECT_EQ(machine.server->stats().broken, 1U);
}

TEST(SnapshotServer, ConnectionsAreBounded) {
  ServerOptions options;
  options.connections_max = 2;
  Machine machine(1, 9, options);
  std::vector<Socket> peers;
  for (int i = 0; i < 5; ++i)
    peers.push_back(std::move(*connect_to(machine.endpoint(), ipc::SteadyClock().now() + kPatience)));
  while (machine.server->stats().connections_refused < 3) rest();
  EXPECT_EQ(machine.server->stats().connections, 2U);
}

TEST(SnapshotFetch, AnIdleConnectionThatTheMachineClosedIsReplaced) {
  ServerOptions options;
  options.idle_timeout = 300_ms;
  Machine machine(1, 9, options);
  ASSERT_TRUE(machine.store.put(name(1), content(1)));
  SnapshotClient client;
  std::vector<std::byte> into(kBytes);
  ASSERT_TRUE(client.fetch(machine.endpoint(), 9, name(1), into, kPatience));
  while (machine.server->stats().timed_out == 0) rest();
  EXPECT_TRUE(client.fetch(machine.endpoint(), 9, name(1), into, kPatience));
  EXPECT_EQ(client.stats().connections, 2U);
}

TEST(SnapshotFetch, ManyReadersWhileTheStoreEvicts) {
  Machine machine(1, 9);
  SnapshotClient client({4, 4, 1'000});
  std::atomic<std::uint64_t> fetched{0}, wrong{0};
  std::vector<std::thread> readers;
  for (std::uint64_t t = 0; t < 3; ++t) {
    readers.emplace_back([&, t] {
      base::Prng prng(t);
      std::vector<std::byte> into(40'000);
      for (int i = 0; i < 300; ++i) {
        const std::uint64_t n = prng.below(8);
        const auto status = client.fetch(machine.endpoint(), 9, name(n), into, kPatience);
        if (!status) {
          wrong += status.error().code != base::Code::kNotFound;
          continue;
        }
        ++fetched;
        wrong += into != content(n, into.size());
      }
    });
  }
  base::Prng prng(77);
  for (int i = 0; i < 2'000; ++i) {
    const std::uint64_t n = prng.below(8);
    if (prng.below(3) == 0) {
      machine.store.erase(name(n));
    } else {
      ASSERT_TRUE(machine.store.put(name(n), content(n, 40'000)));
    }
  }
  for (std::uint64_t n = 0; n < 8; ++n) ASSERT_TRUE(machine.store.put(name(n), content(n, 40'000)));
  for (std::thread& reader : readers) reader.join();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(fetched, 0U);
  EXPECT_EQ(machine.pinned_at_rest(), 0);
}

TEST(DirectoryFeed, TheDirectoryFollowsAMachineThroughItsLivesAndItsDeath) {
  kv::SnapshotDirectory directory;
  SnapshotClient client;
  const auto shown = [&] { return directory.names_of(HostId{1}); };
  Endpoint endpoint;
  {
    Machine first(1, 1);
    endpoint = first.endpoint();
    ASSERT_TRUE(first.store.put(name(1), content(1, 10)));
    ASSERT_TRUE(refresh(directory, HostId{1}, endpoint, client, kPatience));
    EXPECT_EQ(shown(), std::vector<SnapshotName>{name(1)}) << "by list: it was unknown";
    ASSERT_TRUE(first.store.put(name(2), content(2, 10)));
    first.store.erase(name(1));
    ASSERT_TRUE(refresh(directory, HostId{1}, endpoint, client, kPatience));
    EXPECT_EQ(shown(), std::vector<SnapshotName>{name(2)});
    EXPECT_EQ(directory.counts().lists_applied, 1U) << "changes were enough";
    for (std::uint64_t i = 0; i < 3'000; ++i) {
      ASSERT_TRUE(first.store.put(name(3), content(3, 10)));
      first.store.erase(name(3));
    }
    ASSERT_TRUE(refresh(directory, HostId{1}, endpoint, client, kPatience));
    EXPECT_EQ(directory.counts().lists_applied, 2U) << "more changes than are remembered";
    EXPECT_EQ(shown(), std::vector<SnapshotName>{name(2)});
  }
  const auto dead = refresh(directory, HostId{1}, endpoint, client, kPatience);
  EXPECT_EQ(code_of(dead), base::Code::kUnavailable);
  EXPECT_EQ(shown(), std::vector<SnapshotName>{name(2)}) << "an answer missing is no death";
  directory.remove_machine(HostId{1});
  EXPECT_TRUE(shown().empty());
  Machine second(1, 2);
  ASSERT_TRUE(second.store.put(name(5), content(5, 10)));
  ASSERT_TRUE(refresh(directory, HostId{1}, second.endpoint(), client, kPatience));
  EXPECT_EQ(shown(), std::vector<SnapshotName>{name(5)});
  EXPECT_EQ(code_of(refresh(directory, HostId{2}, second.endpoint(), client, kPatience)),
            base::Code::kInternal)
      << "another machine than expected";
}

}  // namespace
}  // namespace trimtab::kv_state
