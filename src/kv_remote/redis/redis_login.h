#pragma once

#include <string>
#include <string_view>

#include "base/error.h"

namespace trimtab::kv_remote {

/// Who a client of Redis says that it is. An empty password: it says nothing; an empty user: Redis's
/// "default".
struct RedisLogin {
  std::string user, password;
};

/// [user:password@]host:port in its parts. ':', '@' and other signs within user and password are written as
/// %3A, %40.
struct RedisAddress {
  std::string server;  // host:port
  RedisLogin login;
};
/// Errors: no password after a user, a broken % sign. They do not repeat the password.
base::Result<RedisAddress> parse_redis_address(std::string_view text);

/// What the environment says for servers whose address names no password: TRIMTAB_REDIS_PASSWORD, or the
/// first line of the file that TRIMTAB_REDIS_PASSWORD_FILE names, and TRIMTAB_REDIS_USER. Neither shows in
/// `ps`. Errors: the file cannot be read, or is empty.
base::Result<RedisLogin> redis_login_from_environment();

}  // namespace trimtab::kv_remote
