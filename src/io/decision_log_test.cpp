#include "io/decision_log.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "io/explain.h"

namespace trimtab::io {
namespace {

using base::TokenCount;
using cluster::Place;
using cluster::RankId;
using model::EngineId;
using model::Role;
using ::testing::HasSubstr;

class DecisionLogTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-log-XXXXXX").string();
    folder = ::mkdtemp(pattern.data());
  }
  void TearDown() override { std::filesystem::remove_all(folder); }
  DecisionLog open(std::uint64_t bytes_max = 1 << 20, double ratio = 1.0) {
    auto log = DecisionLog::open({folder + "/log", bytes_max, ratio});
    EXPECT_TRUE(log) << to_string(log.error());
    return std::move(*log);
  }
  std::vector<Entry> all() {
    std::vector<Entry> entries;
    const auto scan = read_log(folder + "/log", [&](const Entry& e) { entries.push_back(e); });
    EXPECT_TRUE(scan);
    last_scan = *scan;
    return entries;
  }
  std::string folder;
  LogScan last_scan;
};

Entry token(std::uint64_t request, std::int64_t at_ms, std::int32_t id) {
  return {TokenEntry{RequestId{request}, Nanos{at_ms * 1'000'000}, Place{Role::kDecode, EngineId{1}, 0},
                     static_cast<std::uint64_t>(id), id,
                     0xabcdef0000000000ULL + static_cast<std::uint64_t>(id)}};
}

Entry record(std::uint64_t request, std::int64_t at_ms, cluster::RecordBody body) {
  return {cluster::Record{RequestId{request}, Nanos{at_ms * 1'000'000}, std::move(body)}};
}

/// A whole life, each field with a value that can be found again in the text.
std::vector<Entry> life(std::uint64_t id, const std::string& name) {
  const RankId prefill{EngineId{1}, 1};
  const Nanos ms{1'000'000};
  std::vector<Entry> list;
  list.push_back({NameEntry{RequestId{id}, Nanos{}, 1'700'000'000'000'000'000, name}});
  list.push_back(record(id, 0, cluster::SubmittedRecord{TokenCount{3104}, TokenCount{64}, 1, 4000}));
  list.push_back(
      record(id, 0, cluster::AdmissionRecord{true, ms * 11, ms * 12, ms * 600, std::nullopt, "ok"}));
  list.push_back(record(id, 1, cluster::MatchRecord{TokenCount{3104}, TokenCount{2048}, ms * 21, 1}));
  list.push_back(
      record(id, 1, cluster::QueueRecord{model::TierId{2}, TokenCount{3104}, ms * 21, ms, 5, "tier"}));
  list.push_back(record(id, 31,
                        cluster::LeaseRecord{prefill,
                                             model::TierId{2},
                                             false,
                                             ms * 30,
                                             ms * 410,
                                             {ms * 200, ms * 210},
                                             ms * 21,
                                             ms * 300,
                                             ms * 900,
                                             "least"}));
  list.push_back(
      record(id, 31, cluster::VisionRecord{0, 4000, {model::MachineId{1}, 0}, 2, {7, 9}, "fewest"}));
  list.push_back(record(id, 35, cluster::EncodedRecord{0, {model::MachineId{1}, 0}, true, ms * 3, ""}));
  cluster::DecodeRecord choice;
  choice.winner = cluster::RankLoad{{EngineId{0}, 1}, 3, TokenCount{9001}};
  choice.runner_up = cluster::RankLoad{{EngineId{1}, 0}, 4, TokenCount{9002}};
  choice.policy = "waterline";
  choice.request_kv = TokenCount{3105};
  choice.reserve = TokenCount{3168};
  choice.candidates = 4;
  choice.reason = "lowest";
  list.push_back(record(id, 36, choice));
  list.push_back(record(id, 37, cluster::ReservedRecord{{EngineId{0}, 1}, true, 77}));
  list.push_back(record(id, 60,
                        cluster::ChunkRecord{prefill, 17, TokenCount{1056}, TokenCount{2048}, ms * 21,
                                             ms * 300, ms * 250, ms * 22, ms * 24}));
  list.push_back(record(
      id, 61,
      cluster::PrefillDoneRecord{prefill, TokenCount{2048}, TokenCount{1056}, true, ms * 21, ms * 24}));
  list.push_back({BlocksEntry{RequestId{id}, ms * 61, 8, 25}});
  list.push_back({HitEntry{RequestId{id}, ms * 61, "stale", 2048, 1024, 1152, 128, 1}});
  list.push_back({SwapInEntry{RequestId{id}, ms * 61, 24'000'000, 2'000'000, 1056}});
  list.push_back({DriftEntry{RequestId{id}, ms * 90, 0.125, 0.5, 1, 2560}});
  list.push_back(
      record(id, 62, cluster::DecodeStartRecord{{EngineId{0}, 1}, TokenCount{3105}, TokenCount{63}}));
  list.push_back(token(id, 61, 1));
  list.push_back(token(id, 71, 2));
  list.push_back(token(id, 81, 3));
  list.push_back(record(id, 81,
                        cluster::FinishedRecord{model::FinishReason::kStop, TokenCount{3104},
                                                TokenCount{2048}, TokenCount{1056}, TokenCount{3}}));
  return list;
}

