#include "kv_remote/net/socket.h"

#include <gtest/gtest.h>

namespace trimtab::kv_remote {
namespace {

TEST(Socket, APortThatIsNoneIsRefusedAndNotCutShort) {
  for (const char* text :
       {"127.0.0.1:99999", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:http", "127.0.0.1:1x"}) {
    const auto refused = resolve(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_EQ(refused.error().code, base::Code::kInvalidArgument);
    EXPECT_NE(refused.error().message.find(text), std::string::npos) << refused.error().message;
  }
  EXPECT_TRUE(resolve("127.0.0.1:65535"));
  EXPECT_TRUE(resolve("[::1]:7701"));
}

}  // namespace
}  // namespace trimtab::kv_remote
