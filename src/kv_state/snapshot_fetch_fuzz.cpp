#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <vector>

#include "kv_state/fetch_protocol.h"

namespace {

using namespace trimtab::kv_state;

/// True when the whole answer was accepted.
bool feed(AnswerReader& reader, std::span<const std::byte> bytes, std::size_t piece) {
  while (!bytes.empty() && !reader.done()) {
    const auto wanted = reader.wanted();
    if (wanted.empty()) std::abort();
    const std::size_t n = std::min({piece, bytes.size(), wanted.size()});
    std::memcpy(wanted.data(), bytes.data(), n);
    bytes = bytes.subspan(n);
    if (!reader.received(n)) return false;
  }
  return reader.done();
}

}  // namespace

/// Any bytes as a question and as an answer, and a true answer with some bytes changed: in any pieces,
/// nothing is accepted but the content that was sent.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 4) return 0;
  const std::size_t piece = 1 + data[0];
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  if (bytes.size() >= kRequestBytes) {
    const auto first = bytes.first<kRequestBytes>();
    const auto request = decode_request(first);
    if (request && !std::ranges::equal(encode(*request), first)) std::abort();
  }

  FetchRequest asked;
  asked.id = 3;
  asked.epoch = 4;
  asked.name.position = 128;
  std::vector<std::byte> into(48);
  AnswerReader any(asked, into);
  feed(any, bytes, piece);
  AnswerReader message(asked, std::size_t{4'096});
  feed(message, bytes, piece);

  std::vector<std::byte> content(into.size(), bytes[0]);
  AnswerHeader header;
  header.id = asked.id;
  header.epoch = asked.epoch;
  header.content_bytes = content.size();
  header.content_checksum = trimtab::kv::snapshot_checksum(asked.name, content);
  const auto head = encode(header);
  std::vector<std::byte> answer(head.begin(), head.end());
  answer.insert(answer.end(), content.begin(), content.end());
  for (std::size_t i = 0; i + 1 < bytes.size(); i += 2)
    answer[static_cast<std::size_t>(bytes[i]) % answer.size()] ^= bytes[i + 1];
  AnswerReader changed(asked, into);
  if (feed(changed, answer, piece) && into != content) std::abort();
  return 0;
}
