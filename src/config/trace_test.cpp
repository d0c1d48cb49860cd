#include "config/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

namespace trimtab::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Trace, ReadsRequestsAndPassesOverWhatItDoesNotKnow) {
  const auto trace = parse_trace(
      "{\"timestamp\": 3000, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 14, 15]}\r\n"
      "\n"
      "{\"model\":\"x\",\"output_length\":3,\"input_length\":7,\"timestamp\":3001}",
      "t.jsonl");
  ASSERT_TRUE(trace) << to_string(trace.error());
  ASSERT_EQ(trace->size(), 2U);
  EXPECT_EQ((*trace)[0].arrival_ms, 3000);
  EXPECT_EQ((*trace)[0].input_tokens, 6758);
  EXPECT_EQ((*trace)[0].output_tokens, 500);
  EXPECT_THAT((*trace)[0].blocks, ElementsAre(0, 14, 15));
  EXPECT_EQ((*trace)[1].input_tokens, 7);
  EXPECT_TRUE((*trace)[1].blocks.empty());
}

TEST(Trace, ErrorsNameTheLineAndTheValue) {
  const auto error = [](const std::string& second) {
    const auto trace =
        parse_trace("{\"timestamp\":1,\"input_length\":2,\"output_length\":3}\n" + second, "t.jsonl");
    return trace ? std::string("accepted") : to_string(trace.error());
  };
  EXPECT_THAT(error("{\"timestamp\":1,\"output_length\":3}"), HasSubstr("\"input_length\" is missing"));
  EXPECT_THAT(error("{\"timestamp\":1,\"output_length\":3}"), HasSubstr("t.jsonl:2"));
  EXPECT_THAT(error("{\"timestamp\":1,\"input_length\":0,\"output_length\":3}"), HasSubstr("is 0"));
  EXPECT_THAT(error("{\"timestamp\":1,\"input_length\":99999999999,\"output_length\":3}"),
              HasSubstr("is 99999999999"));
  EXPECT_THAT(error("{\"timestamp\":\"x\",\"input_length\":1,\"output_length\":3}"), HasSubstr("no number"));
  for (const std::string list : {"[1, 2", "[1 x]", "7", "["}) {
    EXPECT_THAT(error("{\"timestamp\":1,\"input_length\":1,\"output_length\":3,\"hash_ids\":" + list),
                HasSubstr("no list of numbers"))
        << list;
  }
  EXPECT_FALSE(parse_trace(" \n\n", "t.jsonl")) << "an empty trace is no load";
  EXPECT_FALSE(load_trace("/nothing/here.jsonl"));
}

TEST(Trace, TheRecordedOneLoads) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "TRIMTAB_DATA names no folder of recorded traces";
  const auto trace = load_trace(std::string(data) + "/traces/mooncake_conversation.jsonl");
  ASSERT_TRUE(trace) << to_string(trace.error());
  EXPECT_EQ(trace->size(), 12'031U);
  for (const TraceRequest& request : *trace)
    ASSERT_EQ(request.blocks.size(), static_cast<std::size_t>((request.input_tokens + 511) / 512));
}

}  // namespace
}  // namespace trimtab::config
