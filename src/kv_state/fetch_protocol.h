#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kv/snapshot_name.h"

/// What machines say to each other about window snapshots, over TCP. A connection carries one question at a
/// time: a request of fixed size, then an answer's header and content. Little-endian; both headers end with
/// an XXH3-64 of what is before it, contents have a checksum of their own.
namespace trimtab::kv_state {

using kv::SnapshotName;

inline constexpr std::size_t kRequestBytes = 80;
inline constexpr std::size_t kAnswerHeaderBytes = 48;

enum class Question : std::uint16_t {
  kSnapshot = 1,  // the content of `name`
  kChanges = 2,   // kv::SnapshotDelta after change `argument`
  kList = 3,      // kv::SnapshotList with ticket `argument`
};

struct FetchRequest {
  Question question = Question::kSnapshot;
  std::uint64_t id = 0;     // echoed
  std::uint64_t epoch = 0;  // the machine's life that is meant; 0: whichever
  SnapshotName name;
  std::uint64_t argument = 0;
};

enum class AnswerStatus : std::uint16_t {
  kOk = 0,
  kNotFound = 1,    // not held; or those changes are too long ago
  kOtherEpoch = 2,  // the machine was restarted since: nothing of what it held is there
  kBusy = 3,        // too many transfers, for too long
};

struct AnswerHeader {
  AnswerStatus status = AnswerStatus::kOk;
  std::uint64_t id = 0;
  std::uint64_t epoch = 0;             // of the machine that answers
  std::uint64_t content_bytes = 0;     // that follow; 0 unless kOk
  std::uint64_t content_checksum = 0;  // kv::snapshot_checksum, or base::checksum of an encoded message
};

std::array<std::byte, kRequestBytes> encode(const FetchRequest& request);
/// kDataLoss when these are not the bytes of a request.
base::Result<FetchRequest> decode_request(std::span<const std::byte, kRequestBytes> bytes);

std::array<std::byte, kAnswerHeaderBytes> encode(const AnswerHeader& header);
base::Result<AnswerHeader> decode_answer_header(std::span<const std::byte, kAnswerHeaderBytes> bytes);

/// Puts one answer together from bytes that arrive in any pieces. Content that is accepted has the checksum
/// of the snapshot that was asked for; everything else is an error.
///
///   while (!reader.done()) { n = read into reader.wanted(); TRIMTAB_TRY(reader.received(n)); }
class AnswerReader {
 public:
  /// A snapshot must have exactly `into.size()` bytes.
  AnswerReader(const FetchRequest& request, std::span<std::byte> into) : request_(request), into_(into) {}
  /// A message of at most `bytes_max` bytes, which `message` gives afterwards.
  AnswerReader(const FetchRequest& request, std::size_t bytes_max)
      : request_(request), bytes_max_(bytes_max) {}

  /// Where the next bytes belong; never empty before the end.
  std::span<std::byte> wanted();
  /// kNotFound (also: another epoch), kResourceExhausted (busy) or kDataLoss; then nothing more may be read.
  base::Status received(std::size_t bytes);
  bool done() const { return done_; }
  const AnswerHeader& header() const { return *header_; }
  std::span<const std::byte> message() const { return message_; }

 private:
  base::Status on_header();
  base::Status on_content();
  std::span<std::byte> content() { return into_.empty() ? std::span{message_} : into_; }

  FetchRequest request_;
  std::span<std::byte> into_;
  std::size_t bytes_max_ = 0;
  std::vector<std::byte> message_;
  std::array<std::byte, kAnswerHeaderBytes> head_{};
  std::size_t have_ = 0;  // of the header, then of the content
  std::optional<AnswerHeader> header_;
  bool done_ = false;
};

}  // namespace trimtab::kv_state
