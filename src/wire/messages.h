#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/codec.h"
#include "ipc/channel.h"
#include "model/request.h"
#include "wire/window_hit.h"

/// The reference engine's own protocol: what the control process (gateway, cluster, agents) and the processes
/// of one machine say to each other over Unix sockets. Ranks and encoders dial `<runtime>/control.sock` and
/// say `Hello` first; kv users dial
/// `<runtime>/kv.sock`. Bulk data (KV, embeddings) travels in shared segments that the messages name.
namespace trimtab::wire {

using base::Nanos;
using model::BlockKey;
using model::EngineId;
using model::RankId;
using model::RequestId;

enum class Type : std::uint16_t {
  kHello = 1,
  kPrefillStart,
  kEmbeddings,
  kDecodeTarget,
  kAbort,
  kDecodeReserve,
  kDecodeStart,
  kShutdown,
  kPrefillStep = 32,
  kPrefillDone,
  kRequestFailed,
  kReserved,
  kDecodeStep,
  kPreempted,
  kReleased,
  kIdle,
  kStateHello = 48,
  kEncode = 64,
  kEncoded,
  kEncodeFailed,
  kEncodeCancel,
  kKvFirst = 128,  // kv_pool's own messages
};

/// Rank or encoder -> control, once after connecting. For an encoder `engine` is the vision machine, `rank`
/// the encoder.
struct Hello {
  static constexpr Type kType = Type::kHello;
  model::Role role = model::Role::kPrefill;
  std::uint32_t engine = 0, rank = 0;
  std::int32_t pid = 0;
  std::uint32_t blocks_total = 0;       // usable KV blocks of the rank
  std::uint64_t model_fingerprint = 0;  // of the weights file; all must agree
  std::string segment;                  // path of the rank's KV arena, for hand-over
  template <class A>
  void visit(A& a) {
    a(role, engine, rank, pid, blocks_total, model_fingerprint, segment);
  }
};

/// Control -> prefill rank: this request is yours. `keys[i]` is the key of tokens [128 i, 128 (i+1)); only
/// full blocks have one. The rank takes `hit_tokens` from the pool (fewer when a block has gone meanwhile),
/// computes the rest, stores new full blocks.
struct PrefillStart {
  static constexpr Type kType = Type::kPrefillStart;
  RequestId id;
  std::vector<std::int32_t> tokens;
  std::vector<BlockKey> keys;
  std::uint32_t hit_tokens = 0;
  std::int64_t batch_cap_ns = INT64_MAX;  // the tier's cap on one batch's quota
  model::Sampling sampling;
  std::vector<model::ImageSpan> images;  // those not wholly inside the hit wait for their Embeddings
  std::vector<std::int32_t> stop_tokens;
  std::uint8_t hand_over = 1;  // 1: keep the finished KV until DecodeTarget or Abort; 0: PrefillDone at once
  WindowHit window;            // of models with sliding-window layers
  template <class A>
  void visit(A& a) {
    a(id, tokens, keys, hit_tokens, batch_cap_ns, sampling, images, stop_tokens, hand_over, window);
  }
};

/// Control -> prefill rank: rows [tokens, hidden] f32 of image `image` lie in `segment`; the rank unlinks it
/// once consumed.
struct Embeddings {
  static constexpr Type kType = Type::kEmbeddings;
  RequestId id;
  std::uint32_t image = 0, rows = 0, hidden = 0;
  std::string segment;
  template <class A>
  void visit(A& a) {
    a(id, image, rows, hidden, segment);
  }
};

/// Control -> prefill rank: hand the finished KV over to these blocks of the decode rank's arena.
struct DecodeTarget {
  static constexpr Type kType = Type::kDecodeTarget;
  RequestId id;
  RankId rank;
  std::string segment;
  std::vector<std::uint32_t> blocks;
  std::uint32_t state_slot = 0;  // of the segment's state slots, in models with a window
  template <class A>
  void visit(A& a) {
    a(id, rank, segment, blocks, state_slot);
  }
};

/// Control -> any rank or encoder: forget the request and free all it holds; answered by `Released`.
struct Abort {
  static constexpr Type kType = Type::kAbort;
  RequestId id;
  template <class A>
  void visit(A& a) {
    a(id);
  }
};

/// Control -> decode rank: set room for `tokens` tokens aside; answered by `Reserved` (no blocks: refused).
struct DecodeReserve {
  static constexpr Type kType = Type::kDecodeReserve;
  RequestId id;
  std::uint32_t tokens = 0;
  template <class A>
  void visit(A& a) {
    a(id, tokens);
  }
};

/// Control -> decode rank: the KV of `tokens` (less the last, the first generated one) lies in the reserved
/// blocks; go on.
struct DecodeStart {
  static constexpr Type kType = Type::kDecodeStart;
  RequestId id;
  std::vector<std::int32_t> tokens;  // prompt and what was generated so far; the last one has no KV yet
  std::uint32_t prompt_tokens = 0;   // the client's prompt; the rest was generated
  std::vector<BlockKey> keys;        // of the full blocks of `tokens`
  BlockKey key_root;  // continues the chain: kv::KeyChain over further blocks starts here when keys is empty
  std::vector<model::ImageSpan> images;  // for the keys of blocks that cover images
  model::Sampling sampling;
  std::uint32_t output_limit = 0;  // tokens still to generate at most
  std::vector<std::int32_t> stop_tokens;
  template <class A>
  void visit(A& a) {
    a(id, tokens, prompt_tokens, keys, key_root, images, sampling, output_limit, stop_tokens);
  }
};

/// Control -> anyone: finish and exit.
struct Shutdown {
  static constexpr Type kType = Type::kShutdown;
  template <class A>
  void visit(A&) {}
};

struct Chunk {
  RequestId id;
  std::uint32_t tokens = 0;    // q: computed in this step
  std::uint32_t computed = 0;  // c: before it
  std::int64_t predicted_ns = 0;
  template <class A>
  void visit(A& a) {
    a(id, tokens, computed, predicted_ns);
  }
};

/// Prefill rank -> control, after every step in which it had work (not for empty batches).
struct PrefillStep {
  static constexpr Type kType = Type::kPrefillStep;
  std::uint64_t step = 0;
  std::int64_t vote_ns = 0;       // what this rank voted
  std::int64_t budget_ns = 0;     // MIN over the group
  std::int64_t predicted_ns = 0;  // of this rank's chunks, in the quota's scope
  std::int64_t actual_ns = 0;
  std::vector<Chunk> chunks;
  std::uint32_t waiting = 0;    // requests in the rank's FIFO, unfinished one included
  std::int64_t waiting_ns = 0;  // their predicted remaining quota
  std::uint32_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(step, vote_ns, budget_ns, predicted_ns, actual_ns, chunks, waiting, waiting_ns, blocks_free);
  }
};

