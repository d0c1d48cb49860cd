#include "gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "gguf/builder.h"

namespace trimtab::gguf {
namespace {

using testing::HasSubstr;

class GgufFileTest : public testing::Test {
 protected:
  std::string path_ = testing::TempDir() + "gguf_file_test_" + std::to_string(getpid()) + ".gguf";
  void TearDown() override { std::remove(path_.c_str()); }

  static Builder model(float last) {
    std::vector<float> values(50'000, 0.5F);
    values.back() = last;
    Builder builder;
    builder.add("general.architecture", "llama").add_tensor("weights", {50, 1'000}, values);
    return builder;
  }
};

TEST_F(GgufFileTest, ViewsStayValidWhenTheFileObjectMoves) {
  ASSERT_TRUE(model(1).write(path_));
  auto opened = GgufFile::open(path_);
  ASSERT_TRUE(opened) << opened.error().message;
  const auto tensor = opened->tensor("weights");
  GgufFile moved = std::move(*opened);
  std::vector<float> row(50);
  ASSERT_TRUE(dequantize_row(*tensor, 999, row));
  EXPECT_EQ(row.back(), 1.0F);
  EXPECT_EQ(moved.string("general.architecture"), "llama");
}

TEST_F(GgufFileTest, FingerprintIsStableAndSeesTheLastWeight) {
  ASSERT_TRUE(model(1).write(path_));
  const std::uint64_t first = GgufFile::open(path_)->fingerprint();
  EXPECT_EQ(GgufFile::open(path_)->fingerprint(), first);
  ASSERT_TRUE(model(2).write(path_));
  EXPECT_NE(GgufFile::open(path_)->fingerprint(), first);
}

TEST_F(GgufFileTest, ErrorsNameTheFile) {
  const auto missing = GgufFile::open("/nonexistent/model.gguf");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code, base::Code::kIo);
  EXPECT_THAT(missing.error().message, HasSubstr("/nonexistent/model.gguf"));
  { std::ofstream(path_) << ""; }
  EXPECT_THAT(GgufFile::open(path_).error().message, HasSubstr(path_));
  EXPECT_FALSE(GgufFile::open("/tmp"));
}

TEST_F(GgufFileTest, ATruncatedFileNamesTensorAndByte) {
  ASSERT_TRUE(model(1).write(path_));
  const auto full = static_cast<off_t>(model(1).bytes().size());
  ASSERT_EQ(truncate(path_.c_str(), full - 100'000), 0);
  const auto opened = GgufFile::open(path_);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, base::Code::kDataLoss);
  EXPECT_THAT(opened.error().message, HasSubstr("byte 100000 of tensor weights"));
}

}  // namespace
}  // namespace trimtab::gguf
