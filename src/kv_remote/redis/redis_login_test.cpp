#include "kv_remote/redis/redis_login.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace trimtab::kv_remote {
namespace {

TEST(RedisLogin, ReadsAddressesWithAndWithoutIt) {
  const auto plain = parse_redis_address("10.0.0.1:6379");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->server, "10.0.0.1:6379");
  EXPECT_TRUE(plain->login.user.empty() && plain->login.password.empty());
  const auto full = parse_redis_address("kv:p%40ss%3aw%25rd@host:1");
  ASSERT_TRUE(full);
  EXPECT_EQ(full->server, "host:1");
  EXPECT_EQ(full->login.user, "kv");
  EXPECT_EQ(full->login.password, "p@ss:w%rd");
  const auto password = parse_redis_address(":secret@host:1");
  ASSERT_TRUE(password);
  EXPECT_EQ(password->login.user, "");
  EXPECT_EQ(password->login.password, "secret");
}

TEST(RedisLogin, SaysWhatIsWrongWithoutTheSecret) {
  for (const char* text :
       {"secret@host:1", "kv:@host:1", "kv:secret%@host:1", "kv:secret%4@host:1", "kv:secret%zz@host:1"}) {
    const auto refused = parse_redis_address(text);
    ASSERT_FALSE(refused) << text;
    EXPECT_NE(refused.error().message.find("host:1"), std::string::npos) << refused.error().message;
    EXPECT_EQ(refused.error().message.find("secret"), std::string::npos) << refused.error().message;
  }
}

TEST(RedisLogin, ComesFromTheEnvironmentOrAFile) {
  const auto path =
      std::filesystem::temp_directory_path() / ("trimtab_redis_login_" + std::to_string(::getpid()));
  ::setenv("TRIMTAB_REDIS_PASSWORD_FILE", path.c_str(), 1);
  const auto missing = redis_login_from_environment();
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find(path.string()), std::string::npos);
  std::ofstream(path) << "from a file\r\nnot this\n";
  ::setenv("TRIMTAB_REDIS_USER", "kv", 1);
  const auto file = redis_login_from_environment();
  ASSERT_TRUE(file);
  EXPECT_EQ(file->user, "kv");
  EXPECT_EQ(file->password, "from a file");
  ::setenv("TRIMTAB_REDIS_PASSWORD", "nearer", 1);
  EXPECT_EQ(redis_login_from_environment()->password, "nearer");
  for (const char* name : {"TRIMTAB_REDIS_PASSWORD_FILE", "TRIMTAB_REDIS_USER", "TRIMTAB_REDIS_PASSWORD"})
    ::unsetenv(name);
  std::filesystem::remove(path);
  EXPECT_TRUE(redis_login_from_environment()->password.empty());
}

}  // namespace
}  // namespace trimtab::kv_remote
