#include "io/logged_trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trimtab::io {
namespace {

using base::TokenCount;
using testing::HasSubstr;

constexpr std::int64_t kSecond = 1'000'000'000;

struct Life {
  std::uint64_t id = 1;
  std::int64_t at_s = 0, prompt = 0, output = 0, hit = 0;
  std::int64_t unix_s = 1'700'000'000;  // the calendar when the clock was 0
};

Entry record(std::uint64_t id, std::int64_t at_s, cluster::RecordBody body) {
  return {cluster::Record{RequestId{id}, Nanos{at_s * kSecond}, std::move(body)}};
}

std::vector<Entry> begun(const Life& life) {
  cluster::SubmittedRecord submitted;
  submitted.prompt = TokenCount{life.prompt};
  cluster::MatchRecord match;
  match.tokens = TokenCount{life.prompt};
  match.hit = TokenCount{life.hit};
  return {
      {NameEntry{RequestId{life.id}, Nanos{life.at_s * kSecond}, (life.unix_s + life.at_s) * kSecond, "x"}},
      record(life.id, life.at_s, submitted),
      record(life.id, life.at_s, match)};
}

std::vector<Entry> whole(const Life& life) {
  auto entries = begun(life);
  cluster::FinishedRecord finished;
  finished.prompt = TokenCount{life.prompt};
  finished.hit = TokenCount{life.hit};
  finished.output = TokenCount{life.output};
  entries.push_back(record(life.id, life.at_s + 1, finished));
  return entries;
}

model::Trace trace_of(const std::vector<std::vector<Entry>>& lives) {
  LoggedTrace gathered;
  for (const auto& life : lives) {
    for (const Entry& entry : life) gathered.add(entry);
  }
  return std::move(gathered).finish("log");
}

std::vector<std::uint64_t> ids(const model::Trace& trace, std::size_t request) {
  std::vector<std::uint64_t> all;
  for (const auto& run : trace.runs_of(trace.requests[request])) {
    for (std::uint32_t i = 0; i < run.count; ++i) all.push_back(run.first + i);
  }
  return all;
}

std::size_t shared(const model::Trace& trace, std::size_t a, std::size_t b) {
  const auto left = ids(trace, a), right = ids(trace, b);
  std::size_t n = 0;
  while (n < left.size() && n < right.size() && left[n] == right[n]) ++n;
  return n;
}

TEST(LoggedTrace, LengthsAndArrivals) {
  const auto trace = trace_of({whole({7, 5, 1'000, 40}), whole({8, 9, 300, 2})});
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[0].arrival, Nanos{0});
  EXPECT_EQ(trace.requests[1].arrival, Nanos{4 * kSecond});
  EXPECT_EQ(trace.requests[0].prompt_tokens, 1'000);
  EXPECT_EQ(trace.requests[1].output_tokens, 2);
  EXPECT_EQ(trace.block_tokens, 128);
  EXPECT_TRUE(trace.notes.empty());
}

TEST(LoggedTrace, AHitIsOfTheLatestRequestThatEndsThere) {
  // 0: 5 blocks of prompt, 6 with the answer; 1: something else that is longer; 2 goes on from 0's answer, 3
  // shares 3 blocks with the latest that has them.
  const auto trace = trace_of({whole({1, 0, 640, 130}), whole({2, 1, 2'000, 10}), whole({3, 2, 900, 10, 768}),
                               whole({4, 3, 500, 10, 384})});
  EXPECT_EQ(ids(trace, 0).size(), 6U);
  EXPECT_EQ(shared(trace, 0, 2), 6U);
  EXPECT_EQ(shared(trace, 1, 2), 0U);
  EXPECT_EQ(shared(trace, 2, 3), 3U);
  EXPECT_EQ(ids(trace, 2).size(), 7U);
}

TEST(LoggedTrace, HitsFromBeforeTheLogAreANote) {
  const auto trace = trace_of({whole({1, 0, 1'000, 10, 512})});
  ASSERT_EQ(trace.requests.size(), 1U);
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_THAT(trace.notes[0], HasSubstr("from before the log"));
}

TEST(LoggedTrace, FailedAndUnfinishedOnesAreLeftOut) {
  auto failed = begun({1, 0, 100, 0});
  failed.push_back(record(1, 1, cluster::FailedRecord{}));
  auto left = begun({2, 1, 100, 0});
  cluster::CancelledRecord cancelled;
  cancelled.output = TokenCount{12};
  left.push_back(record(2, 2, cancelled));
  const auto trace = trace_of({failed, left, begun({3, 3, 100, 0})});
  ASSERT_EQ(trace.requests.size(), 1U);
  EXPECT_EQ(trace.requests[0].output_tokens, 12) << "what the client had before it left";
  ASSERT_EQ(trace.notes.size(), 2U);
  EXPECT_THAT(trace.notes[0], HasSubstr("1 requests failed"));
  EXPECT_THAT(trace.notes[1], HasSubstr("1 requests have no end"));
}

TEST(LoggedTrace, TheCalendarTiesRestartsTogether) {
  // The second life of the server begins an hour later, with its clock and its ids at the beginning again.
  const auto trace = trace_of({whole({1, 100, 200, 5}), whole({1, 3, 300, 5, 0, 1'700'003'600})});
  ASSERT_EQ(trace.requests.size(), 2U);
  EXPECT_EQ(trace.requests[1].arrival, Nanos{3'503 * kSecond});
  EXPECT_EQ(trace.requests[1].prompt_tokens, 300);
}

TEST(LoggedTrace, EncodedImagesCount) {
  auto life = begun({1, 0, 400, 5});
  ImageEntry image;
  image.request = RequestId{1};
  image.rows = 196;
  life.push_back({image});
  cluster::FinishedRecord finished;
  finished.prompt = TokenCount{400};
  finished.output = TokenCount{5};
  life.push_back(record(1, 1, finished));
  const auto trace = trace_of({life});
  ASSERT_EQ(trace.images_of(trace.requests[0]).size(), 1U);
  EXPECT_EQ(trace.images_of(trace.requests[0])[0].tokens, 196U);
}

TEST(LoggedTrace, AbsurdRecordsAreNoTrouble) {
  auto late = whole({1, 0, 100, 5});
  std::get<cluster::Record>(late[1].body).at = Nanos{INT64_MAX};
  auto wild = whole({2, 0, INT64_MAX, INT64_MAX, INT64_MAX});
  auto negative = whole({3, 0, -5, -5, -5});
  EXPECT_TRUE(trace_of({late, wild, negative}).requests.empty());
}

TEST(LoggedTrace, ReadsALogAndSaysWhatIsTorn) {
  std::string folder = (std::filesystem::temp_directory_path() / "trimtab-log-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  {
    auto log = DecisionLog::open({folder, 1 << 20, 1.0}).value();
    for (const Entry& entry : whole({1, 5, 1'000, 40})) log.append(entry);
    ASSERT_TRUE(log.flush());
  }
  std::ofstream(log_path(folder), std::ios::app) << "torn";
  const auto trace = read_trace(folder, {}).value();
  EXPECT_EQ(trace.requests.size(), 1U);
  ASSERT_EQ(trace.notes.size(), 1U);
  EXPECT_THAT(trace.notes[0], HasSubstr("4 bytes at the end are torn"));
  std::filesystem::remove_all(folder);
  EXPECT_FALSE(read_trace(folder, {}));
}

}  // namespace
}  // namespace trimtab::io
