// The default holds on traffic that it was not tuned on: its constants come from the conversation trace (and
// the rule that shortens its horizon was chosen with the others in view, docs/policies/decode.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

#include "policy/decode/study/closed_loop.h"

namespace trimtab::policy {
namespace {

/// The number after `"key":` of a JSON line, 0 without it.
std::int64_t member(const std::string& line, const std::string& key) {
  const std::size_t at = line.find("\"" + key + "\":");
  return at == std::string::npos ? 0 : std::strtoll(line.c_str() + at + key.size() + 3, nullptr, 10);
}

std::vector<StudyRequest> lengths(const std::string& path, const std::string& prompt,
                                  const std::string& output) {
  std::vector<StudyRequest> requests;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    StudyRequest one{member(line, prompt), member(line, output)};
    if (prompt.empty()) {  // csv: time, prompt, output
      const std::size_t first = line.find(','), second = line.find(',', first + 1);
      if (second == std::string::npos) continue;
      one = {std::strtoll(line.c_str() + first + 1, nullptr, 10),
             std::strtoll(line.c_str() + second + 1, nullptr, 10)};
    }
    if (one.prompt_tokens > 0 && one.output_tokens > 0) requests.push_back(one);
  }
  return requests;
}

TEST(UnseenTraces, TheDefaultLosesAtMostAPointAgainstTheTunedOne) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr || *data == 0) GTEST_SKIP() << "TRIMTAB_DATA names no folder of recorded traces";
  const std::string folder = std::string(data) + "/traces/";
  const auto conversation = lengths(folder + "mooncake_conversation.jsonl", "input_length", "output_length");
  auto agentic = lengths(folder + "agentic.jsonl", "input_tokens", "output_tokens");
  auto azure = lengths(folder + "azure_2023_code.csv", "", "");
  ASSERT_GT(std::min({conversation.size(), agentic.size(), azure.size()}), 2'000U);
  agentic.erase(agentic.begin(), agentic.begin() + static_cast<std::ptrdiff_t>(agentic.size() / 2));
  for (const std::int64_t ranks : {32, 144}) {
    const auto percent = [&](const std::vector<StudyRequest>& trace, const char* policy) {
      StudyCase study;
      study.ranks = ranks;
      study.fills = 8;
      if (policy != nullptr) study.config.policy = policy;
      return 100 * run_study(study, trace).share;
    };
    const double tuned = percent(conversation, nullptr);
    for (const auto& [name, trace] :
         {std::pair{"agentic, second half", &agentic}, std::pair{"Azure", &azure}}) {
      const double share = percent(*trace, nullptr);
      std::printf("%lld ranks x 16, %s: %.1f (dualpath %.1f); conversation %.1f\n",
                  static_cast<long long>(ranks), name, share, percent(*trace, "dualpath"), tuned);
      EXPECT_GT(share, tuned - 1) << name;
    }
  }
}

}  // namespace
}  // namespace trimtab::policy
