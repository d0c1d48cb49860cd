#include "io/trace_reader.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <cstdlib>

namespace trimtab::io {
namespace {

using base::Nanos;
using testing::HasSubstr;

std::string refused(std::string_view text, TraceOptions options = {}) {
  const auto trace = parse_trace(text, "t.jsonl", options);
  return trace ? "" : trace.error().message;
}

const std::string kMooncakeLine =
    R"({"timestamp": 3000, "input_length": 1100, "output_length": 7, "hash_ids": [0, 1, 9]})"
    "\n";

TEST(Trace, MooncakeSpreadsArrivalsInsideAStep) {
  const auto trace = parse_trace(kMooncakeLine + kMooncakeLine + kMooncakeLine, "t", {}).value();
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].arrival, Nanos{3'500'000'000});
  EXPECT_EQ(trace.requests[1].arrival, Nanos{4'500'000'000});
  EXPECT_EQ(trace.requests[2].arrival, Nanos{5'500'000'000});
  EXPECT_EQ(trace.block_tokens, 512);
  const auto runs = trace.runs_of(trace.requests[1]);
  ASSERT_EQ(runs.size(), 2U);
  EXPECT_EQ(runs[0].first, 0U);
  EXPECT_EQ(runs[0].count, 2U);
  EXPECT_EQ(runs[1].first, 9U);
}

TEST(Trace, FinerArrivalsAreTakenAsTheyAre) {
  const std::string other = R"({"timestamp": 3001, "input_length": 5, "output_length": 1})";
  const auto trace = parse_trace(kMooncakeLine + other + "\n", "t", {}).value();
  EXPECT_EQ(trace.requests[0].arrival, Nanos{3'000'000'000});
  EXPECT_EQ(trace.requests[1].arrival, Nanos{3'001'000'000});
}

TEST(Trace, WhatAReaderDoesNotKnowIsPassedOver) {
  const auto trace = parse_trace(
                         "{\"timestamp\": 3000, \"input_length\": 6758, \"output_length\": 500, "
                         "\"hash_ids\": [0, 14, 15]}\r\n"
                         " \n\n"
                         "{\"model\":\"x\",\"output_length\":3,\"input_length\":7,\"timestamp\":3001}",
                         "t", {})
                         .value();
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 6758);
  EXPECT_EQ(trace.requests[0].output_tokens, 500);
  ASSERT_EQ(trace.runs_of(trace.requests[0]).size(), 2U);
  EXPECT_EQ(trace.runs_of(trace.requests[0])[1].count, 2U);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 7);
  EXPECT_TRUE(trace.runs_of(trace.requests[1]).empty());
}

TEST(Trace, LengthsThatNoRequestHasAreRefused) {
  const auto with = [](const std::string& members) { return refused("{\"timestamp\":1," + members + "}\n"); };
  EXPECT_THAT(with(R"("output_length":3)"), HasSubstr("t.jsonl:1: \"input_length\" is missing"));
  EXPECT_THAT(with(R"("input_length":0,"output_length":3)"), HasSubstr("a prompt of 0 tokens"));
  EXPECT_THAT(with(R"("input_length":99999999999,"output_length":3)"),
              HasSubstr("a prompt of 99999999999 tokens"));
  EXPECT_THAT(with(R"("input_length":9,"output_length":-1)"), HasSubstr("an output of -1 tokens"));
  EXPECT_THAT(with(R"("input_length":9,"output_length":1e99)"), HasSubstr("1e+99, not a whole number"));
  EXPECT_THAT(with(R"("input_length":9,"output_length":3,"hash_ids":7)"),
              HasSubstr("\"hash_ids\" is 7, not a list"));
  for (const std::string list : {"[1, 2", "[1 x]", "["})
    EXPECT_THAT(with(R"("input_length":9,"output_length":3,"hash_ids":)" + list),
                HasSubstr("not a JSON object"))
        << list;
  EXPECT_THAT(refused(" \n\n"), HasSubstr("t.jsonl"));
  EXPECT_FALSE(read_trace("/nothing/here.jsonl", {}));
}

TEST(Trace, ASliceBeginsAtItsOwnZero) {
  const std::string text = "arrival_s,prompt_tokens,output_tokens\n0,10,1\n5,20,1\n7,30,1\n9,40,1\n";
  TraceOptions options;
  options.from_s = 5;
  options.for_s = 4;
  const auto trace = parse_trace(text, "t", options).value();
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].arrival, Nanos{0});
  EXPECT_EQ(trace.requests[1].prompt_tokens, 30);
  EXPECT_EQ(trace.span, Nanos{4'000'000'000});
  options.from_s = 10;
  EXPECT_THAT(refused(text, options), HasSubstr("no request arrives in the slice from 10 s for 4 s"));
  options.from_s = -1;
  EXPECT_THAT(refused(text, options), HasSubstr("begin in s is -1"));
  options = {};
  options.clients = 3;
  EXPECT_THAT(refused(text, options), HasSubstr("only client models have them"));
  options = {};
  options.format = TraceFormat::kServegen;
  EXPECT_THAT(refused(text, options), HasSubstr("'servegen' is a directory"));
}

TEST(Trace, ErrorsSayWhere) {
  EXPECT_THAT(refused(kMooncakeLine + "{}\n"), HasSubstr("t.jsonl:2: \"timestamp\" is missing"));
  EXPECT_THAT(refused(kMooncakeLine + "nonsense\n"), HasSubstr("t.jsonl:2: not a JSON object"));
  EXPECT_THAT(refused(R"({"timestamp": 0, "input_length": -5, "output_length": 7})"
                      "\n"),
              HasSubstr("t.jsonl:1: a prompt of -5 tokens"));
  EXPECT_THAT(refused(R"({"timestamp": 0, "input_length": "x", "output_length": 7})"
                      "\n"),
              HasSubstr("\"input_length\" is \"x\", not a whole number"));
  EXPECT_THAT(refused(R"({"timestamp": -3, "input_length": 5, "output_length": 7})"
                      "\n"),
              HasSubstr("timestamp is -3"));
  EXPECT_THAT(refused(R"({"timestamp": 0, "input_length": 5, "output_length": 7, "hash_ids": [-1]})"
                      "\n"),
              HasSubstr("hash_ids"));
  EXPECT_THAT(refused(""), HasSubstr("t.jsonl"));
  EXPECT_THAT(trace_format("moncake").error().message, HasSubstr("did you mean 'mooncake'"));
}

TEST(Trace, ACutLastLineIsANote) {
  const auto trace = parse_trace(kMooncakeLine + kMooncakeLine.substr(0, 30), "t", {}).value();
  EXPECT_EQ(trace.requests.size(), 1U);
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_THAT(trace.notes[0], HasSubstr("t:2: the last line is cut short"));
}

TEST(Trace, AgenticIsAClosedLoopByConversation) {
  const std::string text =
      R"({"conversation":"a","t_s":0.0,"think_s":0.0,"input_tokens":100,"output_tokens":5,"blocks":[[1,1]]})"
      "\n"
      R"({"conversation":"b","t_s":0.0,"think_s":0.0,"input_tokens":200,"output_tokens":5,"blocks":[[1,3]]})"
      "\n"
      R"({"conversation":"a","t_s":9.0,"think_s":3.5,"input_tokens":300,"output_tokens":5,"blocks":[[1,1],[7,3]]})"
      "\n";
  const auto trace = parse_trace(text, "t", {}).value();
  EXPECT_TRUE(trace.closed_loop);
  EXPECT_EQ(trace.conversations, 2U);
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 300);
  EXPECT_EQ(trace.requests[1].turn, 1U);
  EXPECT_EQ(trace.requests[1].think, Nanos{3'500'000'000});
  // The same local id in two conversations is not the same block.
  EXPECT_NE(trace.runs_of(trace.requests[0])[0].first, trace.runs_of(trace.requests[2])[0].first);
  EXPECT_EQ(trace.runs_of(trace.requests[0])[0].first, trace.runs_of(trace.requests[1])[0].first);
  EXPECT_TRUE(trace.notes.empty());
  const std::string silent =
      R"({"conversation":"a","t_s":12.0,"input_tokens":310,"output_tokens":5,"blocks":[]})"
      "\n";
  const auto derived = parse_trace(text + silent, "t", {}).value();
  EXPECT_EQ(derived.requests[2].think, Nanos{3'000'000'000});
  EXPECT_EQ(derived.notes.size(), 1U);
  const std::string agent =
      R"({"conversation":"a","agent":"search","t_s":1.0,"think_s":0.5,"input_tokens":90,"output_tokens":5,"blocks":[[1,1]]})"
      "\n";
  const auto two = parse_trace(text + agent, "t", {}).value();
  EXPECT_EQ(two.conversations, 3U);
  EXPECT_EQ(two.runs_of(two.requests[3])[0].first, two.runs_of(two.requests[0])[0].first);
  const std::string back =
      R"({"conversation":"a","t_s":1.0,"think_s":3.5,"input_tokens":300,"output_tokens":5,"blocks":[]})"
      "\n";
  EXPECT_THAT(refused(text + back), HasSubstr("t.jsonl:4: t_s 1 of conversation a lies before"));
}

TEST(Trace, AzureTimesAreSeconds) {
  const std::string text =
      "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.5000000,4808,10\r\n2023-11-17 "
      "00:00:01.0000000,3180,8\n";
  const auto trace = parse_trace(text, "t", {}).value();
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].arrival, Nanos{0});
  EXPECT_NEAR(static_cast<double>(trace.requests[1].arrival.value), 1.5e9, 1e3);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 3180);
}

TEST(Trace, CsvTakesAColumnMap) {
  TraceOptions options;
  options.columns = {"when", "in", "out", "chat", 1e-3};
  const std::string text = "out,chat,in,when\n3,x,10,500\n4,y,20,100\n5,x,30,900\n";
  const auto trace = parse_trace(text, "t", options).value();
  ASSERT_EQ(trace.requests.size(), 3U);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 20);
  EXPECT_EQ(trace.requests[2].arrival, Nanos{800'000'000});
  EXPECT_EQ(trace.requests[1].conversation, trace.requests[2].conversation);
  options.columns.prompt = "im";
  EXPECT_THAT(refused(text, options), HasSubstr("no column 'im' (did you mean 'in'?)"));
  EXPECT_THAT(refused("arrival_s,prompt_tokens,output_tokens\n1,nan,3\n"), HasSubstr("t.jsonl:2: 'nan'"));
  EXPECT_THAT(refused("arrival_s,prompt_tokens,output_tokens\ninf,4,3\n"), HasSubstr("'inf' is no time"));
  EXPECT_THAT(refused("arrival_s,prompt_tokens,output_tokens\n1,4\n2,3,4\n"),
              HasSubstr("t.jsonl:2: 2 fields"));
}

TEST(Trace, CsvAsSpreadsheetsWriteIt) {
  const std::string rows =
      "name,arrival_s,prompt_tokens,output_tokens\r\n\"a, b\",2026-01-31T00:00:01Z,7,3\r\n"
      "c,2026-01-31 00:00:03.5,8,4,\r\n";
  const auto trace = parse_trace("\xef\xbb\xbf" + rows, "t.csv", {}).value();
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].prompt_tokens, 7) << "a comma in quotes separates nothing";
  EXPECT_EQ(trace.requests[1].arrival, Nanos{2'500'000'000});
}

TEST(Trace, CsvThatIsNoneSaysWhatItIs) {
  const std::string head = "arrival_s,prompt_tokens,output_tokens\n";
  EXPECT_THAT(refused(head + "0,5,100,10\n"), HasSubstr("t.jsonl:2: 4 fields, the header has 3"))
      << "a decimal comma would make the prompt 5 tokens";
  EXPECT_THAT(refused("arrival_s;prompt_tokens;output_tokens\n0;1;1\n"), HasSubstr("not by semicolons"));
  EXPECT_THAT(refused("arrival_s\tprompt_tokens\toutput_tokens\n0\t1\t1\n"), HasSubstr("not by tabs"));
  EXPECT_THAT(refused("arrival_s,prompt,output\n0,1,1\n"), HasSubstr("--csv-prompt names another"));
  EXPECT_THAT(refused(head + "noon,1,1\n"), HasSubstr("a date like"));
  EXPECT_THAT(refused("\x1f\x8b\x08"), HasSubstr("gzip"));
  EXPECT_THAT(refused("\xff\xfe" + head), HasSubstr("UTF-16"));
  EXPECT_THAT(refused("PK\x03\x04"), HasSubstr("spreadsheet"));
  const std::string bell = refused("\x07\x1b[2J\n");
  EXPECT_THAT(bell, HasSubstr("no text"));
  EXPECT_EQ(bell.find('\x1b'), std::string::npos) << "a terminal is not sent what a file holds";
}

RC_GTEST_PROP(Trace, MooncakeRoundTrip, ()) {
  const auto lengths = *rc::gen::nonEmpty<std::vector<std::pair<std::uint16_t, std::uint8_t>>>();
  std::string text;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    text += fmt::format(
        "{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}, \"hash_ids\": [{}]}}\n", 7 * i,
        lengths[i].first + 1, lengths[i].second, i);
  }
  const auto trace = parse_trace(text, "t", {}).value();
  RC_ASSERT(trace.requests.size() == lengths.size());
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    RC_ASSERT(trace.requests[i].prompt_tokens == lengths[i].first + 1);
    RC_ASSERT(trace.requests[i].output_tokens == lengths[i].second);
    RC_ASSERT(trace.runs_of(trace.requests[i])[0].first == i);
  }
}

/// Recorded traces, where they are: their published sizes.
TEST(Trace, Recorded) {
  const char* data = std::getenv("TRIMTAB_DATA");
  if (data == nullptr) GTEST_SKIP() << "TRIMTAB_DATA is not set: no recorded traces";
  const std::string folder = std::string(data) + "/traces/";
  const auto conversation = read_trace(folder + "mooncake_conversation.jsonl", {}).value();
  EXPECT_EQ(conversation.requests.size(), 12'031U);
  for (const auto& request : conversation.requests) {
    std::int64_t blocks = 0;
    for (const auto& run : conversation.runs_of(request)) blocks += run.count;
    ASSERT_EQ(blocks, (request.prompt_tokens + 511) / 512);
  }
  EXPECT_TRUE(std::ranges::is_sorted(conversation.requests, {}, &model::TraceRequest::arrival));
  const auto agentic = read_trace(folder + "agentic.jsonl", {}).value();
  EXPECT_EQ(agentic.requests.size(), 33'971U);
  EXPECT_GE(agentic.conversations, 500U);  // and the loops of their agents
  const auto azure = read_trace(folder + "azure_2023_code.csv", {}).value();
  EXPECT_EQ(azure.requests.size(), 8'819U);
  EXPECT_NEAR(base::to_seconds(azure.requests.back().arrival) / 60, 57, 2);
}

}  // namespace
}  // namespace trimtab::io