TEST_F(DecisionLogTest, WhatIsWrittenIsReadAgainAcrossProcesses) {
  const auto written = life(7, "msg_a");
  {
    auto log = open();
    for (std::size_t i = 0; i < 9; ++i) log.append(written[i]);
  }
  {
    auto log = open();
    for (std::size_t i = 9; i < written.size(); ++i) log.append(written[i]);
  }
  const auto read = all();
  ASSERT_EQ(read.size(), written.size());
  for (std::size_t i = 0; i < read.size(); ++i) EXPECT_EQ(base::encode(read[i]), base::encode(written[i]));
  EXPECT_EQ(last_scan.bytes_torn, 0U);
}

TEST_F(DecisionLogTest, ATornTailIsReportedAndWhatIsBeforeItTold) {
  {
    auto log = open();
    for (const Entry& entry : life(7, "msg_a")) log.append(entry);
  }
  std::filesystem::resize_file(log_path(folder + "/log"),
                               std::filesystem::file_size(log_path(folder + "/log")) - 5);
  std::ostringstream text, errors;
  EXPECT_EQ(explain_command(folder + "/log", "msg_a", false, text, errors), 0);
  EXPECT_THAT(text.str(), HasSubstr("torn bytes"));
  EXPECT_THAT(text.str(), HasSubstr("decoding on decode group 0 rank 1"));
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("ended after 81 ms")));
  auto log = open();
  EXPECT_GT(log.torn_bytes_cut(), 0U);
}

TEST_F(DecisionLogTest, WhatIsWrittenAMomentAfterTheQuestionIsTold) {
  auto log = open();
  const auto entries = life(7, "msg_a");
  std::ostringstream text, errors;
  int waits = 0;
  const auto explain = [&](const std::function<void()>& write) {
    text.str("");
    return explain_command(folder + "/log", "msg_a", false, text, errors, [&] { ++waits, write(); });
  };
  EXPECT_EQ(explain([] {}), 1) << "nobody wrote it";
  EXPECT_EQ(explain([&] {
              log.append(entries[0]);
              EXPECT_TRUE(log.flush());
            }),
            0);
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("ended after 81 ms")));
  EXPECT_EQ(explain([&] {
              for (std::size_t i = 1; i < entries.size(); ++i) log.append(entries[i]);
              EXPECT_TRUE(log.flush());
            }),
            0);
  EXPECT_THAT(text.str(), HasSubstr("ended after 81 ms"));
  EXPECT_EQ(explain([] {}), 0);
  EXPECT_EQ(waits, 3) << "one that has ended is told at once";
}

