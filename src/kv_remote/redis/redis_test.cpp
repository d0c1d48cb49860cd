#include <algorithm>
#include <iostream>
#include <memory>

#include "kv_remote/redis/redis_target.h"
#include "kv_remote/testing/redis_servers.h"
#include "kv_target/testing/conformance.h"
#include "kv_target/testing/target_on.h"

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

std::unique_ptr<RedisTarget> open(std::vector<std::string> servers, RedisOptions options = {}) {
  options.servers = std::move(servers);
  auto target = RedisTarget::open(std::move(options));
  EXPECT_TRUE(target.has_value());
  return std::move(*target);
}

class Redis : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!redis_is_installed()) GTEST_SKIP() << kNoRedis;
  }
};
using RedisClusterTest = Redis;

}  // namespace

TEST_F(Redis, AFullServerSaysSoAndAKilledOneIsFoundAgain) {
  RedisServer server({"--maxmemory", "6mb", "--maxmemory-policy", "noeviction"});
  const auto target = open({server.address()});
  Driver drive(*target);
  std::uint64_t n = 0;
  while (n < 200 && drive.write(shard_name(n), content_of(shard_name(n), 100'000)) == Outcome::kDone) ++n;
  EXPECT_LT(n, 200U);
  EXPECT_EQ(drive.write(shard_name(n), content_of(shard_name(n), 100'000)), Outcome::kFull);
  EXPECT_EQ(target->space()->shards, n);
  EXPECT_EQ(target->space()->capacity_bytes, 6U << 20);

  std::vector<std::vector<std::byte>> buffers(50, std::vector<std::byte>(100'000));
  std::vector<Request> reads(50);
  for (std::size_t i = 0; i < reads.size(); ++i)
    reads[i].name = shard_name(i % n), reads[i].buffer = buffers[i], reads[i].tag = i;
  server.kill();
  for (const auto& [tag, done] : drive.run(reads)) EXPECT_EQ(done.outcome, Outcome::kFailed) << tag;
  EXPECT_FALSE(target->trouble().empty());
  EXPECT_FALSE(target->space().has_value());
  server.start();
  Outcome outcome = Outcome::kFailed;
  for (int tries = 0; tries < 100 && outcome != Outcome::kDone; ++tries) {
    outcome = drive.write(shard_name(1), content_of(shard_name(1), 5'000));
    if (outcome != Outcome::kDone) ::usleep(20'000);
  }
  EXPECT_EQ(outcome, Outcome::kDone) << target->trouble();
  EXPECT_EQ(drive.content(shard_name(2)), std::nullopt) << "memory does not outlive a kill";
}

TEST_F(Redis, APasswordIsSaidOnEveryConnection) {
  ::setenv("REDISCLI_AUTH", "a secret: 100%", 1);
  RedisServer server({"--requirepass", "a secret: 100%"});
  RedisOptions options;
  options.login.password = "a secret: 100%";
  const auto target = open({server.address()}, options);
  Driver drive(*target);
  const auto content = content_of(shard_name(1), 50'000);
  EXPECT_EQ(drive.write(shard_name(1), content), Outcome::kDone) << target->trouble();
  EXPECT_EQ(drive.content(shard_name(1)), content);
  server.cli("client kill type normal");
  Outcome outcome = Outcome::kFailed;
  for (int tries = 0; tries < 100 && outcome != Outcome::kDone; ++tries) {
    outcome = drive.write(shard_name(2), content);
    if (outcome != Outcome::kDone) ::usleep(20'000);
  }
  EXPECT_EQ(outcome, Outcome::kDone) << target->trouble();
  EXPECT_GE(target->stats().connects, 2U);

  server.cli("acl setuser kv on '>of kv' '~trimtab:*' +@all");
  options.login = {"kv", "of kv"};
  const auto named = open({server.address()}, options);
  EXPECT_EQ(Driver(*named).content(shard_name(1)), content) << named->trouble();
  ::unsetenv("REDISCLI_AUTH");
}

TEST_F(Redis, WithoutTheRightPasswordNothingIsDoneAndTheCureIsSaid) {
  RedisServer server({"--requirepass", "right"}), open_to_all;
  const auto trouble_of = [](const RedisServer& at, RedisLogin login) {
    RedisOptions options;
    options.login = std::move(login);
    const auto target = open({at.address()}, options);
    EXPECT_EQ(Driver(*target).write(shard_name(1), content_of(shard_name(1), 5'000)), Outcome::kFailed);
    EXPECT_FALSE(target->space().has_value());
    const std::string trouble = target->trouble();
    EXPECT_NE(trouble.find(at.address()), std::string::npos) << trouble;
    EXPECT_EQ(trouble.find("wrong word"), std::string::npos) << "the password itself: " << trouble;
    return trouble;
  };
  EXPECT_NE(trouble_of(server, {}).find("TRIMTAB_REDIS_PASSWORD"), std::string::npos);
  EXPECT_NE(trouble_of(server, {"", "wrong word"}).find("WRONGPASS"), std::string::npos);
  EXPECT_NE(trouble_of(server, {"nobody", "right"}).find("user nobody"), std::string::npos);
  EXPECT_NE(trouble_of(open_to_all, {"", "wrong word"}).find("without any password"), std::string::npos);
}

TEST_F(RedisClusterTest, ThePasswordIsSaidToNodesThatAreLearnedOfToo) {
  ::setenv("REDISCLI_AUTH", "shared", 1);
  RedisCluster cluster({"--requirepass", "shared"});
  RedisOptions options;
  options.login.password = "shared";
  const auto target = open({cluster.nodes[0]->address()}, options);
  Driver drive(*target);
  for (std::uint64_t n = 0; n < 60; ++n)
    ASSERT_EQ(drive.write(shard_name(n), content_of(shard_name(n), 1'000)), Outcome::kDone)
        << target->trouble();
  EXPECT_GE(target->stats().connects, 3U);
  // A slot that moves while it is used: MOVED to a node that this client may not have met.
  const std::uint32_t slot = redis_slot(target->key_of(shard_name(7)));
  const std::string from = target->slots().node_of(slot);
  const std::size_t to = from == cluster.nodes[0]->address() ? 1 : 0;
  const auto fresh = open({from}, options);
  Driver other(*fresh);
  ASSERT_TRUE(other.content(shard_name(7)).has_value()) << fresh->trouble();
  drive.erase(shard_name(7));  // a slot with keys cannot be given away so
  // Its owner first: until it knows, its pings claim the slot, and who was told before would believe them.
  const std::string told = "cluster setslot " + std::to_string(slot) + " node " + cluster.id_of(to);
  std::partition(cluster.nodes.begin(), cluster.nodes.end(),
                 [&](const auto& node) { return node->address() == from; });
  for (const auto& node : cluster.nodes) node->cli(told);
  EXPECT_EQ(other.write(shard_name(7), content_of(shard_name(7), 900)), Outcome::kDone) << fresh->trouble();
  EXPECT_GE(fresh->stats().moved, 1U);
  ::unsetenv("REDISCLI_AUTH");
}

TEST_F(Redis, AServerThatHangsFailsWhatItWasAsked) {
  RedisServer server;
  RedisOptions options;
  options.request_timeout = options.question_timeout = base::Nanos{1'000'000'000};
  const auto target = open({server.address()}, options);
  Driver drive(*target);
  const auto content = content_of(shard_name(1), 50'000);
  ASSERT_EQ(drive.write(shard_name(1), content), Outcome::kDone);
  ::kill(server.pid(), SIGSTOP);
  std::vector<std::byte> buffer(50'000, std::byte{9});
  EXPECT_EQ(drive.read(shard_name(1), buffer).outcome, Outcome::kFailed);
  EXPECT_FALSE(target->space().has_value());
  EXPECT_GE(target->stats().timeouts, 1U);
  ::kill(server.pid(), SIGCONT);
  for (int tries = 0; tries < 100 && drive.read(shard_name(1), buffer).outcome != Outcome::kDone; ++tries)
    ::usleep(20'000);
  EXPECT_EQ(buffer, content);
}

TEST_F(Redis, OthersWritesAndErasesAreFoundByTheNextScan) {
  RedisServer server;
  RedisOptions options;
  options.rescan_every = base::Nanos{0};
  const auto follower = open({server.address()}, options);
  const auto writer = open({server.address()});
  Driver follow(*follower), write(*writer);
  std::map<ShardName, std::uint32_t> told, truth;
  kv_target::Cursor cursor;
  for (int round = 0; round < 4; ++round) {
    for (std::uint64_t n = 0; n < 1'500; n += 1 + static_cast<std::uint64_t>(round)) {
      const ShardName name = shard_name(n, 11);
      const auto bytes = static_cast<std::uint32_t>(1 + n % 7 + static_cast<std::uint64_t>(round));
      if ((n + static_cast<std::uint64_t>(round)) % 3 == 0) {
        write.erase(name);
        truth.erase(name);
      } else {
        ASSERT_EQ(write.write(name, content_of(name, bytes)), Outcome::kDone);
        truth[name] = bytes;
      }
    }
    server.cli("set unrelated value");
    follow.follow(cursor, told, 500);
    ASSERT_EQ(told, truth) << round;
  }
  // A read that finds nothing corrects what was believed, without a scan.
  const ShardName victim = truth.begin()->first;
  write.erase(victim);
  EXPECT_EQ(follow.content(victim), std::nullopt);
  EXPECT_EQ(follower->stats().corrected, 1U);
}

TEST_F(RedisClusterTest, ASlotMovesWhileItIsReadAndWritten) {
  RedisCluster cluster;
  const auto target = open({cluster.nodes[0]->address()});
  Driver drive(*target);
  // Shards of one slot, found by trying names; and others all over.
  const std::uint32_t slot = redis_slot(target->key_of(shard_name(0)));
  std::vector<ShardName> names = {shard_name(0)};
  for (std::uint64_t n = 1; names.size() < 6; ++n)
    if (redis_slot(target->key_of(shard_name(n))) == slot) names.push_back(shard_name(n));
  for (const ShardName& name : names)
    ASSERT_EQ(drive.write(name, content_of(name, 4'000, 1)), Outcome::kDone);

  std::size_t from = 0;
  while (from < 3 && target->slots().node_of(slot) != cluster.nodes[from]->address()) ++from;
  ASSERT_LT(from, 3U);
  const std::size_t to = (from + 1) % 3;
  const std::string number = std::to_string(slot);
  cluster.nodes[to]->cli("cluster setslot " + number + " importing " + cluster.id_of(from));
  cluster.nodes[from]->cli("cluster setslot " + number + " migrating " + cluster.id_of(to));
  // Key by key, as redis-cli moves a slot; between any two every shard is read and one is written.
  std::uint64_t version = 2;
  std::map<ShardName, std::uint64_t> versions;
  for (const ShardName& name : names) versions[name] = 1;
  const auto check = [&] {
    for (const ShardName& name : names)
      ASSERT_EQ(drive.content(name), content_of(name, 4'000, versions[name])) << target->trouble();
    const ShardName& written = names[version % names.size()];
    ASSERT_EQ(drive.write(written, content_of(written, 4'000, version)), Outcome::kDone) << target->trouble();
    versions[written] = version++;
  };
  for (const ShardName& name : names) {
    ASSERT_NO_FATAL_FAILURE(check());
    const std::string answer =
        cluster.nodes[from]->cli("migrate 127.0.0.1 " + std::to_string(cluster.nodes[to]->port()) + " " +
                                 target->key_of(name) + " 0 5000");
    ASSERT_TRUE(answer.starts_with("OK")) << answer;
  }
  ASSERT_NO_FATAL_FAILURE(check());
  EXPECT_GE(target->stats().asked, names.size()) << "moved keys were asked for at the new node";
  const std::uint64_t moved_before = target->stats().moved;
  for (const std::size_t node : {to, from, 3 - to - from})
    cluster.nodes[node]->cli("cluster setslot " + number + " node " + cluster.id_of(to));
  ASSERT_NO_FATAL_FAILURE(check());
  EXPECT_GT(target->stats().moved, moved_before);
  EXPECT_EQ(target->slots().node_of(slot), cluster.nodes[to]->address());
  // And what it tells is still all of it.
  std::map<ShardName, std::uint32_t> told;
  kv_target::Cursor cursor;
  drive.follow(cursor, told);
  EXPECT_EQ(told.size(), names.size());
}

TEST_F(RedisClusterTest, AKilledNodeFailsItsOwnSlotsOnly) {
  RedisCluster cluster;
  RedisOptions options;
  options.request_timeout = base::Nanos{10'000'000'000};
  options.wait_patience = base::Nanos{300'000'000};
  const auto target = open(cluster.addresses(), options);
  Driver drive(*target);
  for (std::uint64_t n = 0; n < 60; ++n)
    ASSERT_EQ(drive.write(shard_name(n), content_of(shard_name(n), 3'000)), Outcome::kDone);
  const std::string dead = cluster.nodes[1]->address();
  std::vector<bool> lost;
  for (std::uint64_t n = 0; n < 60; ++n)
    lost.push_back(target->slots().node_of(redis_slot(target->key_of(shard_name(n)))) == dead);
  ASSERT_GT(std::ranges::count(lost, true), 5);
  cluster.nodes[1]->kill();
  std::vector<std::vector<std::byte>> buffers(60, std::vector<std::byte>(3'000));
  std::vector<Request> reads(60);
  for (std::size_t n = 0; n < 60; ++n)
    reads[n].name = shard_name(n), reads[n].buffer = buffers[n], reads[n].tag = n;
  for (int round = 0; round < 3; ++round) {
    for (const auto& [tag, done] : drive.run(reads)) {
      EXPECT_EQ(done.outcome, lost[tag] ? Outcome::kFailed : Outcome::kDone)
          << tag << " " << target->trouble();
      EXPECT_TRUE(lost[tag] || buffers[tag] == content_of(shard_name(tag), 3'000)) << tag;
    }
  }
  cluster.nodes[1]->start();
  Outcome outcome = Outcome::kFailed;
  const auto first_lost = static_cast<std::uint64_t>(std::ranges::find(lost, true) - lost.begin());
  for (int tries = 0; tries < 200 && outcome != Outcome::kDone; ++tries) {
    outcome = drive.write(shard_name(first_lost), content_of(shard_name(first_lost), 3'000));
    if (outcome != Outcome::kDone) ::usleep(50'000);
  }
  EXPECT_EQ(outcome, Outcome::kDone) << target->trouble();
}

TEST(RedisOptions, NonsenseIsRefused) {
  EXPECT_FALSE(RedisTarget::open({}).has_value());
  RedisOptions options;
  options.servers = {"nowhere"};
  EXPECT_FALSE(RedisTarget::open(options).has_value());
  options.servers = {"127.0.0.1:1"};
  options.prefix = "a*";
  EXPECT_FALSE(RedisTarget::open(options).has_value());
}

TEST(RedisOptions, NobodyThereIsAnAnswer) {
  const auto target = open({"127.0.0.1:1"});
  Driver drive(*target);
  EXPECT_EQ(drive.erase(shard_name(1)), Outcome::kFailed);
  EXPECT_FALSE(target->space().has_value());
  EXPECT_EQ(target->changes({}, 5).error().code, base::Code::kUnavailable);
}

TEST(RedisKeys, NamesComeBack) {
  const auto target = open({"127.0.0.1:1"});
  for (const std::uint8_t shard : {0, 7, 11, 255}) {
    ShardName back;
    ASSERT_TRUE(target->name_of(target->key_of(shard_name(shard, shard)), back));
    EXPECT_EQ(back, shard_name(shard, shard));
  }
  ShardName ignored;
  for (const char* other :
       {"", "trimtab", "other:0123", "trimtab:0123456789abcdef0123456789abcdeX:1",
        "trimtab:0123456789abcdef0123456789abcdef:", "trimtab:0123456789abcdef0123456789abcdef:256",
        "trimtab:0123456789abcdef0123456789abcdef:1x"})
    EXPECT_FALSE(target->name_of(other, ignored)) << other;
}

}  // namespace trimtab::kv_remote::testing

namespace trimtab::kv_target::testing {

namespace {

namespace remote = kv_remote::testing;

/// Room for `bytes` beyond what an empty server takes.
std::string memory_for(const remote::RedisServer& server, std::uint64_t bytes) {
  const std::string info = server.cli("info memory");
  const std::uint64_t used = std::stoull(info.substr(info.find("used_memory:") + 12));
  return std::to_string(used + bytes);
}

/// One of the two.
struct Servers {
  std::shared_ptr<remote::RedisServer> single;
  std::shared_ptr<remote::RedisCluster> cluster;
};

struct OnServers final : TargetOn<Servers, kv_remote::RedisTarget> {
  void open() {
    kv_remote::RedisOptions options;
    options.shard_bytes = 1U << 20;
    options.servers = {ground.single ? ground.single->address() : ground.cluster->nodes[0]->address()};
    target = std::move(*kv_remote::RedisTarget::open(options));
  }
};

std::unique_ptr<Target> reopen(std::unique_ptr<Target> old) {
  auto next = std::make_unique<OnServers>();
  next->ground = dynamic_cast<OnServers&>(*old).ground;
  old.reset();
  next->open();
  return next;
}

Maker single() {
  return {"single",
          [](std::uint64_t bytes) -> std::unique_ptr<Target> {
            auto made = std::make_unique<OnServers>();
            const auto server = made->ground.single = std::make_shared<remote::RedisServer>();
            server->cli("config set maxmemory " + memory_for(*server, bytes));
            made->open();
            return made;
          },
          reopen};
}

/// One cluster for all tests, since making one takes seconds; each test finds it empty.
Maker cluster() {
  return {"cluster",
          [](std::uint64_t bytes) -> std::unique_ptr<Target> {
            static const auto shared = std::make_shared<remote::RedisCluster>();
            for (const auto& node : shared->nodes) {
              node->cli("config set maxmemory 0");
              node->cli("flushall");
              node->cli("config set maxmemory " + memory_for(*node, bytes));
            }
            auto made = std::make_unique<OnServers>();
            made->ground.cluster = shared;
            made->open();
            return made;
          },
          reopen};
}

std::vector<Maker> makers() {
  if (!remote::redis_is_installed()) {
    std::cerr << "TargetConformance of Redis is skipped: " << remote::kNoRedis << "\n";
    return {};
  }
  return {single(), cluster()};
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Redis, TargetConformance, ::testing::ValuesIn(makers()),
                         [](const auto& made) { return made.param.name; });

}  // namespace trimtab::kv_target::testing
