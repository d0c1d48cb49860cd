#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>

#include "binding.h"
#include "policy/decode/policy.h"

namespace trimtab::python {

namespace {

using base::Nanos;
using base::TokenCount;
using namespace nb::literals;

/// One placer over the ranks of one or more decode groups, with its own accounting.
class DecodePlacer {
 public:
  explicit DecodePlacer(const std::string& policy, std::int64_t headroom_tokens) {
    policy::DecodeConfig config;
    config.policy = policy;
    config.headroom_tokens = headroom_tokens;
    policy_ = unwrap(policy::make_decode_policy(config));
  }
  void add_rank(std::uint32_t engine, std::uint32_t rank, std::int64_t kv_tokens, std::int64_t max_running) {
    const model::RankId id{model::EngineId{engine}, rank};
    if (policy_->ledger().knows(id))
      throw nb::value_error(("rank " + model::to_string(id) + " is known already").c_str());
    policy_->add_rank(id, {TokenCount{kv_tokens}, max_running, 1'000});
  }
  /// Chooses and reserves: ((engine, rank) or None, reason).
  std::pair<std::optional<std::pair<std::uint32_t, std::uint32_t>>, std::string> place(std::uint64_t id,
                                                                                       std::int64_t tokens,
                                                                                       std::int64_t now_ns) {
    policy::DecodeRequest request;
    request.id = model::RequestId{id};
    request.tokens = TokenCount{tokens};
    request.waiting_since = Nanos{now_ns};
    const policy::DecodeDecision decision = policy_->decide(request, Nanos{now_ns});
    std::optional<std::pair<std::uint32_t, std::uint32_t>> rank;
    if (decision.rank) {
      policy_->reserve(request.id, *decision.rank, request.tokens, Nanos{now_ns});
      rank.emplace(decision.rank->engine.value, decision.rank->rank);
    }
    return {rank, policy::describe(decision)};
  }
  void grew(std::uint64_t id, std::int64_t tokens, std::int64_t now_ns) {
    policy_->grew(model::RequestId{id}, tokens, Nanos{now_ns});
  }
  bool ended(std::uint64_t id, std::int64_t now_ns) {
    return policy_->ended(model::RequestId{id}, Nanos{now_ns});
  }

 private:
  std::unique_ptr<policy::DecodePolicy> policy_;
};

}  // namespace

void bind_decode(nb::module_& m) {
  nb::class_<DecodePlacer>(
      m, "DecodePlacer",
      "Chooses the decode rank of each request on both dimensions: running requests and KV.")
      .def(nb::init<const std::string&, std::int64_t>(), "policy"_a = "waterline_hazard",
           "headroom_tokens"_a = 128)
      .def("add_rank", &DecodePlacer::add_rank, "engine"_a, "rank"_a, "kv_tokens"_a, "max_running"_a = 32)
      .def("place", &DecodePlacer::place, "id"_a, "tokens"_a, "now_ns"_a = 0,
           "Chooses a rank and reserves room on it: ((engine, rank) or None, the reason in words).")
      .def("grew", &DecodePlacer::grew, "id"_a, "tokens"_a = 1, "now_ns"_a = 0)
      .def("ended", &DecodePlacer::ended, "id"_a, "now_ns"_a = 0,
           "Frees its room; False when the id is not known.");
  m.def("decode_policy_names", [] {
    std::vector<std::string> names;
    for (const std::string_view name : policy::decode_policy_names()) names.emplace_back(name);
    return names;
  });
}

}  // namespace trimtab::python