TEST_F(DecisionLogTest, TwoFilesBoundTheLogAndTheNewestStay) {
  constexpr std::uint64_t kBytesMax = 100'000;
  auto log = open(kBytesMax);
  for (std::uint64_t i = 1; i <= 40'000; ++i) {
    log.append(token(i, static_cast<std::int64_t>(i), 1));
    if (i % 100 == 0) {
      ASSERT_TRUE(log.flush());
    }
  }
  ASSERT_TRUE(log.flush());
  std::uint64_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(folder + "/log")) bytes += file.file_size();
  EXPECT_LT(bytes, 2 * kBytesMax + 20'000);
  EXPECT_GT(bytes, kBytesMax);
  const auto read = all();
  EXPECT_EQ(read.back().request().value, 40'000U);
  for (std::size_t i = 1; i < read.size(); ++i)
    ASSERT_EQ(read[i].request().value, read[i - 1].request().value + 1)
        << "rotation loses nothing in between";
}

TEST_F(DecisionLogTest, SamplingTakesWholeRequestsAndAlwaysTheCluster) {
  auto log = open(64 << 20, 0.25);
  for (std::uint64_t request = 0; request < 4000; ++request)
    for (int i = 0; i < 3; ++i) log.append(token(request, i, i));
  ASSERT_TRUE(log.flush());
  std::map<std::uint64_t, int> count;
  for (const Entry& entry : all()) ++count[entry.request().value];
  EXPECT_TRUE(count.contains(0));
  EXPECT_NEAR(static_cast<double>(count.size()), 1000, 120);  // four standard deviations of 27
  for (const auto& [request, entries] : count) EXPECT_EQ(entries, 3) << request;
}

TEST_F(DecisionLogTest, ExplainTellsTheJourneyInTheWordsOfTheDecisions) {
  {
    auto log = open();
    for (const Entry& entry : life(7, "msg_a")) log.append(entry);
    for (const Entry& entry : life(8, "msg_b")) log.append(entry);
  }
  std::ostringstream text, errors;
  ASSERT_EQ(explain_command(folder + "/log", "msg_a", false, text, errors), 0) << errors.str();
  for (const char* words : {"msg_a",
                            "request 7",
                            "2048 of 3104 tokens hit",
                            "1056 to compute",
                            "quota predicted 21 ms",
                            "spent 24 ms",
                            "tier 2",
                            "queued 30 ms",
                            "step 17 of prefill engine 1 rank 1",
                            "lease        least",
                            "image 0 of 4000 patches to fewest",
                            "decode       lowest; asks for room for 3168 tokens",
                            "1056 tokens after 2048",
                            "step 17",
                            "vote 300 ms",
                            "group MIN 250 ms",
                            "took 24 ms",
                            "hit: 2048 tokens promised by the pool, 1024 read (stale): a block was gone",
                            "; began from the window state after 1152 tokens",
                            "; 128 tokens computed again for their window (approximate)",
                            "it waited for layers 2.0 ms of 24 ms",
                            "1056 tokens were computed in vain",
                            "without approximation (2560 tokens): the first token's logits were off by 0.125",
                            "(the furthest by 0.5); the most likely token was the same",
                            "8 stored in the pool",
                            "25 handed over",
                            "first token after",
                            "10 ms each after the first",
                            "3 by decode group 1 rank 0"})
    EXPECT_THAT(text.str(), HasSubstr(words));
  EXPECT_THAT(text.str(), ::testing::Not(HasSubstr("msg_b")));
}

TEST_F(DecisionLogTest, JsonHasTheSameFigures) {
  LoggedRequest request;
  request.id = RequestId{7};
  request.name = "msg_\xff broken";
  request.entries = life(7, request.name);
  const auto j = nlohmann::json::parse(explain_json(request));
  EXPECT_EQ(j["state"], "finished");
  EXPECT_EQ(j["summary"]["hit_tokens"], 2048);
  EXPECT_EQ(j["summary"]["computed_tokens"], 1056);
  EXPECT_EQ(j["summary"]["tpot_ms"], 10.0);
  EXPECT_EQ(j["summary"]["ttft_ms"], 61.0);
  EXPECT_EQ(j["summary"]["queue_ms"], 30.0);
  EXPECT_EQ(j["summary"]["tier"], 2);
  EXPECT_EQ(j["tokens"], (std::vector<int>{1, 2, 3}));
  EXPECT_EQ(j["checksums"][2], "abcdef0000000003");
  EXPECT_EQ(j["drift"]["relative"], 0.125);
  EXPECT_EQ(j["drift"]["same_token"], true);
  const auto lease = std::find_if(j["events"].begin(), j["events"].end(),
                                  [](const auto& e) { return e["kind"] == "lease"; });
  ASSERT_NE(lease, j["events"].end());
  EXPECT_EQ((*lease)["rank_quota_left_ms"], (std::vector<double>{200.0, 210.0}));
  EXPECT_EQ((*lease)["at_ms"], 31.0);
}

TEST_F(DecisionLogTest, TheNewestOfANameIsFoundAndNumbersToo) {
  {
    auto log = open();
    log.append({NameEntry{RequestId{5}, Nanos{1}, 0, "msg_same"}});
    log.append({NameEntry{RequestId{6}, Nanos{2}, 0, "msg_same"}});
  }
  EXPECT_EQ(find_request(folder + "/log", "msg_same").value()->id, RequestId{6});
  EXPECT_EQ(find_request(folder + "/log", "5").value()->id, RequestId{5});
  EXPECT_FALSE(find_request(folder + "/log", "4").value());
  EXPECT_FALSE(find_request(folder + "/log", "0").value()) << "the cluster is no request";
  EXPECT_FALSE(find_request(folder + "/log", "msg_").value());
  EXPECT_EQ(find_request(folder + "/nothing", "5").error().code, base::Code::kNotFound);
}

TEST_F(DecisionLogTest, RecordsOfAnotherVersionAreCountedNotTold) {
  {
    auto log = open();
    log.append(token(1, 1, 1));
    // A code and a role that this build does not have.
    log.append(record(1, 2, cluster::FailedRecord{static_cast<base::Code>(99), "x", std::nullopt}));
    log.append(record(1, 2, cluster::RequeueRecord{Place{static_cast<Role>(7), EngineId{}, 0}, {}, 0, "x"}));
  }
  {
    auto file = RecordFile::open(log_path(folder + "/log"));
    const std::byte garbage[] = {std::byte{200}, std::byte{1}};
    file->append(garbage);
  }
  EXPECT_EQ(all().size(), 1U);
  EXPECT_EQ(last_scan.undecodable, 3U);
}

}  // namespace
}  // namespace trimtab::io
