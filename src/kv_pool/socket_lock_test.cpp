#include "kv_pool/socket_lock.h"

#include <gtest/gtest.h>

#include "kv_pool/loader_process.h"
#include "kv_pool/pool_client.h"
#include "kv_pool/test_support.h"

namespace trimtab::kv_pool {
namespace {

using test::block_of;
using test::key;

constexpr std::uint64_t kBytes = 4'096;
constexpr base::Nanos kPatience{10'000'000'000};

LoaderOptions in_memory(const std::string& socket) {
  LoaderOptions options;
  options.socket_path = socket;
  options.memory_bytes = 16 * kBytes;
  options.kv.block_bytes = base::Bytes{kBytes};
  return options;
}

TEST(SocketLock, ASecondLoaderTakesTheSocketFromNobody) {
  const test::TempDirectory directory;
  test::LoaderProcess first(in_memory(directory.path("kv.sock")));
  auto before = PoolClient::connect(directory.path("kv.sock"), kPatience);
  ASSERT_TRUE(before) << base::to_string(before.error());
  ASSERT_TRUE(before->put(key(1), block_of(key(1), kBytes)));
  test::LoaderProcess second(in_memory(directory.path("kv.sock")));
  int status = 0;
  ASSERT_EQ(waitpid(second.pid(), &status, 0), second.pid())
      << "it gives up, and does not wait for the first to end";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1);
  auto after = PoolClient::connect(directory.path("kv.sock"), kPatience);
  ASSERT_TRUE(after) << base::to_string(after.error());
  EXPECT_EQ(after->match(std::vector{key(1)})->blocks, 1U) << "the same loader answers";
  first.end(SIGKILL);
  first.start();
  EXPECT_TRUE(PoolClient::connect(directory.path("kv.sock"), kPatience)) << "its end gives the lock back";
}

TEST(SocketLock, APlaceThatIsNoneIsNamed) {
  SocketLock socket;
  const auto lock = socket.take("/proc/no-such-directory/kv.sock");
  ASSERT_FALSE(lock);
  EXPECT_EQ(lock.error().code, base::Code::kIo);
  EXPECT_NE(lock.error().message.find("/proc/no-such-directory/kv.sock.lock"), std::string::npos);
}

}  // namespace
}  // namespace trimtab::kv_pool
