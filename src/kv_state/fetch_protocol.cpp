#include "kv_state/fetch_protocol.h"

#include <fmt/format.h>

#include <cstring>

#include "base/check.h"
#include "base/codec.h"
#include "base/hash.h"

namespace trimtab::kv_state {

namespace {

constexpr std::uint32_t kRequestMagic = 0x51535754;  // "TWSQ"
constexpr std::uint32_t kAnswerMagic = 0x41535754;   // "TWSA"
constexpr std::uint16_t kVersion = 1;

struct RequestWire {
  std::uint32_t magic = kRequestMagic;
  std::uint16_t version = kVersion;
  FetchRequest request;

  template <class A>
  void visit(A& a) {
    a(magic, version, request.question, request.id, request.epoch, request.name, request.argument);
  }
};

struct AnswerWire {
  std::uint32_t magic = kAnswerMagic;
  std::uint16_t version = kVersion;
  AnswerHeader header;

  template <class A>
  void visit(A& a) {
    a(magic, version, header.status, header.id, header.epoch, header.content_bytes, header.content_checksum);
  }
};

template <std::size_t kBytes, class Wire>
std::array<std::byte, kBytes> seal(const Wire& wire) {
  const std::vector<std::byte> body = base::encode(wire);
  TRIMTAB_CHECK(body.size() + 8 == kBytes);
  std::array<std::byte, kBytes> out;
  std::memcpy(out.data(), body.data(), body.size());
  const std::uint64_t checksum = base::checksum(body);
  std::memcpy(out.data() + body.size(), &checksum, 8);
  return out;
}

template <class Wire>
base::Result<Wire> unseal(std::span<const std::byte> bytes, std::uint32_t magic) {
  const auto body = bytes.first(bytes.size() - 8);
  std::uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + body.size(), 8);
  auto wire = base::decode<Wire>(body);
  if (!wire) return wire;
  if (wire->magic != magic || wire->version != kVersion) {
    return base::fail(
        base::Code::kDataLoss,
        fmt::format("magic {:#x}, version {}: the peer does not speak version {} of this protocol",
                    wire->magic, wire->version, kVersion),
        "kv_state");
  }
  if (checksum != base::checksum(body))
    return base::fail(base::Code::kDataLoss, "a header's checksum does not match", "kv_state");
  return wire;
}

}  // namespace

std::array<std::byte, kRequestBytes> encode(const FetchRequest& request) {
  RequestWire wire;
  wire.request = request;
  return seal<kRequestBytes>(wire);
}

base::Result<FetchRequest> decode_request(std::span<const std::byte, kRequestBytes> bytes) {
  const auto wire = unseal<RequestWire>(bytes, kRequestMagic);
  if (!wire) return tl::unexpected(wire.error());
  const auto question = static_cast<std::uint16_t>(wire->request.question);
  if (question < 1 || question > 3)
    return base::fail(base::Code::kDataLoss, fmt::format("unknown question {}", question), "kv_state");
  return wire->request;
}

std::array<std::byte, kAnswerHeaderBytes> encode(const AnswerHeader& header) {
  AnswerWire wire;
  wire.header = header;
  return seal<kAnswerHeaderBytes>(wire);
}

base::Result<AnswerHeader> decode_answer_header(std::span<const std::byte, kAnswerHeaderBytes> bytes) {
  const auto wire = unseal<AnswerWire>(bytes, kAnswerMagic);
  if (!wire) return tl::unexpected(wire.error());
  const auto status = static_cast<std::uint16_t>(wire->header.status);
  if (status > 3 || (status != 0 && wire->header.content_bytes != 0))
    return base::fail(base::Code::kDataLoss, fmt::format("unknown answer {}", status), "kv_state");
  return wire->header;
}

std::span<std::byte> AnswerReader::wanted() {
  if (!header_) return std::span{head_}.subspan(have_);
  return content().subspan(have_);
}

base::Status AnswerReader::received(std::size_t bytes) {
  TRIMTAB_CHECK(!done_ && bytes <= wanted().size(), "more bytes than were wanted");
  have_ += bytes;
  if (!header_) return have_ < kAnswerHeaderBytes ? base::Status{} : on_header();
  return have_ < content().size() ? base::Status{} : on_content();
}

base::Status AnswerReader::on_header() {
  const auto header = decode_answer_header(head_);
  if (!header) return tl::unexpected(header.error());
  header_ = *header;
  have_ = 0;
  if (header->id != request_.id)
    return base::fail(base::Code::kDataLoss, "the answer is to another question", "kv_state");
  switch (header->status) {
    case AnswerStatus::kOk:
      break;
    case AnswerStatus::kNotFound:
      return base::fail(base::Code::kNotFound, "the machine does not hold it", "kv_state");
    case AnswerStatus::kOtherEpoch:
      return base::fail(
          base::Code::kNotFound,
          fmt::format("the machine was restarted: it is in epoch {}, not {}", header->epoch, request_.epoch),
          "kv_state");
    case AnswerStatus::kBusy:
      return base::fail(base::Code::kResourceExhausted, "the machine has too many transfers", "kv_state");
  }
  if (request_.epoch != 0 && header->epoch != request_.epoch)
    return base::fail(base::Code::kDataLoss, "content of another epoch", "kv_state");
  const bool snapshot = !into_.empty();
  if (snapshot ? header->content_bytes != into_.size()
               : header->content_bytes == 0 || header->content_bytes > bytes_max_) {
    return base::fail(
        base::Code::kDataLoss,
        fmt::format("the answer has {} bytes of content, {} {} are expected", header->content_bytes,
                    snapshot ? "exactly" : "1 to", snapshot ? into_.size() : bytes_max_),
        "kv_state");
  }
  if (!snapshot) message_.resize(header->content_bytes);
  return {};
}

base::Status AnswerReader::on_content() {
  const std::uint64_t checksum =
      into_.empty() ? base::checksum(message_) : kv::snapshot_checksum(request_.name, into_);
  if (checksum != header_->content_checksum)
    return base::fail(base::Code::kDataLoss, "the content's checksum does not match", "kv_state");
  done_ = true;
  return {};
}

}  // namespace trimtab::kv_state
