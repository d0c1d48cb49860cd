#include "io/step_log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>

#include "io/decision_log.h"

namespace trimtab::io {
namespace {

using base::TokenCount;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  const auto log = parse_step_log(text, "steps");
  return log ? "accepted" : log.error().message;
}

TEST(StepLog, JsonLinesOfWholeStepsAndOfSingleChunks) {
  const auto log = parse_step_log(
      "{\"actual_ms\": 41.5, \"chunks\": [{\"tokens\": 512, \"computed\": 4096}, {\"tokens\": 7, "
      "\"computed\": 0}]}\n"
      "\r\n"
      "{\"tokens\": 64, \"computed\": 128, \"actual_us\": 900, \"note\": \"passed over\"}\n",
      "steps");
  ASSERT_TRUE(log) << log.error().message;
  ASSERT_EQ(log->steps.size(), 2U);
  EXPECT_EQ(log->steps[0].actual, Nanos{41'500'000});
  ASSERT_EQ(log->steps[0].chunks.size(), 2U);
  EXPECT_EQ(log->steps[0].chunks[1].tokens, TokenCount{7});
  EXPECT_EQ(log->steps[1].actual, Nanos{900'000});
  EXPECT_EQ(log->steps[1].chunks[0].computed, TokenCount{128});
  EXPECT_FALSE(log->last_line_torn);
}

TEST(StepLog, RowsOfOneStepAreItsChunks) {
  const auto csv = parse_step_log(
      "rank,step,tokens,computed,actual_ms\n0,1,100,0,5\n1,1,50,0,5\n0,1,20,300,5\n0,2,10,0,1\n", "steps");
  ASSERT_TRUE(csv) << csv.error().message;
  ASSERT_EQ(csv->steps.size(), 3U);
  EXPECT_EQ(csv->steps[0].chunks.size(), 2U);
  EXPECT_EQ(csv->steps[0].chunks[1].computed, TokenCount{300});
  const auto json = parse_step_log(
      "{\"step\":1,\"tokens\":1,\"computed\":0,\"actual_ns\":5}\n{\"step\":1,\"tokens\":2,\"computed\":0,"
      "\"actual_ns\":5}\n",
      "steps");
  ASSERT_TRUE(json);
  EXPECT_EQ(json->steps.size(), 1U);
  // Without a step column every row is a step.
  const auto apart = parse_step_log("tokens,computed,actual_s\n1,0,1\n1,0,1\n", "steps");
  ASSERT_TRUE(apart);
  EXPECT_EQ(apart->steps.size(), 2U);
}

TEST(StepLog, ErrorsNameLineValueAndFix) {
  EXPECT_THAT(refusal(""), HasSubstr("no step in it"));
  EXPECT_THAT(refusal("{\"tokens\":1,\"computed\":0,\"actual_ms\":1}\nnonsense\n"),
              HasSubstr("steps:2: not a JSON object"));
  EXPECT_THAT(refusal("{\"computed\":0,\"actual_ms\":1}\n"), HasSubstr("steps:1: no \"tokens\""));
  EXPECT_THAT(refusal("{\"tokens\":\"9\",\"computed\":0,\"actual_ms\":1}\n"),
              HasSubstr("\"tokens\" is \"9\""));
  EXPECT_THAT(refusal("{\"tokens\":1.5,\"computed\":0,\"actual_ms\":1}\n"), HasSubstr("tokens is 1.5"));
  EXPECT_THAT(refusal("{\"tokens\":0,\"computed\":0,\"actual_ms\":1}\n"), HasSubstr("tokens is 0"));
  EXPECT_THAT(refusal("{\"tokens\":1,\"computed\":-1,\"actual_ms\":1}\n"), HasSubstr("computed is -1"));
  EXPECT_THAT(refusal("{\"tokens\":1,\"computed\":0}\n"), HasSubstr("no time: give \"actual_ms\""));
  EXPECT_THAT(refusal("{\"tokens\":1,\"computed\":0,\"actual_ms\":0}\n"), HasSubstr("actual_ms is 0"));
  EXPECT_THAT(refusal("{\"chunks\":[],\"actual_ms\":1}\n"), HasSubstr("at least one chunk"));
  EXPECT_THAT(refusal("tokens,actual_ms\n1,2\n"), HasSubstr("no column \"computed\" in the header"));
  EXPECT_THAT(refusal("tokens,computed,time\n1,2,3\n"), HasSubstr("call it actual_ms"));
  EXPECT_THAT(refusal("tokens,computed,actual_ms\n1,0\n1,0,1\n"),
              HasSubstr("steps:2: 2 cells under 3 columns"));
  EXPECT_THAT(refusal("tokens,computed,actual_ms\n1,x,1\n1,0,1\n"),
              HasSubstr("steps:2: \"x\" is not a number"));
  EXPECT_THAT(refusal("tokens,computed,actual_ms\n1,0,nan\n1,0,1\n"), HasSubstr("actual_ms is nan"));
  EXPECT_THAT(refusal("step,tokens,computed,actual_ms\n4,1,0,5\n4,1,0,6\n"),
              HasSubstr("step 4 takes 6000000 ns here"));
}

TEST(StepLog, ATornLastLineIsLeftOut) {
  for (const char* text :
       {"tokens,computed,actual_ms\n1,0,1\n2,0", "{\"tokens\":1,\"computed\":0,\"actual_ms\":1}\n{\"tok"}) {
    const auto log = parse_step_log(text, "steps");
    ASSERT_TRUE(log) << log.error().message;
    EXPECT_EQ(log->steps.size(), 1U);
    EXPECT_TRUE(log->last_line_torn);
  }
}

TEST(StepLog, TheDecisionLogsStepsAndTheirChunks) {
  std::string folder = (std::filesystem::temp_directory_path() / "trimtab-steps-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string directory = folder + "/decisions";
  auto log = DecisionLog::open({directory, 1 << 20, 1.0});
  ASSERT_TRUE(log);
  const Nanos ms{1'000'000};
  const auto chunk = [&](std::uint64_t request, std::uint32_t rank, std::uint64_t step, std::int64_t tokens,
                         std::int64_t predicted_ms, std::int64_t step_predicted_ms, std::int64_t actual_ms) {
    log->append({cluster::Record{model::RequestId{request}, ms * static_cast<std::int64_t>(step),
                                 cluster::ChunkRecord{{model::EngineId{0}, rank},
                                                      step,
                                                      TokenCount{tokens},
                                                      TokenCount{0},
                                                      ms * predicted_ms,
                                                      Nanos{},
                                                      Nanos{},
                                                      ms * step_predicted_ms,
                                                      ms * actual_ms}}});
  };
  // A step costs 5 ms and a token 1 ms; rank 0 and rank 1 both have a step 1.
  chunk(1, 0, 1, 10, 10, 25, 26);
  chunk(2, 0, 1, 10, 10, 25, 26);
  chunk(3, 1, 1, 30, 30, 35, 33);
  chunk(4, 0, 2, 10, 10, 35, 36);  // a chunk of 20 tokens is not in the log
  chunk(5, 0, 3, 40, 40, 45, 44);
  ASSERT_TRUE(log->flush());
  const auto steps = read_step_log(directory);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(steps) << steps.error().message;
  EXPECT_EQ(steps->steps_partial, 1U);
  ASSERT_EQ(steps->steps.size(), 3U);
  EXPECT_EQ(steps->steps[0].chunks.size(), 2U);
  EXPECT_EQ(steps->steps[0].actual, ms * 26);
  EXPECT_EQ(steps->steps[1].actual, ms * 33);
}

}  // namespace
}  // namespace trimtab::io
