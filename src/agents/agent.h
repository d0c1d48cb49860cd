#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agents/control_server.h"
#include "agents/request_state.h"
#include "base/error.h"
#include "cluster/actions.h"
#include "cluster/events.h"
#include "wire/messages.h"

namespace trimtab::agents {

struct DriftAudit;

/// A token that an event reports, with what only the host keeps of it.
struct ReportedToken {
  model::RequestId id;
  std::int32_t token = 0;
  std::uint64_t logits_checksum = 0;
};

/// Embedding rows that an encoder wrote.
struct EncodedImage {
  std::uint32_t rows = 0, hidden = 0, text_tokens = 0, truncated_tokens = 0;
  std::string segment;
  std::vector<std::int32_t> token_ids;
};

/// Steps of a prefill that began before all of its hit had come.
struct SwapIn {
  base::Nanos step, stalled;        // how long they took; of that, waited for layers
  std::uint32_t thrown_tokens = 0;  // computed in vain, because a layer did not come
  bool any() const { return step > base::Nanos{0} || thrown_tokens > 0; }
};

/// What an engine said: the event for the cluster machine, and what only the host keeps.
struct Report {
  cluster::Place from;
  cluster::Event event;
  std::uint64_t step = 0;
  std::vector<ReportedToken> tokens;                   // of PrefillDone and DecodeStepped
  std::vector<std::uint32_t> blocks;                   // of Reserved: the room that was set aside
  std::uint32_t state_slot = 0;                        // of Reserved
  std::optional<EncodedImage> image;                   // of Encoded
  std::uint32_t stored_blocks = 0, handed_blocks = 0;  // of PrefillDone
  wire::FetchEnd fetch = wire::FetchEnd::kWhole;       // of PrefillDone
  SwapIn swap_in;                                      // of PrefillDone
  std::uint32_t fetched_blocks = 0;                    // of PrefillDone, in models with a window
  std::vector<wire::StateRead> states;                 // of PrefillDone
  std::vector<float> logits;                           // of PrefillDone, when an audit asks for them
};

/// Figures of one rank or encoder for `status`.
struct MemberStatus {
  bool connected = false;
  std::int32_t pid = 0;
  std::uint32_t blocks_total = 0, blocks_free = 0;
  std::uint64_t steps = 0;
  std::int64_t predicted_ns = 0, actual_ns = 0;  // of the last step
  std::int64_t vote_ns = 0, budget_ns = 0;       // prefill
  std::uint32_t waiting = 0;                     // prefill: requests in its FIFO
  std::int64_t waiting_ns = 0;
  std::uint32_t running = 0;    // decode
  std::uint64_t kv_tokens = 0;  // decode
  std::uint64_t stored_blocks = 0;
};

/// The host's side of one engine: a prefill engine, a decode group, or a vision machine. Says the cluster
/// machine's wishes in the engine's own protocol and its answers as events. One class per engine kind
/// (`ReferenceAgent`; others stand beside it); calls come on the host's one thread. A wish for a rank that is
/// not there is dropped: its loss is on its way as an event, and the machine redoes what the rank had.
class Agent {
 public:
  using OnReport = std::function<void(Report)>;

  virtual ~Agent() = default;
  virtual void start_prefill(const RequestState& request, const cluster::StartPrefill& action) = 0;
  /// Computes a prompt again, exactly, for its logits: nothing is stored, handed over or delivered.
  virtual void start_audit(model::RequestId id, std::uint32_t rank, const DriftAudit& audit) = 0;
  virtual void send_embeddings(const RequestState& request, const cluster::SendEmbeddings& action) = 0;
  /// `segment`: the decode rank's KV memory; `room`: what it reserved.
  virtual void send_target(const RequestState& request, const cluster::SendTarget& action,
                           const std::string& segment, const RequestState::Reservation& room) = 0;
  virtual void reserve(const cluster::Reserve& action) = 0;
  virtual void start_decode(const RequestState& request, const cluster::StartDecode& action) = 0;
  virtual void encode(const RequestState& request, const cluster::StartEncode& action) = 0;
  virtual void abort(const cluster::Abort& action) = 0;
  virtual void shutdown() = 0;
  virtual std::vector<MemberStatus> members() const = 0;
  /// Where the rank's KV lies, for hand-over; empty when it is not there.
  virtual std::string segment_of(std::uint32_t rank) const = 0;
};

}  // namespace trimtab::agents