/// How the reading of a hit ended.
enum class FetchEnd : std::uint8_t {
  kWhole,   // all that was asked for was read
  kGone,    // a block was no longer in the pool
  kFailed,  // a block could not be read: the pool is away, too busy, or the block is damaged
};

/// What became of a state that was offered.
struct StateRead {
  std::uint32_t blocks = 0;
  FetchEnd end = FetchEnd::kWhole;
  template <class A>
  void visit(A& a) {
    a(blocks, end);
  }
};

/// Prefill rank -> control: the prompt is computed, its KV handed over (when a target was given), the first
/// token drawn.
struct PrefillDone {
  static constexpr Type kType = Type::kPrefillDone;
  RequestId id;
  std::int32_t first_token = 0;
  std::uint64_t logits_checksum = 0;  // XXH3 of the f32 logits row
  std::uint32_t hit_tokens = 0;       // taken from the pool
  std::uint32_t computed_tokens = 0;  // computed by this engine: prompt = hit + computed
  std::uint32_t stored_blocks = 0;
  std::uint32_t handed_blocks = 0;
  model::FinishReason finish = model::FinishReason::kNone;  // kStop when the first token ends the answer
  FetchEnd fetch = FetchEnd::kWhole;  // why hit_tokens are fewer than it was told to fetch, if they are
  // Steps that began before all of the hit had come: how long they took, and of that waited for its layers.
  std::int64_t swap_step_ns = 0, swap_stalled_ns = 0;
  std::uint32_t thrown_tokens = 0;   // computed in vain, because a layer did not come; in no other count
  std::uint32_t fetched_blocks = 0;  // read from the pool; in models with a window more than the hit has
  std::vector<StateRead> states;     // of the offered ones, those that it tried, in order
  std::vector<float> logits;         // of the prompt's last token, when the audit asks for them
  template <class A>
  void visit(A& a) {
    a(id, first_token, logits_checksum, hit_tokens, computed_tokens, stored_blocks, handed_blocks, finish,
      fetch, swap_step_ns, swap_stalled_ns, thrown_tokens, fetched_blocks, states, logits);
  }
};

/// Any rank -> control: the request cannot go on here; everything it held is free again.
struct RequestFailed {
  static constexpr Type kType = Type::kRequestFailed;
  RequestId id;
  base::Code code = base::Code::kInternal;
  std::string message;
  template <class A>
  void visit(A& a) {
    a(id, code, message);
  }
};

