#include "kv_remote/redis/slot_map.h"

#include <gtest/gtest.h>

namespace trimtab::kv_remote {

TEST(RedisSlot, IsTheSpecificationsHash) {
  EXPECT_EQ(redis_slot("123456789"), 0x31C3U % kRedisSlots) << "the check value of CRC16 XMODEM";
  EXPECT_EQ(redis_slot("foo"), 12'182U);
  EXPECT_EQ(redis_slot("hello"), 866U);
  EXPECT_EQ(redis_slot(""), 0U);
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("user1000"));
  EXPECT_EQ(redis_slot("{user1000}.following"), redis_slot("{user1000}.followers"));
  EXPECT_NE(redis_slot("foo{}{bar}"), redis_slot("bar")) << "an empty tag counts for nothing";
  EXPECT_EQ(redis_slot("foo{{bar}}zap"), redis_slot("{bar"));
}

TEST(SlotMap, KnowsRangesAndNodes) {
  SlotMap map;
  map.assign(0, 99, "b:1");
  map.assign(100, kRedisSlots - 1, "a:1");
  map.assign(50, 50, "c:1");
  EXPECT_EQ(map.node_of(49), "b:1");
  EXPECT_EQ(map.node_of(50), "c:1");
  EXPECT_EQ(map.node_of(100), "a:1");
  EXPECT_EQ(map.nodes(), (std::vector<std::string>{"a:1", "b:1", "c:1"}));
  EXPECT_EQ(map.slots_known(), kRedisSlots);
  map.clear();
  EXPECT_EQ(map.node_of(50), "");
  EXPECT_EQ(map.slots_known(), 0U);
}

TEST(Redirection, ReadsWhatNodesSay) {
  const auto moved = parse_redirection("MOVED 3999 10.0.0.1:6381", "x:1");
  EXPECT_EQ(moved.kind, Redirection::Kind::kMoved);
  EXPECT_EQ(moved.slot, 3'999U);
  EXPECT_EQ(moved.node, "10.0.0.1:6381");
  const auto ask = parse_redirection("ASK 1 :7000", "10.0.0.9:6379");
  EXPECT_EQ(ask.kind, Redirection::Kind::kAsk);
  EXPECT_EQ(ask.node, "10.0.0.9:7000") << "a node without a name of its own";
  EXPECT_EQ(parse_redirection("MOVED 5 2001:db8::1:6379", "x:1").node, "2001:db8::1:6379");
  EXPECT_EQ(parse_redirection("TRYAGAIN Multiple keys", "x:1").kind, Redirection::Kind::kWait);
  EXPECT_EQ(parse_redirection("CLUSTERDOWN The cluster is down", "x:1").kind, Redirection::Kind::kWait);
  EXPECT_EQ(parse_redirection("LOADING Redis is loading", "x:1").kind, Redirection::Kind::kWait);
  for (const char* nonsense : {"", "MOVED", "MOVED 5", "MOVED x 1:2", "MOVED 16384 1:2", "MOVED 5 nowhere",
                               "MOVED 5 host:", "OOM command not allowed", "ERR MOVED"})
    EXPECT_EQ(parse_redirection(nonsense, "x:1").kind, Redirection::Kind::kNone) << nonsense;
}

}  // namespace trimtab::kv_remote
