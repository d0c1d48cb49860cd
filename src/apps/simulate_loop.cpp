#include "apps/simulate_loop.h"

#include <algorithm>

#include "base/check.h"
#include "config/scenario_experts.h"

namespace trimtab::apps {
namespace {

using Words = std::vector<std::string_view>;

std::size_t index_of(const Words& words, std::string_view word) {
  const auto found = std::ranges::find(words, word);
  TRIMTAB_CHECK(found != words.end(), "the flag checked it");
  return static_cast<std::size_t>(found - words.begin());
}

std::vector<std::string> strings(const Words& words) { return {words.begin(), words.end()}; }

}  // namespace

void add_loop_flags(CLI::App& command, LoopFlags& flags) {
  command
      .add_option("--expert-policy", flags.experts,
                  "instead of the scenario's: off, redundancy, deepinfer, incremental, repair; constant does "
                  "not model experts; several compare")
      ->check(CLI::IsMember(strings(config::expert_policy_words())));
  command
      .add_option("--verify", flags.verify,
                  "drafts, instead of the scenario's: fixed, published, group; off does not model them; "
                  "several compare")
      ->check(CLI::IsMember(strings(config::verify_policy_words())));
}

std::vector<model::Scenario> loop_scenarios(const model::Scenario& scenario, const LoopFlags& flags) {
  std::vector<model::ExpertPolicy> experts{scenario.experts.policy};
  std::vector<model::VerifyPolicy> verify{scenario.verify.policy};
  if (!flags.experts.empty()) experts.clear();
  if (!flags.verify.empty()) verify.clear();
  for (const std::string& word : flags.experts)
    experts.push_back(static_cast<model::ExpertPolicy>(index_of(config::expert_policy_words(), word)));
  for (const std::string& word : flags.verify)
    verify.push_back(static_cast<model::VerifyPolicy>(index_of(config::verify_policy_words(), word)));
  std::vector<model::Scenario> all;
  for (const model::ExpertPolicy expert : experts) {
    for (const model::VerifyPolicy rule : verify) {
      all.push_back(scenario);
      all.back().experts.policy = expert;
      all.back().verify.policy = rule;
    }
  }
  return all;
}

void name_loop(const model::Scenario& scenario, Run& run) {
  run.experts = config::expert_policy_words()[static_cast<std::size_t>(scenario.experts.policy)];
  run.verify = config::verify_policy_words()[static_cast<std::size_t>(scenario.verify.policy)];
}

}  // namespace trimtab::apps
