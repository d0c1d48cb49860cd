#include <gtest/gtest.h>

#include "kv_target/file/testing/history.h"
#include "kv_target/file/testing/power_cut_engine.h"
#include "kv_target/file/testing/temp_directory.h"
#include "kv_target/file_target.h"

namespace trimtab::kv_target::file::testing {
namespace {

/// Little room, so that it is used again soon, and a log that is often written anew.
FileTarget::Options small(const std::string& directory) {
  FileTarget::Options options;
  options.directory = directory;
  options.capacity_bytes = 24 * 4096;
  options.layout.file_bytes = 8 * 4096;
  options.direct = false;
  options.uring = false;
  options.threads = 1;
  options.staging_bytes = 1 << 16;
  options.log_slack = 12;
  return options;
}

struct Asked {
  std::uint64_t n = 0;
  std::vector<std::byte> content;
};

/// Asks for random writes, erases and reads, several at once, until the power goes; then it is opened anew
/// and judged. How many shards are wrong.
int life(PowerCutEngine::Options disk_options, std::string& words) {
  const std::uint64_t seed = disk_options.seed;
  const TempDirectory directory(TempDirectory::memory());
  base::Prng prng(seed, 5);
  History history;
  auto options = small(directory.path());
  PowerCutEngine* disk = nullptr;
  disk_options.cut_at = 1 + prng.below(250);
  auto target = FileTarget::open(options);
  if (!target) return 1;
  target->reset();
  options.wrap_engine = [&](std::unique_ptr<IoEngine>) {
    auto engine = std::make_unique<PowerCutEngine>(disk_options);
    disk = engine.get();
    return engine;
  };
  target = FileTarget::open(options);
  if (!target) return 1;
  std::map<std::uint64_t, Asked> asked;  // by tag
  std::uint64_t tag = 0;
  while (!disk->cut()) {
    std::vector<Request> requests;
    for (std::uint64_t some = prng.below(5); some > 0; --some) {
      Asked& one = asked[++tag];
      one.n = prng.below(9);
      Request request;
      request.name = shard_name(one.n);
      request.tag = tag;
      const bool erases = prng.below(3) == 0;
      if (!erases) {
        one.content = History::content(one.n, tag);
        request.content = one.content;
      }
      request.verb = erases ? Verb::kErase : Verb::kWrite;
      history.asked(one.n, erases ? 0 : tag);
      requests.push_back(request);
    }
    (*target)->submit(requests);
    std::vector<Completion> done;
    if (prng.below(3) > 0) (*target)->poll(done);
    if (disk->cut()) break;  // nobody is there to hear of these
    for (const Completion& completion : done) {
      const bool took = completion.outcome == Outcome::kDone || completion.outcome == Outcome::kMissing;
      history.confirmed(asked.at(completion.tag).n, took);
      asked.erase(completion.tag);
    }
  }
  target->reset();
  target = FileTarget::open(small(directory.path()));
  if (!target) {
    words += base::to_string(target.error());
    return 1;
  }
  return history.judge(**target, words);
}

TEST(PowerCut, LosesNothingConfirmedAndInventsNothing) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    std::string words;
    ASSERT_EQ(life({.seed = seed}, words), 0) << "seed " << seed << words;
  }
}

TEST(PowerCut, NorWhenWritesAndSyncsFailedBefore) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    std::string words;
    ASSERT_EQ(life({.seed = seed, .failure_one_in = 2 + seed % 20}, words), 0) << "seed " << seed << words;
  }
}

TEST(PowerCut, ADiskThatLiesAboutSyncsIsFoundOut) {
  int wrong = 0;
  std::string words;
  for (std::uint64_t seed = 0; seed < 60; ++seed) wrong += life({.seed = seed, .ignores_syncs = true}, words);
  EXPECT_GT(wrong, 20) << "or the test above proves nothing";
}

}  // namespace
}  // namespace trimtab::kv_target::file::testing
