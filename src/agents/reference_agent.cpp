#include "agents/reference_agent.h"

#include <fmt/format.h>

#include <utility>

#include "agents/drift_audits.h"
#include "base/check.h"

namespace trimtab::agents {

using base::Nanos;
using base::TokenCount;

namespace {

// A request that comes while an audit runs waits for the step under way: audits take short ones.
constexpr Nanos kAuditStep{100'000'000};

/// Enumerations come raw from the peer: a value that this build does not know must not reach a table.
base::Code known(base::Code code) { return code <= base::Code::kInternal ? code : base::Code::kInternal; }

wire::FetchEnd known(wire::FetchEnd end) {
  return end <= wire::FetchEnd::kFailed ? end : wire::FetchEnd::kFailed;
}

model::FinishReason known(model::FinishReason reason) {
  return reason <= model::FinishReason::kLength ? reason : model::FinishReason::kStop;
}

}  // namespace

ReferenceAgent::ReferenceAgent(model::Role role, model::EngineId engine, std::uint32_t ranks,
                               ControlServer& server, OnReport on_report)
    : role_(role), engine_(engine), server_(server), on_report_(std::move(on_report)), members_(ranks) {}

void ReferenceAgent::attach(ConnectionId connection, const wire::Hello& hello) {
  TRIMTAB_CHECK(hello.rank < members_.size());
  Member& member = members_[hello.rank];
  TRIMTAB_CHECK(!member.connection, "detach the old connection first");
  member = Member{};
  member.connection = connection;
  member.segment = hello.segment;
  member.status.connected = true;
  member.status.pid = hello.pid;
  member.status.blocks_total = hello.blocks_total;
  member.status.blocks_free = hello.blocks_total;
  Report report;
  report.from = place(hello.rank);
  report.event = cluster::Joined{report.from, hello.blocks_total};
  on_report_(std::move(report));
}

void ReferenceAgent::detach(std::uint32_t rank) {
  // A condemned rank goes as it was told: its place's neighbours may be of the next formation already.
  const bool breaks_formation = role_ != model::Role::kVision && !members_[rank].condemned;
  members_[rank] = Member{};
  for (std::uint32_t peer = 0; breaks_formation && peer < members_.size(); ++peer) {
    if (!members_[peer].connection || members_[peer].condemned) continue;
    members_[peer].condemned = true;
    send(peer, wire::Shutdown{});
  }
  Report report;
  report.from = place(rank);
  report.event = cluster::Lost{report.from};
  on_report_(std::move(report));
}

std::optional<ConnectionId> ReferenceAgent::connection_of(std::uint32_t rank) const {
  return rank < members_.size() ? members_[rank].connection : std::nullopt;
}

template <class M>
void ReferenceAgent::send(std::uint32_t rank, const M& message) {
  TRIMTAB_CHECK(rank < members_.size());
  if (members_[rank].connection) server_.send(*members_[rank].connection, wire::to_frame(message));
}

void ReferenceAgent::start_prefill(const RequestState& request, const cluster::StartPrefill& action) {
  wire::PrefillStart message;
  message.id = action.id;
  message.tokens = request.tokens;
  message.keys = request.keys;
  message.hit_tokens = static_cast<std::uint32_t>(action.hit.value);
  message.batch_cap_ns = action.batch_cap.value;
  message.sampling = request.sampling;
  message.images = request.spans;
  message.stop_tokens = request.stop_tokens;
  message.hand_over = action.hand_over ? 1 : 0;
  if (request.hit && request.window_mode) {
    message.window.kv_blocks = static_cast<std::uint32_t>(request.hit->promised().block_kv_blocks);
    message.window.exact = *request.window_mode == kv::WindowMode::kExact ? 1 : 0;
    message.window.offers = request.state_offers;
    if (request.audited) message.window.audit = wire::DriftAudit::kKeep;
  }
  send(action.rank.rank, message);
}

void ReferenceAgent::start_audit(model::RequestId id, std::uint32_t rank, const DriftAudit& audit) {
  wire::PrefillStart message;
  message.id = id;
  message.tokens = audit.tokens;
  message.keys = audit.keys;
  message.hit_tokens = static_cast<std::uint32_t>(audit.hit.value);
  message.batch_cap_ns = kAuditStep.value;
  message.hand_over = 0;
  message.window.kv_blocks = audit.blocks;
  message.window.exact = 1;
  message.window.audit = wire::DriftAudit::kTruth;
  send(rank, message);
}

void ReferenceAgent::send_embeddings(const RequestState& request, const cluster::SendEmbeddings& action) {
  const ImageState& image = request.images[action.image];
  send(action.rank.rank, wire::Embeddings{action.id, action.image, image.rows, image.hidden, image.segment});
}

void ReferenceAgent::send_target(const RequestState&, const cluster::SendTarget& action,
                                 const std::string& segment, const RequestState::Reservation& room) {
  send(action.prefill.rank,
       wire::DecodeTarget{action.id, action.decode, segment, room.blocks, room.state_slot});
}

void ReferenceAgent::reserve(const cluster::Reserve& action) {
  send(action.rank.rank, wire::DecodeReserve{action.id, static_cast<std::uint32_t>(action.tokens.value)});
}

void ReferenceAgent::start_decode(const RequestState& request, const cluster::StartDecode& action) {
  wire::DecodeStart message;
  message.id = action.id;
  message.tokens = request.tokens;
  message.prompt_tokens = request.prompt_tokens;
  message.keys = request.keys;
  message.key_root = request.key_root;
  message.images = request.spans;
  message.sampling = request.sampling;
  message.output_limit = static_cast<std::uint32_t>(action.output_left.value);
  message.stop_tokens = request.stop_tokens;
  send(action.rank.rank, message);
}

void ReferenceAgent::encode(const RequestState& request, const cluster::StartEncode& action) {
  const ImageState& image = request.images[action.image];
  wire::Encode message;
  message.id = action.id;
  message.image = action.image;
  message.rows = image.prompt.span.tokens;
  message.patches = image.prompt.span.patches;
  message.media_type = image.prompt.media_type;
  message.bytes = image.prompt.bytes;
  message.segment = image.segment;
  send(action.encoder.encoder, message);
}

void ReferenceAgent::abort(const cluster::Abort& action) { send(action.place.rank, wire::Abort{action.id}); }

void ReferenceAgent::shutdown() {
  for (std::uint32_t rank = 0; rank < members_.size(); ++rank) send(rank, wire::Shutdown{});
}

std::vector<MemberStatus> ReferenceAgent::members() const {
  std::vector<MemberStatus> list;
  for (const Member& member : members_) list.push_back(member.status);
  return list;
}

std::string ReferenceAgent::segment_of(std::uint32_t rank) const {
  return rank < members_.size() ? members_[rank].segment : std::string();
}

template <class M>
base::Status ReferenceAgent::translate(std::uint32_t rank, const ipc::Frame& frame) {
  const auto message = wire::from_frame<M>(frame);
  if (!message) return tl::unexpected(message.error());
  on(rank, *message);
  return {};
}

base::Status ReferenceAgent::on_frame(std::uint32_t rank, const ipc::Frame& frame) {
  const wire::Type type = wire::type_of(frame);
  if (type == wire::Type::kReleased) return translate<wire::Released>(rank, frame);
  if (type == wire::Type::kRequestFailed) return translate<wire::RequestFailed>(rank, frame);
  if (type == wire::Type::kIdle) return translate<wire::Idle>(rank, frame);
  if (role_ == model::Role::kPrefill) {
    if (type == wire::Type::kPrefillStep) return translate<wire::PrefillStep>(rank, frame);
    if (type == wire::Type::kPrefillDone) return translate<wire::PrefillDone>(rank, frame);
  } else if (role_ == model::Role::kDecode) {
    if (type == wire::Type::kReserved) return translate<wire::Reserved>(rank, frame);
    if (type == wire::Type::kDecodeStep) return translate<wire::DecodeStep>(rank, frame);
    if (type == wire::Type::kPreempted) return translate<wire::Preempted>(rank, frame);
  } else {
    if (type == wire::Type::kEncoded) return translate<wire::Encoded>(rank, frame);
    if (type == wire::Type::kEncodeFailed) return translate<wire::EncodeFailed>(rank, frame);
  }
  return base::fail(base::Code::kInternal,
                    fmt::format("a message of type {} has no business on this connection", frame.type),
                    "agents");
}

void ReferenceAgent::on(std::uint32_t rank, const wire::PrefillStep& message) {
  MemberStatus& status = members_[rank].status;
  ++status.steps;
  status.predicted_ns = message.predicted_ns;
  status.actual_ns = message.actual_ns;
  status.vote_ns = message.vote_ns;
  status.budget_ns = message.budget_ns;
  status.waiting = message.waiting;
  status.waiting_ns = message.waiting_ns;
  status.blocks_free = message.blocks_free;
  cluster::PrefillStepped event;
  event.from = rank_id(rank);
  event.step = message.step;
  event.vote = Nanos{message.vote_ns};
  event.budget = Nanos{message.budget_ns};
  event.predicted = Nanos{message.predicted_ns};
  event.actual = Nanos{message.actual_ns};
  for (const wire::Chunk& chunk : message.chunks) {
    event.chunks.push_back(
        {chunk.id, TokenCount{chunk.tokens}, TokenCount{chunk.computed}, Nanos{chunk.predicted_ns}});
  }
  event.waiting = message.waiting;
  event.waiting_quota = Nanos{message.waiting_ns};
  event.blocks_free = message.blocks_free;
  Report report;
  report.from = place(rank);
  report.step = message.step;
  report.event = std::move(event);
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::PrefillDone& message) {
  members_[rank].status.stored_blocks += message.stored_blocks;
  Report report;
  report.from = place(rank);
  report.event = cluster::PrefillDone{rank_id(rank),
                                      message.id,
                                      message.handed_blocks > 0,
                                      TokenCount{message.hit_tokens},
                                      TokenCount{message.computed_tokens},
                                      known(message.finish)};
  report.tokens.push_back({message.id, message.first_token, message.logits_checksum});
  report.stored_blocks = message.stored_blocks;
  report.handed_blocks = message.handed_blocks;
  report.fetch = known(message.fetch);
  report.swap_in.step = Nanos{std::max<std::int64_t>(0, message.swap_step_ns)};
  report.swap_in.stalled = std::clamp(Nanos{message.swap_stalled_ns}, Nanos{0}, report.swap_in.step);
  report.swap_in.thrown_tokens = message.thrown_tokens;
  report.fetched_blocks = message.fetched_blocks;
  report.states = message.states;
  for (wire::StateRead& state : report.states) state.end = known(state.end);
  report.logits = message.logits;
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::RequestFailed& message) {
  Report report;
  report.from = place(rank);
  report.event = cluster::RequestFailed{report.from, message.id, known(message.code), message.message};
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::Reserved& message) {
  members_[rank].status.blocks_free = message.blocks_free;
  Report report;
  report.from = place(rank);
  report.event = cluster::Reserved{rank_id(rank), message.id, !message.blocks.empty(), message.blocks_free};
  report.blocks = message.blocks;
  report.state_slot = message.state_slot;
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::DecodeStep& message) {
  MemberStatus& status = members_[rank].status;
  ++status.steps;
  status.actual_ns = message.actual_ns;
  status.running = message.running;
  status.kv_tokens = message.kv_tokens;
  status.blocks_free = message.blocks_free;
  status.stored_blocks += message.stored_blocks;
  cluster::DecodeStepped event;
  event.from = rank_id(rank);
  event.step = message.step;
  event.actual = Nanos{message.actual_ns};
  event.running = message.running;
  event.kv = TokenCount{static_cast<std::int64_t>(message.kv_tokens)};
  event.blocks_free = message.blocks_free;
  Report report;
  report.from = place(rank);
  report.step = message.step;
  for (const wire::TokenOut& token : message.tokens) {
    event.tokens.push_back({token.id, known(token.finish)});
    report.tokens.push_back({token.id, token.token, token.logits_checksum});
  }
  report.event = std::move(event);
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::Preempted& message) {
  Report report;
  report.from = place(rank);
  report.event = cluster::Preempted{rank_id(rank), message.id, TokenCount{message.generated}, message.reason};
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::Released& message) {
  if (role_ != model::Role::kVision) members_[rank].status.blocks_free = message.blocks_free;
  Report report;
  report.from = place(rank);
  report.event = cluster::Released{report.from, message.id, message.blocks_free};
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::Idle& message) {
  members_[rank].status.blocks_free = message.blocks_free;
}

void ReferenceAgent::on(std::uint32_t rank, const wire::Encoded& message) {
  MemberStatus& status = members_[rank].status;
  ++status.steps;
  status.actual_ns = message.actual_ns;
  Report report;
  report.from = place(rank);
  report.event = cluster::Encoded{encoder_id(rank), message.id, message.image, Nanos{message.actual_ns}};
  EncodedImage image;
  image.rows = message.rows;
  image.hidden = message.hidden;
  image.text_tokens = message.text_tokens;
  image.truncated_tokens = message.truncated_tokens;
  image.segment = message.segment;
  image.token_ids = message.token_ids;
  report.image = std::move(image);
  on_report_(std::move(report));
}

void ReferenceAgent::on(std::uint32_t rank, const wire::EncodeFailed& message) {
  Report report;
  report.from = place(rank);
  report.event = cluster::EncodeFailed{encoder_id(rank), message.id, message.image, known(message.code),
                                       message.message};
  on_report_(std::move(report));
}

}  // namespace trimtab::agents
