#include "text/answer_memory.h"

#include <gmock/gmock.h>
#include <sqlite3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "text/small_model.h"

namespace trimtab::text {
namespace {

using testing::ElementsAre;
using testing::Optional;

using Ids = std::vector<TokenId>;

class AnswerMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "answer_memory_" + std::to_string(getpid());
    std::filesystem::create_directories(folder_);
    options_.path = folder_ + "/answers.sqlite";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::unique_ptr<AnswerMemory> open() {
    auto memory = AnswerMemory::open(options_);
    EXPECT_TRUE(memory) << memory.error().message;
    return std::move(*memory);
  }
  void execute(const std::string& sql) {
    sqlite3* database = nullptr;
    ASSERT_EQ(sqlite3_open(options_.path.c_str(), &database), SQLITE_OK);
    EXPECT_EQ(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr), SQLITE_OK)
        << sqlite3_errmsg(database);
    sqlite3_close(database);
  }
  std::string folder_;
  AnswerMemory::Options options_;
};

TEST_F(AnswerMemoryTest, SurvivesARestart) {
  ASSERT_TRUE(open()->remember("hello", 1, Ids{4, 5, 6}));
  auto memory = open();
  EXPECT_THAT(memory->find("hello", 1), Optional(ElementsAre(4, 5, 6)));
  EXPECT_EQ(memory->find("hello!", 1), std::nullopt);
  EXPECT_EQ(memory->stats().answers, 1U);
  EXPECT_EQ(memory->stats().hits, 1U);
  EXPECT_EQ(memory->stats().misses, 1U);
}

TEST_F(AnswerMemoryTest, PrefersTheSameContextAndFallsBackToTheLatest) {
  auto memory = open();
  ASSERT_TRUE(memory->remember("ok", 1, Ids{10}));
  ASSERT_TRUE(memory->remember("ok", 2, Ids{20, 21}));
  EXPECT_THAT(memory->find("ok", 1), Optional(ElementsAre(10)));
  EXPECT_THAT(memory->find("ok", 2), Optional(ElementsAre(20, 21)));
  EXPECT_THAT(memory->find("ok", 99), Optional(ElementsAre(20, 21)));  // the one used last
}

TEST_F(AnswerMemoryTest, TheSameAnswerAgainReplacesItself) {
  auto memory = open();
  ASSERT_TRUE(memory->remember("ok", 1, Ids{10}));
  const auto bytes = memory->stats().bytes;
  ASSERT_TRUE(memory->remember("ok", 1, Ids{11}));
  EXPECT_EQ(memory->stats().bytes, bytes);
  EXPECT_EQ(memory->stats().answers, 1U);
  EXPECT_THAT(memory->find("ok", 1), Optional(ElementsAre(11)));
}

TEST_F(AnswerMemoryTest, StaysWithinItsBoundAndForgetsTheLeastRecentlyUsed) {
  options_.bytes_max = 10 * (100 + 4);
  auto memory = open();
  const auto text = [](int i) { return std::string(98, 'x') + std::to_string(10 + i); };
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(memory->remember(text(i), 1, Ids{i}));
  EXPECT_NE(memory->find(text(0), 1), std::nullopt);  // now the most recently used
  for (int i = 10; i < 15; ++i) ASSERT_TRUE(memory->remember(text(i), 1, Ids{i}));
  EXPECT_LE(memory->stats().bytes, options_.bytes_max);
  EXPECT_EQ(memory->stats().evicted, 5U);
  EXPECT_NE(memory->find(text(0), 1), std::nullopt);
  EXPECT_EQ(memory->find(text(1), 1), std::nullopt);
  EXPECT_EQ(memory->find(text(5), 1), std::nullopt);
  EXPECT_NE(memory->find(text(6), 1), std::nullopt);
  memory.reset();
  options_.bytes_max = 3 * (100 + 4);  // a lower limit takes effect at the next start
  EXPECT_EQ(open()->stats().answers, 3U);
}

