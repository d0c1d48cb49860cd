#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kv_target/target.h"

/// The wire form of a target: frames of a fixed header and a content, both with checksums. One connection
/// carries any number of requests at once; answers come in the order in which they are ready.
namespace trimtab::kv_remote {

inline constexpr std::uint32_t kFrameMagic = 0x4e564b54;  // "TKVN"
/// Both sides must speak the same one. The layout of the header and of hello and refusal never changes.
inline constexpr std::uint8_t kFrameVersion = 2;
inline constexpr std::size_t kHeaderBytes = 72;

enum class Kind : std::uint8_t {
  kHello = 1,  // client, first: content is `Hello`
  kWelcome,    // server's answer: `Welcome`
  kRefused,    // or this: the content is the reason in words; the connection ends
  kRead,       // `bytes` of the shard from `offset` on
  kWrite,      // the content becomes the shard
  kErase,
  kCancel,   // the request `tag` is no longer wanted; it is answered nevertheless
  kChanges,  // content: `ChangesQuestion`
  kSpace,
  /// To the request `tag`; echoes its name. Content: what was read; of a write that found the target full or
  /// failing its `Condition`; of a question that could be answered `ChangesAnswer` or `SpaceAnswer`.
  kAnswer,
  kGrant,  // credit since the connection began: `offset` requests, `bytes` bytes
};

/// Little-endian on the wire, in this order: u32 magic, u8 version, u8 kind, u8 outcome, u8 shard, u64
/// length, u64 tag, u64 key high, u64 key low, u64 offset, u64 bytes, u64 XXH3 of the content, u64 XXH3 of
/// all before, seeded with the number of the frame in its direction: a frame that was lost, repeated or moved
/// is as broken as one that was changed.
struct Header {
  std::uint8_t version = kFrameVersion;
  Kind kind = Kind::kHello;
  kv_target::Outcome outcome = kv_target::Outcome::kDone;
  kv_target::ShardName name;
  std::uint64_t length = 0;  // of the content behind the header
  std::uint64_t tag = 0;
  std::uint64_t offset = 0, bytes = 0;
  std::uint64_t content_checksum = 0;  // 0 without content

  bool operator==(const Header&) const = default;
};
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

HeaderBytes pack(const Header& header, std::uint64_t frame_number);
/// kDataLoss: not a header, or a damaged one. A header of another version is read; the caller judges it.
base::Result<Header> unpack(std::span<const std::byte, kHeaderBytes> bytes, std::uint64_t frame_number);

/// Who calls. A client that dials again says a larger `session`: the server then drops its older connections
/// unread, and refuses older sessions that come late, so that a write that was given up on is never carried
/// out after a newer one.
struct Hello {
  std::uint64_t client = 0, session = 0;
  template <class A>
  void visit(A& a) {
    a(client, session);
  }
};
struct Welcome {
  std::uint64_t epoch = 0;  // of this start of the server
  std::uint64_t shard_bytes = 0, credit_bytes = 0;
  std::uint32_t credit_requests = 0;
  std::uint8_t durable = 0;
  template <class A>
  void visit(A& a) {
    a(epoch, shard_bytes, credit_bytes, credit_requests, durable);
  }
};
struct ChangesQuestion {
  kv_target::Cursor since;
  std::uint32_t limit = 0;
  template <class A>
  void visit(A& a) {
    a(since.epoch, since.sequence, since.generation, limit);
  }
};
/// How the target behind the server is, for callers that only see their requests fail.
struct Condition {
  std::string trouble;          // Target::trouble, cut to kTextBytesMax
  std::uint8_t lacks_room = 0;  // Target::lacks_room
  template <class A>
  void visit(A& a) {
    a(trouble, lacks_room);
  }
};
/// Of a write: its answer carries one.
constexpr bool says_why(kv_target::Outcome outcome) {
  return outcome == kv_target::Outcome::kFull || outcome == kv_target::Outcome::kFailed;
}
Condition condition_of(const kv_target::Target& target);

/// Changes that one page holds at most; a larger limit is cut to it.
inline constexpr std::uint32_t kChangesPerPage = 4'096;
/// Of the content of a hello, a refusal, and the questions and answers about changes and space.
inline constexpr std::size_t kTextBytesMax = 1'000;
inline constexpr std::uint64_t kControlBytesMax = 256 + kTextBytesMax + kChangesPerPage * 37;

struct ChangesAnswer {
  kv_target::Changes changes;
  Condition condition;
};
struct SpaceAnswer {
  kv_target::Space space;
  Condition condition;
};
std::vector<std::byte> encode(const ChangesAnswer& answer);
std::vector<std::byte> encode(const SpaceAnswer& answer);
base::Result<ChangesAnswer> decode_changes(std::span<const std::byte> bytes);
base::Result<SpaceAnswer> decode_space(std::span<const std::byte> bytes);
/// None: damaged, or longer than a server of ours sends. Control characters have become spaces.
std::optional<Condition> decode_condition(std::span<const std::byte> bytes);

/// An error as the content of an answer to a question whose outcome is kFailed.
std::vector<std::byte> encode_text(const std::string& text);
std::string decode_text(std::span<const std::byte> bytes);

}  // namespace trimtab::kv_remote
