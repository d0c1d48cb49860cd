#include "kv_remote/testing/local_server.h"
#include "kv_target/testing/conformance_tests.h"

namespace trimtab::kv_target::testing {

namespace {

Maker over_loopback(std::string name, kv_remote::ServerOptions server, kv_remote::ZeroCopy zero_copy) {
  kv_remote::NetworkOptions client;
  client.zero_copy = server.zero_copy = zero_copy;
  return {std::move(name),
          [server, client](std::uint64_t bytes) -> std::unique_ptr<Target> {
            return std::make_unique<kv_remote::testing::Pair>(
                std::make_shared<kv_remote::testing::LocalServer>(bytes, server), client);
          },
          [client](std::unique_ptr<Target> old) -> std::unique_ptr<Target> {
            auto server_kept = dynamic_cast<kv_remote::testing::Pair&>(*old).server();
            old.reset();
            return std::make_unique<kv_remote::testing::Pair>(std::move(server_kept), client);
          }};
}

/// Hardly any credit: everything has to wait for it, and must come all the same.
kv_remote::ServerOptions narrow() {
  kv_remote::ServerOptions options;
  options.credit_bytes = 1U << 20;
  options.credit_requests = 3;
  return options;
}

}  // namespace

INSTANTIATE_TEST_SUITE_P(Network, TargetConformance,
                         ::testing::Values(over_loopback("loopback", {}, kv_remote::ZeroCopy::kAuto),
                                           over_loopback("zero_copy", {}, kv_remote::ZeroCopy::kAlways),
                                           over_loopback("little_credit", narrow(),
                                                         kv_remote::ZeroCopy::kNever)),
                         [](const auto& made) { return made.param.name; });

}  // namespace trimtab::kv_target::testing
