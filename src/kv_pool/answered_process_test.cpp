// Ends of answers between a real loader and its users.
#include <gtest/gtest.h>

#include <csignal>
#include <vector>

#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 4'096;

PoolClient dial(const std::string& socket) {
  auto client = PoolClient::connect(socket, base::Nanos{10'000'000'000});
  EXPECT_TRUE(client) << base::to_string(client.error());
  return std::move(*client);
}

TEST(AnsweredProcess, EndsOfAnswersAreToldWithoutAnAnswerAndKnownInOneLifeOnly) {
  test::TempDirectory directory;
  LoaderOptions options;
  options.socket_path = directory.path("kv.sock");
  options.memory_bytes = 4 * kBytes;
  options.kv.block_bytes = base::Bytes{kBytes};
  test::LoaderProcess loader(options);
  auto pool = dial(options.socket_path);
  const auto asked = pool.match(std::vector<BlockKey>{key(1)}, true, 2);
  ASSERT_TRUE(asked);
  const auto again = pool.match(std::vector<BlockKey>{key(1)}, false, 2);
  EXPECT_EQ(again->request, 0U) << "asked again for the same request";
  ASSERT_TRUE(pool.put(key(1), block_of(key(1), kBytes)));
  EXPECT_FALSE(pool.answered(0, 5)) << "nobody's";
  EXPECT_TRUE(pool.answered(asked->request, 5));
  EXPECT_TRUE(pool.answered(asked->request, 5));
  const auto stats = pool.stats();
  EXPECT_EQ(stats->answers_told, 1U);
  EXPECT_EQ(stats->answers_unknown, 1U);
  loader.end(SIGKILL);
  EXPECT_FALSE(pool.stats()) << "nobody is there";
  EXPECT_FALSE(pool.answered(asked->request, 5)) << "and nobody waits for one";
  loader.start();
  auto later = dial(options.socket_path);
  EXPECT_GT(later.match(std::vector<BlockKey>{key(2)})->request, asked->request);
  EXPECT_TRUE(later.answered(asked->request, 5));
  EXPECT_EQ(later.stats()->answers_told, 0U);
  EXPECT_EQ(later.stats()->answers_unknown, 1U);
}

}  // namespace
}  // namespace trimtab::kv_pool
