#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "cluster/events.h"

namespace trimtab::cluster {

/// Where a request stands. What ends it (Finish, Fail, Cancelled) may come at any stage.
///
///   matching -> queued -> granted -> prefilling -> decoding -> done
///      ^          a rank's promise    |               |
///      └─── preempted, moved, rank lost, lease expired
enum class Stage : std::uint8_t {
  kMatching,    // the host computes keys and asks the pool
  kQueued,      // in its tier's queue
  kGranted,     // leased to a rank, not sent yet: no decode place is in sight for it
  kPrefilling,  // sent to the rank
  kDecoding,
};
std::string_view name(Stage stage);

/// The request's place on the decode side, which has a life of its own beside the prefill.
enum class Seat : std::uint8_t {
  kNone,
  kBound,      // it was moved: the rank is kept for it in our account, and asked when the prompt is due
  kWanted,     // no rank has room (or one has not let go of it yet): held, asked again after each change
  kReserving,  // a rank was asked
  kTarget,     // it said yes, and the prefill rank knows where to hand over
  kGone,       // it knew, and the decode group was lost: what it hands over is lost too
  kRunning,
};

enum class ImageStage : std::uint8_t {
  kIdle,
  kWaiting,   // no encoder is there
  kEncoding,  // at an encoder
  kReady,     // embeddings are at the host
  kSent,      // the prefill rank has them
};

struct ImageLife {
  model::ImageSpan span;
  ImageStage stage = ImageStage::kIdle;
  EncoderId encoder;
  std::uint32_t tries = 0;  // failed ones
  Nanos asked_at;
  // A machine that dies takes its encoders one after the other, and all of that is one failed try: the
  // machines that were lost under the image, and how many encoders had joined by then.
  std::vector<model::MachineId> lost_on = {};
  std::uint64_t lost_joins = 0;
};

/// One request of the cluster machine: sizes and states, no tokens.
struct Life {
  RequestId id;
  TokenCount prompt, output_limit, generated;
  std::vector<ImageLife> images;
  Nanos arrival;
  Nanos deadline = base::kForever;

  Stage stage = Stage::kMatching;
  bool admitted = false;    // past the door
  bool accepted = false;    // the client was told
  TokenCount hit;           // of the current pass
  TokenCount first_hit;     // of the first: what the client is told
  TokenCount computed;      // by prefill engines, all passes
  std::uint32_t redos = 0;  // after failures; yields to memory do not count

  std::int32_t preemptions = 0;

  // The current pass.
  Nanos quota;                    // predicted at the match
  std::optional<RankId> prefill;  // granted or prefilling
  Nanos batch_cap = base::kForever;
  TokenCount prefilled;  // hit + computed so far
  Nanos computed_until;  // while it waits for its target
  Nanos spent;           // its share of the steps' time

  Seat seat = Seat::kNone;
  RankId decode;                      // kBound, and from kReserving on, kGone excluded
  std::optional<Nanos> wanted_since;  // in this pass
  TokenCount held_kv;                 // counted among the held while kWanted
  bool parked = false;                // kWanted only because a rank has not answered an abort yet
  bool held_logged = false;
  std::optional<Nanos> head_since;  // look-ahead: since when it is the oldest that waits
  std::int64_t overtaken = 0;       // by requests behind it that found a place before it
  bool ending = false;              // it is being forgotten: its id will not be used again

  TokenCount tokens() const { return prompt + generated; }
  TokenCount output_left() const { return output_limit - generated; }
  /// The prefill itself draws one token.
  bool needs_decode() const { return output_left().value > 1; }
  /// The image is not wholly inside the hit.
  bool needs(const ImageLife& image) const {
    return static_cast<std::int64_t>(image.span.position) + image.span.tokens > hit.value;
  }
};

}  // namespace trimtab::cluster
