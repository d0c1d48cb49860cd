#include "kv_remote/net/frame.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>

#include "base/codec.h"
#include "base/hash.h"

namespace trimtab::kv_remote {

static_assert(std::endian::native == std::endian::little, "headers are copied as they lie in memory");

namespace {

void make_printable(std::string& text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < 0x20) c = ' ';
}

bool is_fine(Condition& condition) {
  make_printable(condition.trouble);
  return condition.trouble.size() <= kTextBytesMax;
}

struct ChangesForm {
  ChangesAnswer answer;
  template <class A>
  void visit(A& a) {
    kv_target::Changes& value = answer.changes;
    a(answer.condition);
    std::uint8_t complete = value.complete, more = value.more;
    auto count = static_cast<std::uint32_t>(value.changes.size());
    a(complete, more, value.next.epoch, value.next.sequence, value.next.generation, count);
    value.complete = complete != 0;
    value.more = more != 0;
    if constexpr (requires { a.reject(); }) {
      if (count > kChangesPerPage) a.reject();
      value.changes.resize(a.ok() ? count : 0);
    }
    for (kv_target::Change& change : value.changes)
      a(change.sequence, change.name.key, change.name.shard, change.bytes);
  }
};

struct SpaceForm {
  SpaceAnswer answer;
  template <class A>
  void visit(A& a) {
    kv_target::Space& value = answer.space;
    a(answer.condition, value.capacity_bytes, value.used_bytes, value.shards, value.caller_bytes_written,
      value.device_bytes_written);
  }
};

template <class Form>
auto unwrap(base::Result<Form> form) -> base::Result<decltype(form->answer)> {
  if (!form) return tl::unexpected<base::Error>(form.error());
  if (!is_fine(form->answer.condition))
    return base::fail(base::Code::kDataLoss, "a target's trouble is told at too great length", "kv_remote");
  return std::move(form->answer);
}

template <class T>
void put(HeaderBytes& bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}
template <class T>
T get(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

}  // namespace

HeaderBytes pack(const Header& header, std::uint64_t frame_number) {
  HeaderBytes bytes{};
  put(bytes, 0, kFrameMagic);
  put(bytes, 4, header.version);
  put(bytes, 5, header.kind);
  put(bytes, 6, header.outcome);
  put(bytes, 7, header.name.shard);
  put(bytes, 8, header.length);
  put(bytes, 16, header.tag);
  put(bytes, 24, header.name.key.high);
  put(bytes, 32, header.name.key.low);
  put(bytes, 40, header.offset);
  put(bytes, 48, header.bytes);
  put(bytes, 56, header.content_checksum);
  put(bytes, 64, base::checksum(std::span(bytes).first(64), frame_number));
  return bytes;
}

base::Result<Header> unpack(std::span<const std::byte, kHeaderBytes> bytes, std::uint64_t frame_number) {
  if (get<std::uint32_t>(bytes, 0) != kFrameMagic) {
    return base::fail(base::Code::kDataLoss,
                      fmt::format("frame {} begins with {:08x}, not with {:08x}: the peer is no "
                                  "trimtab kv-target, or lost its place",
                                  frame_number, get<std::uint32_t>(bytes, 0), kFrameMagic),
                      "kv_remote");
  }
  if (base::checksum(bytes.first<64>(), frame_number) != get<std::uint64_t>(bytes, 64)) {
    return base::fail(base::Code::kDataLoss, fmt::format("header of frame {} is damaged", frame_number),
                      "kv_remote");
  }
  Header header;
  header.version = get<std::uint8_t>(bytes, 4);
  header.kind = get<Kind>(bytes, 5);
  header.outcome = get<kv_target::Outcome>(bytes, 6);
  header.name.shard = get<std::uint8_t>(bytes, 7);
  header.length = get<std::uint64_t>(bytes, 8);
  header.tag = get<std::uint64_t>(bytes, 16);
  header.name.key = {get<std::uint64_t>(bytes, 24), get<std::uint64_t>(bytes, 32)};
  header.offset = get<std::uint64_t>(bytes, 40);
  header.bytes = get<std::uint64_t>(bytes, 48);
  header.content_checksum = get<std::uint64_t>(bytes, 56);
  return header;
}

Condition condition_of(const kv_target::Target& target) {
  return {target.trouble().substr(0, kTextBytesMax), target.lacks_room()};
}

std::vector<std::byte> encode(const ChangesAnswer& answer) { return base::encode(ChangesForm{answer}); }

base::Result<ChangesAnswer> decode_changes(std::span<const std::byte> bytes) {
  return unwrap(base::decode<ChangesForm>(bytes));
}

std::vector<std::byte> encode(const SpaceAnswer& answer) { return base::encode(SpaceForm{answer}); }

base::Result<SpaceAnswer> decode_space(std::span<const std::byte> bytes) {
  return unwrap(base::decode<SpaceForm>(bytes));
}

std::optional<Condition> decode_condition(std::span<const std::byte> bytes) {
  auto condition = base::decode<Condition>(bytes);
  if (!condition || !is_fine(*condition)) return std::nullopt;
  return std::move(*condition);
}

std::vector<std::byte> encode_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text.data(), std::min(text.size(), kTextBytesMax)));
  return {bytes.begin(), bytes.end()};
}

std::string decode_text(std::span<const std::byte> bytes) {
  std::string text(reinterpret_cast<const char*>(bytes.data()), std::min(bytes.size(), kTextBytesMax));
  make_printable(text);
  return text;
}

}  // namespace trimtab::kv_remote
