#include "supervisor/last_words.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trimtab::supervisor {
namespace {

class LastWords : public ::testing::Test {
 protected:
  ~LastWords() override { std::filesystem::remove(log_); }
  std::string of(const std::string& text, std::uint64_t begin = 0) const {
    std::ofstream(log_, std::ios::binary) << text;
    return last_words(log_, begin);
  }
  const std::string log_ =
      std::filesystem::temp_directory_path() / ("trimtab_words_" + std::to_string(::getpid()));
};

TEST_F(LastWords, AreTheErrorElseTheLastLine) {
  EXPECT_EQ(of("12:00 info [a] begins\n12:01 warn [a] out of breath\n\n"), "12:01 warn [a] out of breath");
  EXPECT_EQ(of("trimtab: no such place (pool)\nTry `engine --help`.\n"), "no such place (pool)");
  EXPECT_EQ(of("cut off in the mid"), "cut off in the mid");
}

TEST_F(LastWords, AreOfThisLifeOnly) {
  const std::string before = "trimtab: the life before\n";
  EXPECT_EQ(of(before, before.size()), "");
  EXPECT_EQ(of(before + "this one\n", before.size()), "this one");
  EXPECT_EQ(of("made anew meanwhile\n", 4'096), "");
  EXPECT_EQ(last_words(log_ + ".none", 0), "");
}

TEST_F(LastWords, AreShortAndPrintable) {
  EXPECT_EQ(of("a\tb\x1b[31mc\r\n"), "a b [31mc");
  EXPECT_EQ(of(std::string(100'000, 'x')).size(), 500U);
  EXPECT_EQ(of(std::string(100'000, 'x') + "\nthe end\n"), "the end");
}

}  // namespace
}  // namespace trimtab::supervisor
