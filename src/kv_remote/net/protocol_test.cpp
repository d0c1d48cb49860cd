#include <gtest/gtest.h>
#include <poll.h>
#include <rapidcheck/gtest.h>

#include <atomic>
#include <optional>

#include "base/codec.h"
#include "base/hash.h"
#include "kv_remote/testing/local_server.h"
#include "kv_target/testing/conformance.h"

namespace trimtab::kv_remote::testing {

using kv_target::Outcome;
using kv_target::Request;
using kv_target::Verb;
using kv_target::testing::content_of;
using kv_target::testing::Driver;
using kv_target::testing::shard_name;

namespace {

/// A client that says whatever the test wants, and reads frames back.
class RawClient {
 public:
  explicit RawClient(const std::string& address) {
    socket_ = std::move(*begin_connect(*resolve(address)));
    pollfd ready{socket_.get(), POLLOUT, 0};
    ::poll(&ready, 1, 60'000);
    out_.start(socket_.get(), ZeroCopy::kNever);
  }
  void queue(Header header) { out_.push(header); }
  void flush() { EXPECT_TRUE(out_.flush()); }
  void send(Header header, std::vector<std::byte> bytes = {}) {
    contents_.push_back(std::move(bytes));
    out_.push(header, contents_.back());
    EXPECT_TRUE(out_.flush());
  }
  void hello(std::uint64_t client, std::uint64_t session, std::uint8_t version = kFrameVersion) {
    Header header;
    header.version = version;
    send(header, base::encode(Hello{client, session}));
  }
  /// The next frame's header; nothing when the server closed.
  std::optional<Header> next() {
    std::optional<Header> header;
    while (!header) {
      pollfd ready{socket_.get(), POLLIN, 0};
      if (::poll(&ready, 1, 60'000) <= 0) return std::nullopt;
      const auto state = stream_.receive(
          socket_.get(),
          [&](const Header& h) {
            content.resize(h.length);
            return std::span(content);
          },
          [&](const Header& h) {
            frames_.push_back(h);
            return true;
          });
      if (!frames_.empty()) header = frames_.front(), frames_.pop_front();
      if (!header && state != FrameStream::State::kDry && state != FrameStream::State::kBusy) break;
    }
    return header;
  }
  std::vector<std::byte> content;

 private:
  Descriptor socket_;
  SendQueue out_;
  std::deque<std::vector<std::byte>> contents_;
  std::deque<Header> frames_;
  FrameStream stream_{1U << 20};
};

}  // namespace

RC_GTEST_PROP(Frame, HeadersComeBackAndNoFlippedBitPasses, ()) {
  Header header;
  header.kind = static_cast<Kind>(*rc::gen::inRange(1, 12));
  header.outcome = static_cast<Outcome>(*rc::gen::inRange(0, 7));
  header.name = shard_name(*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint8_t>());
  header.length = *rc::gen::arbitrary<std::uint64_t>();
  header.tag = *rc::gen::arbitrary<std::uint64_t>();
  header.offset = *rc::gen::arbitrary<std::uint64_t>();
  header.bytes = *rc::gen::arbitrary<std::uint64_t>();
  header.content_checksum = *rc::gen::arbitrary<std::uint64_t>();
  const auto number = *rc::gen::arbitrary<std::uint64_t>();
  HeaderBytes bytes = pack(header, number);
  RC_ASSERT(*unpack(bytes, number) == header);
  RC_ASSERT(!unpack(bytes, number + 1).has_value());
  bytes[*rc::gen::inRange<std::size_t>(0, kHeaderBytes)] ^=
      static_cast<std::byte>(1U << *rc::gen::inRange(0, 8));
  RC_ASSERT(!unpack(bytes, number).has_value());
}

RC_GTEST_PROP(Frame, ChangesAndSpaceComeBack, ()) {
  kv_target::Changes changes;
  changes.complete = *rc::gen::arbitrary<bool>();
  changes.more = *rc::gen::arbitrary<bool>();
  changes.next = {*rc::gen::arbitrary<std::uint64_t>(), 5, 6};
  const auto count = *rc::gen::inRange<std::uint64_t>(0, 20);
  for (std::uint64_t n = 0; n < count; ++n)
    changes.changes.push_back({n, shard_name(n, 3), static_cast<std::uint32_t>(n * 7)});
  const Condition condition{*rc::gen::element<std::string>("", "the disk is full"), 1};
  const auto answer = decode_changes(encode(ChangesAnswer{changes, condition}));
  RC_ASSERT(answer.has_value());
  RC_ASSERT(answer->condition.trouble == condition.trouble && answer->condition.lacks_room == 1);
  const kv_target::Changes* const back = &answer->changes;
  RC_ASSERT(back->complete == changes.complete && back->more == changes.more && back->next == changes.next);
  RC_ASSERT(back->changes.size() == changes.changes.size());
  for (std::size_t i = 0; i < back->changes.size(); ++i) {
    RC_ASSERT(back->changes[i].name == changes.changes[i].name);
    RC_ASSERT(back->changes[i].bytes == changes.changes[i].bytes);
  }
  const auto space = decode_space(encode(SpaceAnswer{{1, 2, 3, 4, 5}, condition}));
  RC_ASSERT(space->space.device_bytes_written == 5 && space->condition.trouble == condition.trouble);
}

TEST(Protocol, AnotherVersionIsRefusedInWords) {
  LocalServer server;
  RawClient client(server.address());
  client.hello(5, 1, kFrameVersion + 1);
  const auto answer = client.next();
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(answer->kind, Kind::kRefused);
  EXPECT_NE(decode_text(client.content).find("version"), std::string::npos);
  EXPECT_EQ(client.next(), std::nullopt) << "and the connection ends";
}

TEST(Protocol, AnOldSessionIsRefusedAndANewOneEndsItsElders) {
  LocalServer server;
  RawClient first(server.address());
  first.hello(9, 4);
  ASSERT_EQ(first.next()->kind, Kind::kWelcome);
  RawClient second(server.address());
  second.hello(9, 5);
  ASSERT_EQ(second.next()->kind, Kind::kWelcome);
  EXPECT_EQ(first.next(), std::nullopt) << "the elder connection is closed";
  for (const std::uint64_t session : {3, 4, 5}) {
    RawClient late(server.address());
    late.hello(9, session);
    EXPECT_EQ(late.next()->kind, Kind::kRefused) << session;
  }
  RawClient other(server.address());
  other.hello(10, 1);
  EXPECT_EQ(other.next()->kind, Kind::kWelcome) << "sessions are each client's own";
}

TEST(Protocol, WhoExceedsTheCreditIsCutOff) {
  ServerOptions options;
  options.credit_bytes = 1U << 20;
  options.credit_requests = 4;
  LocalServer server(32ULL << 20, options);
  {
    RawClient client(server.address());
    client.hello(1, 1);
    ASSERT_EQ(client.next()->kind, Kind::kWelcome);
    // Two requests in one packet, for more bytes than a client may ask for at once.
    for (std::uint64_t tag = 1; tag <= 2; ++tag) {
      Header read;
      read.kind = Kind::kRead;
      read.bytes = 600'000;
      read.tag = tag;
      client.queue(read);
    }
    client.flush();
    EXPECT_EQ(client.next(), std::nullopt);
  }
  {
    RawClient client(server.address());
    client.hello(2, 1);
    ASSERT_EQ(client.next()->kind, Kind::kWelcome);
    // Five requests in one packet, of a client that may have four.
    for (std::uint64_t tag = 1; tag <= 5; ++tag) {
      Header erase;
      erase.kind = Kind::kErase;
      erase.tag = tag;
      client.queue(erase);
    }
    client.flush();
    EXPECT_EQ(client.next(), std::nullopt) << "cut off before anything was answered";
  }
  server.stop();
  EXPECT_EQ(server.stats().credit_overdrawn, 2U);
  EXPECT_LE(server.stats().memory_bytes_peak, options.credit_bytes);
}

TEST(Protocol, WhoDoesNotGreetIsClosed) {
  ServerOptions options;
  options.hello_patience = base::Nanos{20'000'000};
  LocalServer server(1U << 20, options);
  RawClient silent(server.address());
  EXPECT_EQ(silent.next(), std::nullopt);
  RawClient rude(server.address());
  Header read;
  read.kind = Kind::kRead;
  rude.send(read);
  EXPECT_EQ(rude.next(), std::nullopt) << "no request before the hello";
}

TEST(Protocol, ConnectionsThatTheMemoryDoesNotCoverAreRefused) {
  ServerOptions options;
  options.credit_bytes = 4U << 20;
  options.memory_bytes = 9U << 20;
  LocalServer server(32ULL << 20, options);
  const auto a = server.client(), b = server.client();
  ASSERT_TRUE(a && b);
  NetworkOptions third;
  third.server = server.address();
  const auto c = NetworkTarget::open(third);
  ASSERT_TRUE(c.has_value());
  for (int looks = 0; looks < 200 && (*c)->trouble().empty(); ++looks)
    EXPECT_FALSE((*c)->wait_until_connected(base::Nanos{300'000'000}));
  EXPECT_NE((*c)->trouble().find("refused"), std::string::npos) << (*c)->trouble();
}

namespace {
/// Says what is the matter with it, and has no room.
struct Troubled : kv_target::testing::TargetOn<int, kv_target::MemoryTarget> {
  Troubled() {
    target = std::make_unique<kv_target::MemoryTarget>(kv_target::MemoryTarget::Options{0, 1U << 20, 7});
  }
  std::string trouble() const override {
    return well ? "" : "the disk is full:\nask the owner" + std::string(2'000, '!');
  }
  bool lacks_room() const override { return !well; }
  std::atomic<bool> well{true};
};
}  // namespace

TEST(Protocol, WhyATargetTakesNothingIsToldWithTheRefusedWrite) {
  Troubled target;
  LocalServer server(target, {});
  const auto client = server.client();
  ASSERT_TRUE(client);
  Driver driver(*client);
  EXPECT_EQ(driver.write(shard_name(1), content_of(shard_name(1), 100)), Outcome::kFull);
  EXPECT_TRUE(client->trouble().empty()) << "full, and no trouble";
  target.well = false;
  EXPECT_EQ(driver.write(shard_name(1), content_of(shard_name(1), 100)), Outcome::kFull);
  EXPECT_EQ(client->trouble().substr(0, 32), "the disk is full: ask the owner!") << "in one line";
  EXPECT_EQ(client->trouble().size(), kTextBytesMax);
  EXPECT_TRUE(client->lacks_room());
}

TEST(Protocol, WhyATargetTakesNothingIsToldWithEveryAnswer) {
  Troubled target;
  target.well = false;
  LocalServer server(target, {});
  const auto client = server.client();
  ASSERT_TRUE(client);
  for (const bool by_space : {true, false}) {
    const auto ask = [&] {
      return by_space ? client->space().has_value() : client->changes({}, 10).has_value();
    };
    ASSERT_TRUE(ask());
    EXPECT_FALSE(client->trouble().empty());
    EXPECT_TRUE(client->lacks_room());
    target.well = true;
    ASSERT_TRUE(ask());
    EXPECT_TRUE(client->trouble().empty()) << client->trouble();
    EXPECT_FALSE(client->lacks_room());
    target.well = false;
  }
  ASSERT_TRUE(client->space());
  server.stop();
  EXPECT_FALSE(client->space());
  EXPECT_EQ(client->trouble().find("the disk"), std::string::npos) << "nobody knows any more";
  EXPECT_FALSE(client->lacks_room());
}

/// Whatever is asked, in whatever sizes: the client waits for credit, the server holds no more than it
/// promised, and everything is answered.
RC_GTEST_PROP(Protocol, CreditIsNeverExceeded, ()) {
  ServerOptions options;
  options.credit_requests = *rc::gen::inRange<std::uint32_t>(1, 9);
  options.credit_bytes = *rc::gen::inRange<std::uint64_t>(1U << 16, 1U << 18);
  options.zero_copy = *rc::gen::element(ZeroCopy::kAlways, ZeroCopy::kNever);
  LocalServer server(32ULL << 20, options, 1U << 16);
  NetworkOptions client_options;
  client_options.zero_copy = options.zero_copy;
  const auto client = server.client(client_options);
  const auto sizes =
      *rc::gen::container<std::vector<std::uint64_t>>(rc::gen::inRange<std::uint64_t>(1, 1U << 16));
  std::vector<std::vector<std::byte>> contents, buffers;
  std::vector<Request> requests;
  contents.reserve(sizes.size());
  buffers.reserve(sizes.size());
  for (const std::uint64_t size : sizes) {
    const std::uint64_t tag = contents.size();
    contents.push_back(content_of(shard_name(tag), size));
    buffers.emplace_back(100'000);  // more than a shard may have
    Request write, read;
    write.verb = Verb::kWrite, write.name = shard_name(tag), write.content = contents.back();
    read.name = shard_name(tag), read.buffer = buffers.back();
    write.tag = 2 * tag, read.tag = 2 * tag + 1;
    requests.push_back(write);
    requests.push_back(read);
  }
  for (const auto& [tag, done] : Driver(*client).run(requests)) {
    RC_ASSERT(done.outcome == Outcome::kDone);
    RC_ASSERT(done.bytes == sizes[tag / 2]);
    if (tag % 2 == 1) {
      buffers[tag / 2].resize(done.bytes);
      RC_ASSERT(buffers[tag / 2] == contents[tag / 2]);
    }
  }
  server.stop();
  RC_ASSERT(server.stats().credit_overdrawn == 0U);
  RC_ASSERT(server.stats().memory_bytes_peak <= options.credit_bytes);
}

TEST(Protocol, LargeContentsGoWithoutACopyAndWhatTheKernelCopiesIsCounted) {
  ServerOptions options;
  options.zero_copy = ZeroCopy::kAlways;
  LocalServer server(64ULL << 20, options);
  NetworkOptions client_options;
  client_options.zero_copy = ZeroCopy::kAlways;
  const auto client = server.client(client_options);
  Driver drive(*client);
  const auto content = content_of(shard_name(1), 500'000);
  for (int n = 0; n < 10; ++n) ASSERT_EQ(drive.write(shard_name(1), content), Outcome::kDone);
  ASSERT_EQ(drive.content(shard_name(1)), content);
  const SendStats sends = client->stats().sends;
  if (sends.zero_copy_sends == 0) GTEST_SKIP() << "this kernel has no MSG_ZEROCOPY";
  EXPECT_GE(sends.zero_copy_sends, 10U);
  // Over loopback the kernel always copies, and says so; it is loud where it matters that it does not.
  EXPECT_EQ(sends.zero_copy_copied, sends.zero_copy_sends);
}

}  // namespace trimtab::kv_remote::testing