struct Reserved {
  static constexpr Type kType = Type::kReserved;
  RequestId id;
  std::vector<std::uint32_t> blocks;  // empty: refused, no room
  std::uint32_t blocks_free = 0;
  std::uint32_t state_slot = 0;  // in models with a window
  template <class A>
  void visit(A& a) {
    a(id, blocks, blocks_free, state_slot);
  }
};

struct TokenOut {
  RequestId id;
  std::int32_t token = 0;
  std::uint64_t logits_checksum = 0;
  model::FinishReason finish = model::FinishReason::kNone;  // a stop token itself is reported, with kStop
  template <class A>
  void visit(A& a) {
    a(id, token, logits_checksum, finish);
  }
};

/// Decode rank -> control, after every step in which it had work: one token per running request, and its load
/// report.
struct DecodeStep {
  static constexpr Type kType = Type::kDecodeStep;
  std::uint64_t step = 0;
  std::int64_t actual_ns = 0;
  std::vector<TokenOut> tokens;
  std::uint32_t running = 0;
  std::uint64_t kv_tokens = 0;
  std::uint32_t blocks_free = 0;
  std::uint32_t stored_blocks = 0;  // full blocks given to the pool in this step
  template <class A>
  void visit(A& a) {
    a(step, actual_ns, tokens, running, kv_tokens, blocks_free, stored_blocks);
  }
};

/// Decode rank -> control: memory ran out and this request had to yield; its full blocks are in the pool, its
/// room is free.
struct Preempted {
  static constexpr Type kType = Type::kPreempted;
  RequestId id;
  std::uint32_t generated = 0;  // tokens drawn since DecodeStart
  std::string reason;
  template <class A>
  void visit(A& a) {
    a(id, generated, reason);
  }
};

/// Any rank or encoder -> control: answer to Abort.
struct Released {
  static constexpr Type kType = Type::kReleased;
  RequestId id;
  std::uint32_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(id, blocks_free);
  }
};

/// Prefill or decode rank -> control: the last request left and the last block move ended; nothing is held
/// any more
/// (`blocks_free` must then be all blocks: a leak shows here).
struct Idle {
  static constexpr Type kType = Type::kIdle;
  std::uint32_t blocks_free = 0;
  template <class A>
  void visit(A& a) {
    a(blocks_free);
  }
};

/// Whoever keeps a machine's window snapshots -> control, once after connecting: the machine lives, in this
/// epoch, and answers there. The connection's end is its death.
struct StateHello {
  static constexpr Type kType = Type::kStateHello;
  std::uint32_t machine = 0;
  std::uint64_t epoch = 0;
  std::string host;
  std::uint16_t port = 0;
  std::int32_t pid = 0;
  template <class A>
  void visit(A& a) {
    a(machine, epoch, host, port, pid);
  }
};

/// Control -> encoder: encode image `image` of the request into `rows` embedding rows, written to `segment`.
struct Encode {
  static constexpr Type kType = Type::kEncode;
  RequestId id;
  std::uint32_t image = 0, rows = 0, patches = 0;
  std::string media_type;  // image/png or image/jpeg
  std::vector<std::uint8_t> bytes;
  std::string segment;
  template <class A>
  void visit(A& a) {
    a(id, image, rows, patches, media_type, bytes, segment);
  }
};

struct Encoded {
  static constexpr Type kType = Type::kEncoded;
  RequestId id;
  std::uint32_t image = 0, rows = 0, hidden = 0;
  std::uint32_t text_tokens = 0;       // what the encoder found; rows beyond are padding
  std::uint32_t truncated_tokens = 0;  // what did not fit
  std::int64_t actual_ns = 0;
  std::string segment;
  std::vector<std::int32_t> token_ids;  // the rows as token ids (padding included): lets a test inline them
  template <class A>
  void visit(A& a) {
    a(id, image, rows, hidden, text_tokens, truncated_tokens, actual_ns, segment, token_ids);
  }
};

struct EncodeFailed {
  static constexpr Type kType = Type::kEncodeFailed;
  RequestId id;
  std::uint32_t image = 0;
  base::Code code = base::Code::kInternal;
  std::string message;
  template <class A>
  void visit(A& a) {
    a(id, image, code, message);
  }
};

template <class M>
ipc::Frame to_frame(const M& message) {
  return {static_cast<std::uint16_t>(M::kType), base::encode(message)};
}

template <class M>
base::Result<M> from_frame(const ipc::Frame& frame) {
  if (frame.type != static_cast<std::uint16_t>(M::kType)) {
    return base::fail(base::Code::kInternal,
                      "a message of type " + std::to_string(frame.type) + " where " +
                          std::to_string(static_cast<int>(M::kType)) + " was expected",
                      "wire");
  }
  return base::decode<M>(frame.payload);
}

inline Type type_of(const ipc::Frame& frame) { return static_cast<Type>(frame.type); }

}  // namespace trimtab::wire
