#include "io/record_file.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace trimtab::io {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  const auto view = std::as_bytes(std::span{text.data(), text.size()});
  return {view.begin(), view.end()};
}

/// Payloads by their text (a braced std::vector of one vector would copy it instead).
std::vector<std::vector<std::byte>> list(std::initializer_list<std::string_view> texts) {
  std::vector<std::vector<std::byte>> payloads;
  for (const auto text : texts) payloads.push_back(bytes_of(text));
  return payloads;
}

std::vector<std::byte> file_of(const std::vector<std::vector<std::byte>>& payloads) {
  std::vector<std::byte> file = bytes_of(kRecordFileMagic);
  for (const auto& payload : payloads) append_record(file, payload);
  return file;
}

struct TemporaryFolder {
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "trimtab-io-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string path;
};

std::vector<std::vector<std::byte>> read_back(const std::string& path, RecordScan* scan = nullptr) {
  std::vector<std::vector<std::byte>> found;
  const auto bytes = read_file(path);
  EXPECT_TRUE(bytes);
  const auto result =
      scan_records(*bytes, [&](auto payload) { found.emplace_back(payload.begin(), payload.end()); });
  EXPECT_TRUE(result);
  if (scan != nullptr) *scan = *result;
  return found;
}

RC_GTEST_PROP(RecordFile, EveryCutLeavesTheWholeRecordsBeforeIt, (std::vector<std::string> texts)) {
  std::vector<std::vector<std::byte>> payloads;
  for (const auto& text : texts) payloads.push_back(bytes_of(text));
  const auto file = file_of(payloads);
  const auto cut = *rc::gen::inRange<std::size_t>(kRecordFileMagic.size(), file.size() + 1);
  std::size_t whole = 0;
  std::size_t end = kRecordFileMagic.size();
  while (whole < payloads.size() && end + kRecordHeaderBytes + payloads[whole].size() <= cut)
    end += kRecordHeaderBytes + payloads[whole++].size();
  std::vector<std::vector<std::byte>> found;
  const auto scan = scan_records(std::span{file}.first(cut),
                                 [&](auto payload) { found.emplace_back(payload.begin(), payload.end()); });
  RC_ASSERT(scan.has_value());
  payloads.resize(whole);
  RC_ASSERT(found == payloads);
  RC_ASSERT(scan->bytes_good == end);
  RC_ASSERT(scan->bytes_torn == cut - end);
}

RC_GTEST_PROP(RecordFile, OneFlippedBitNeverYieldsAWrongRecord, (std::vector<std::string> texts)) {
  std::vector<std::vector<std::byte>> payloads;
  for (const auto& text : texts) payloads.push_back(bytes_of(text));
  payloads.push_back(bytes_of("last"));
  auto file = file_of(payloads);
  const auto at = *rc::gen::inRange<std::size_t>(kRecordFileMagic.size(), file.size());
  file[at] ^= static_cast<std::byte>(1U << *rc::gen::inRange(0, 8));
  std::size_t i = 0;
  const auto scan = scan_records(file, [&](auto payload) {
    RC_ASSERT(i < payloads.size());
    RC_ASSERT(std::vector<std::byte>(payload.begin(), payload.end()) == payloads[i++]);
  });
  RC_ASSERT(scan.has_value());
  RC_ASSERT(scan->bytes_torn > 0U);
}

TEST(RecordFile, AppendsAcrossReopening) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/a.log";
  for (const char* text : {"one", "two"}) {
    auto file = RecordFile::open(path);
    ASSERT_TRUE(file) << to_string(file.error());
    file->append(bytes_of(text));
    ASSERT_TRUE(file->flush());
  }
  EXPECT_EQ(read_back(path), list({"one", "two"}));
}

TEST(RecordFile, CutsATornTailWhenReopenedAndGoesOn) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/a.log";
  auto bytes = file_of(list({"kept", "torn away"}));
  bytes.resize(bytes.size() - 3);
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  RecordScan scan;
  EXPECT_EQ(read_back(path, &scan), list({"kept"}));
  EXPECT_EQ(scan.bytes_torn, kRecordHeaderBytes + 6);
  {
    auto file = RecordFile::open(path);
    ASSERT_TRUE(file);
    EXPECT_EQ(file->torn_bytes_cut(), kRecordHeaderBytes + 6);
    file->append(bytes_of("after"));
  }
  EXPECT_EQ(read_back(path, &scan), list({"kept", "after"}));
  EXPECT_EQ(scan.bytes_torn, 0U);
}

TEST(RecordFile, MovesAFileThatIsNoLogAside) {
  TemporaryFolder folder;
  const std::string path = folder.path + "/a.log";
  std::ofstream(path) << "somebody's notes";
  {
    auto file = RecordFile::open(path);
    ASSERT_TRUE(file);
    file->append(bytes_of("x"));
  }
  EXPECT_EQ(read_back(path), list({"x"}));
  EXPECT_EQ(read_file(path + ".damaged").value(), bytes_of("somebody's notes"));
}

TEST(RecordFile, CountsWhatAFullDiskRefuses) {
  auto file = RecordFile::open("/dev/full");
  // The device refuses the very first bytes, so opening says why instead of pretending to log.
  ASSERT_FALSE(file);
  EXPECT_EQ(file.error().code, base::Code::kIo);
}

}  // namespace
}  // namespace trimtab::io