TEST_F(AnswerMemoryTest, ARowThatWasDamagedIsDroppedNotReturned) {
  ASSERT_TRUE(open()->remember("hello", 1, Ids{4, 5, 6}));
  execute("UPDATE answers SET ids = x'07000000080000000900000A'");
  auto memory = open();
  EXPECT_EQ(memory->find("hello", 1), std::nullopt);
  EXPECT_EQ(memory->stats().corrupt, 1U);
  EXPECT_EQ(memory->stats().answers, 0U);
  ASSERT_TRUE(memory->remember("hello", 1, Ids{4, 5, 6}));
  EXPECT_NE(memory->find("hello", 1), std::nullopt);
}

TEST_F(AnswerMemoryTest, AFileThatIsNoDatabaseIsSetAside) {
  { std::ofstream(options_.path) << std::string(8'192, 'z'); }
  auto memory = open();
  EXPECT_EQ(memory->stats().corrupt, 1U);
  EXPECT_TRUE(std::filesystem::exists(options_.path + ".corrupt"));
  ASSERT_TRUE(memory->remember("hello", 1, Ids{4}));
  memory.reset();
  EXPECT_NE(open()->find("hello", 1), std::nullopt);
}

TEST_F(AnswerMemoryTest, AnotherVersionIsSetAside) {
  open();
  execute("PRAGMA user_version = 77");
  EXPECT_EQ(open()->stats().corrupt, 1U);
}

TEST_F(AnswerMemoryTest, AMissingDirectoryIsAnErrorThatNamesThePath) {
  options_.path = folder_ + "/none/answers.sqlite";
  const auto memory = AnswerMemory::open(options_);
  ASSERT_FALSE(memory);
  EXPECT_EQ(memory.error().code, base::Code::kIo);
  EXPECT_THAT(memory.error().message, testing::HasSubstr(options_.path));
}

TEST_F(AnswerMemoryTest, EmptyAndHugeAnswersAreNotKept) {
  options_.answer_bytes_max = 10;
  auto memory = open();
  EXPECT_TRUE(memory->remember("", 1, Ids{1}));
  EXPECT_TRUE(memory->remember("x", 1, Ids{}));
  EXPECT_TRUE(memory->remember("more than ten bytes", 1, Ids{1}));
  EXPECT_EQ(memory->stats().answers, 0U);
}

TEST(AnswerMemoryInMemory, NeedsNoFile) {
  auto memory = AnswerMemory::open({});
  ASSERT_TRUE(memory);
  ASSERT_TRUE((*memory)->remember("hello", 1, Ids{4}));
  EXPECT_NE((*memory)->find("hello", 2), std::nullopt);
}

TEST(IdsOfShownText, KeepsWholeTokensAndSpellsTheRest) {
  const std::string path = testing::TempDir() + "ids_of_shown_" + std::to_string(getpid()) + ".gguf";
  ASSERT_TRUE(small_model().write(path));
  const auto tokenizer = *Tokenizer::load(*gguf::GgufFile::open(path));
  std::remove(path.c_str());
  Ids drawn;  // "hello" letter by letter, then " hello" as one token
  for (const char c : std::string("hello")) drawn.push_back(3 + c);
  const auto whole = tokenizer.encode(" hello");
  drawn.insert(drawn.end(), whole.begin(), whole.end());
  EXPECT_EQ(ids_of_shown_text(tokenizer, drawn, "hello hello"), drawn);
  const auto cut = ids_of_shown_text(tokenizer, drawn, "hello hel");
  EXPECT_TRUE(std::equal(drawn.begin(), drawn.begin() + 5, cut.begin()));
  EXPECT_EQ(tokenizer.decode(cut), "hello hel");
  // A cut inside a character's bytes cannot happen, but a token that ends inside one can.
  const Ids half{3 + 0xC3, 3 + 0xA9};
  EXPECT_EQ(tokenizer.decode(ids_of_shown_text(tokenizer, half, "\xC3\xA9")), "\xC3\xA9");
  EXPECT_EQ(ids_of_shown_text(tokenizer, {}, ""), Ids{});
}

}  // namespace
}  // namespace trimtab::text
