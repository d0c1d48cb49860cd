#include "kv_state/fetch_protocol.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <algorithm>

#include "base/hash.h"
#include "base/prng.h"

namespace trimtab::kv_state {
namespace {

constexpr SnapshotName kName{{11, 12}, 96'896, {13, 14}};

FetchRequest request() {
  FetchRequest out;
  out.id = 5;
  out.epoch = 9;
  out.name = kName;
  return out;
}

std::vector<std::byte> answer_to(const FetchRequest& asked, std::span<const std::byte> content) {
  AnswerHeader header;
  header.id = asked.id;
  header.epoch = asked.epoch;
  header.content_bytes = content.size();
  header.content_checksum = kv::snapshot_checksum(asked.name, content);
  const auto head = encode(header);
  std::vector<std::byte> out(head.begin(), head.end());
  out.insert(out.end(), content.begin(), content.end());
  return out;
}

/// Feeds bytes in pieces; the error that ended it, or nothing.
base::Status feed(AnswerReader& reader, std::span<const std::byte> bytes, std::size_t piece = SIZE_MAX) {
  while (!bytes.empty() && !reader.done()) {
    const auto wanted = reader.wanted();
    const std::size_t n = std::min({piece, bytes.size(), wanted.size()});
    std::copy_n(bytes.begin(), n, wanted.begin());
    bytes = bytes.subspan(n);
    TRIMTAB_TRY(reader.received(n));
  }
  return {};
}

std::vector<std::byte> bytes_of(std::uint64_t seed, std::size_t count) {
  base::Prng prng(seed);
  std::vector<std::byte> out(count);
  for (std::byte& b : out) b = static_cast<std::byte>(prng.next());
  return out;
}

TEST(FetchProtocol, RequestsSurvive) {
  FetchRequest sent = request();
  sent.question = Question::kChanges;
  sent.argument = 77;
  const auto back = decode_request(encode(sent));
  ASSERT_TRUE(back);
  EXPECT_EQ(back->question, Question::kChanges);
  EXPECT_EQ(back->id, 5U);
  EXPECT_EQ(back->epoch, 9U);
  EXPECT_EQ(back->name, kName);
  EXPECT_EQ(back->argument, 77U);
}

TEST(FetchProtocol, AnyFlippedBitOfAHeaderIsRefused) {
  const auto asked = encode(request());
  for (std::size_t bit = 0; bit < asked.size() * 8; ++bit) {
    auto flipped = asked;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_request(flipped)) << bit;
  }
  const auto header = encode(AnswerHeader{});
  for (std::size_t bit = 0; bit < header.size() * 8; ++bit) {
    auto flipped = header;
    flipped[bit / 8] ^= static_cast<std::byte>(1U << (bit % 8));
    EXPECT_FALSE(decode_answer_header(flipped)) << bit;
  }
}

RC_GTEST_PROP(FetchProtocolProperty, AnswersArriveInAnyPieces, ()) {
  const auto content = bytes_of(*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::inRange<std::size_t>(1, 500));
  std::vector<std::byte> into(content.size());
  AnswerReader reader(request(), into);
  const auto answer = answer_to(request(), content);
  RC_ASSERT(feed(reader, answer, *rc::gen::inRange<std::size_t>(1, 100)).has_value());
  RC_ASSERT(reader.done());
  RC_ASSERT(into == content);
}

RC_GTEST_PROP(FetchProtocolProperty, TruncatedOrChangedAnswersAreNeverAccepted, ()) {
  const auto content = bytes_of(*rc::gen::arbitrary<std::uint64_t>(), 200);
  auto answer = answer_to(request(), content);
  std::vector<std::byte> into(content.size());
  AnswerReader reader(request(), into);
  if (*rc::gen::arbitrary<bool>()) {
    answer.resize(*rc::gen::inRange<std::size_t>(0, answer.size()));
    (void)feed(reader, answer, 7);
  } else {
    answer[*rc::gen::inRange<std::size_t>(0, answer.size())] ^= std::byte{0x10};
    RC_ASSERT(feed(reader, answer, 7).error().code == base::Code::kDataLoss);
  }
  RC_ASSERT(!reader.done());
}

TEST(FetchProtocol, AnotherSnapshotsContentIsRefused) {
  const auto content = bytes_of(1, 64);
  std::vector<std::byte> into(64);
  FetchRequest other = request();
  other.name.position += 128;
  AnswerReader position(request(), into);
  EXPECT_EQ(feed(position, answer_to(other, content)).error().message,
            "the content's checksum does not match");
  FetchRequest late = request();
  late.id = 4;
  AnswerReader id(request(), into);
  EXPECT_EQ(feed(id, answer_to(late, content)).error().message, "the answer is to another question");
  FetchRequest restarted = request();
  restarted.epoch = 10;
  AnswerReader epoch(request(), into);
  EXPECT_EQ(feed(epoch, answer_to(restarted, content)).error().message, "content of another epoch");
  AnswerReader size(request(), std::span{into}.first(63));
  EXPECT_EQ(feed(size, answer_to(request(), content)).error().message,
            "the answer has 64 bytes of content, exactly 63 are expected");
}

TEST(FetchProtocol, MessagesAreBounded) {
  FetchRequest asked = request();
  asked.question = Question::kList;
  AnswerHeader header;
  header.id = asked.id;
  header.epoch = asked.epoch;
  header.content_bytes = 1UL << 40;
  AnswerReader reader(asked, std::size_t{1'000});
  EXPECT_EQ(feed(reader, encode(header)).error().code, base::Code::kDataLoss);
}

TEST(FetchProtocol, RefusalsHaveCodesOfTheirOwn) {
  const auto code_of = [](AnswerStatus status) {
    AnswerHeader header;
    header.status = status;
    header.id = 5;
    header.epoch = 10;
    std::vector<std::byte> into(8);
    AnswerReader reader(request(), into);
    return feed(reader, encode(header)).error().code;
  };
  EXPECT_EQ(code_of(AnswerStatus::kNotFound), base::Code::kNotFound);
  EXPECT_EQ(code_of(AnswerStatus::kOtherEpoch), base::Code::kNotFound);
  EXPECT_EQ(code_of(AnswerStatus::kBusy), base::Code::kResourceExhausted);
}

}  // namespace
}  // namespace trimtab::kv_state
