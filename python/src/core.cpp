#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <tuple>

#include "binding.h"
#include "config/profile.h"
#include "experts_arrays.h"
#include "kv/key_chain.h"
#include "policy/cost/cost_model.h"
#include "policy/prefill/tiers.h"
#include "policy/vision/image_size.h"

namespace trimtab::python {

namespace {

using base::Nanos;
using base::TokenCount;
using namespace nb::literals;

struct CostModel {
  model::Profile profile;
  policy::CostModel model;
};

CostModel load_cost_model(const std::string& path, const std::optional<std::string>& scope) {
  model::Profile profile = unwrap(config::load_profile(path, "profiles"));
  if (scope) {
    if (*scope != "attention" && *scope != "whole_step") {
      throw nb::value_error(("scope '" + *scope + "' is neither 'attention' nor 'whole_step'").c_str());
    }
    profile.quota_scope =
        *scope == "attention" ? model::QuotaScope::kAttention : model::QuotaScope::kWholeStep;
  }
  return {profile, policy::CostModel(profile)};
}

void check_chunk(std::int64_t q, std::int64_t c, std::int64_t prompt) {
  if (q < 0 || c < 0 || prompt < c + q) {
    throw nb::value_error(("q = " + std::to_string(q) + ", c = " + std::to_string(c) + ", prompt = " +
                           std::to_string(prompt) + ": a chunk needs 0 <= q, 0 <= c and q + c <= prompt")
                              .c_str());
  }
}

std::tuple<std::int64_t, std::int64_t, std::string> solve(const CostModel& self, std::int64_t budget_ns,
                                                          std::int64_t c, std::int64_t prompt,
                                                          std::int64_t tokens_max, std::int64_t tokens_min,
                                                          bool empty_step) {
  check_chunk(0, c, prompt);
  policy::ChunkLimits limits;
  limits.tokens_max = TokenCount{tokens_max};
  limits.tokens_min = TokenCount{tokens_min};
  limits.empty_step = empty_step;
  const policy::ChunkDecision chunk =
      self.model.solve(Nanos{budget_ns}, TokenCount{c}, TokenCount{prompt}, limits);
  return {chunk.tokens.value, chunk.cost.value, std::string(policy::to_string(chunk.reason))};
}

std::vector<std::string> block_keys(const std::vector<std::int32_t>& tokens,
                                    const std::string& model_revision, const std::string& kv_format,
                                    const std::string& tokenizer, const std::string& adapter,
                                    const std::string& tenant) {
  const kv::KeyScope scope{model_revision, kv_format, tokenizer, adapter, tenant};
  std::vector<std::string> out;
  for (const model::BlockKey key : kv::block_keys(kv::root_key(scope), tokens))
    out.push_back(model::to_string(key));
  return out;
}

std::uint32_t tier_of(std::int64_t context, const std::vector<std::int64_t>& bounds) {
  return unwrap(policy::TierMap::make(bounds)).tier_of(TokenCount{context}).value;
}

}  // namespace

NB_MODULE(_core, m) {
  m.doc() = "trimtab's decisions, in C++";
  m.attr("BLOCK_TOKENS") = model::kBlockTokens;
  nb::class_<CostModel>(m, "CostModel", "Predicted time of prefill work, in nanoseconds of compute quota.")
      .def_static("from_profile", &load_cost_model, "path"_a, "scope"_a = nb::none(),
                  "Loads a profile by path, or by name from ./profiles. scope: 'attention' or 'whole_step', "
                  "else the profile's own.")
      .def_prop_ro("name", [](const CostModel& self) { return self.profile.name; })
      .def_prop_ro(
          "fixed_ns", [](const CostModel& self) { return self.model.fixed().value; },
          "A step's fixed part in the scope.")
      .def(
          "cost_ns",
          [](const CostModel& self, std::int64_t q, std::int64_t c, std::int64_t prompt) {
            check_chunk(q, c, prompt);
            return self.model.cost(TokenCount{q}, TokenCount{c}, TokenCount{prompt}).value;
          },
          "q"_a, "c"_a, "prompt"_a,
          "Cost of computing q tokens after c computed ones, of a prompt of `prompt` tokens.")
      .def("solve", &solve, "budget_ns"_a, "c"_a, "prompt"_a, "tokens_max"_a = 32'768, "tokens_min"_a = 128,
           "empty_step"_a = false, "The largest chunk within the budget: (tokens, cost_ns, reason).");
  m.def("tier_of", &tier_of, "context"_a, "bounds"_a = std::vector<std::int64_t>{16'384, 65'536, 262'144},
        "Index of the tier of a total context length.");
  m.def("block_keys", &block_keys, "tokens"_a, "model_revision"_a = "", "kv_format"_a = "",
        "tokenizer"_a = "", "adapter"_a = "", "tenant"_a = "",
        "Keys of all full blocks of 128 tokens: a SHA-256 chain, 32 hexadecimal digits each.");
  m.def(
      "image_patches",
      [](const std::string& profile, std::int64_t width, std::int64_t height) {
        return unwrap(
            policy::image_patches(unwrap(config::load_profile(profile, "profiles")).vision, width, height));
      },
      "profile"_a, "width"_a, "height"_a, "Patches of an image: the unit of vision balancing.");
  m.def(
      "image_tokens",
      [](const std::string& profile, std::int64_t width, std::int64_t height) {
        return unwrap(policy::image_tokens(unwrap(config::load_profile(profile, "profiles")).vision, width,
                                           height))
            .value;
      },
      "profile"_a, "width"_a, "height"_a, "Placeholder tokens that an image takes in the prompt.");
  bind_decode(m);
  nb::module_ experts = m.def_submodule("experts", "Expert balancing; trimtab.experts is its face.");
  bind_experts_plan(experts);
  bind_experts_advise(experts);
  bind_experts_dispatch(experts);
  bind_experts_locality(experts);
  bind_experts_runtime(experts);
  bind_experts_evaluation(experts);
}

}  // namespace trimtab::python
