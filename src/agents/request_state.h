#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/backend.h"
#include "cluster/events.h"
#include "kv/hit_counters.h"
#include "model/ids.h"
#include "model/request.h"
#include "wire/messages.h"

namespace trimtab::agents {

/// One image on its way through an encoder.
struct ImageState {
  cluster::PromptImage prompt;
  std::uint32_t tries = 0;             // encodings asked for: each writes a segment of its own
  std::string segment;                 // of the last one
  std::uint32_t rows = 0, hidden = 0;  // once encoded
};

/// What the host keeps of a request while the cluster machine knows it: the bytes that decisions do not need.
struct RequestState {
  model::RequestId id;
  std::string name;
  std::shared_ptr<cluster::Sink> sink;
  std::vector<std::int32_t> tokens;  // prompt and what was generated so far
  std::uint32_t prompt_tokens = 0;
  std::vector<ImageState> images;
  std::vector<model::ImageSpan> spans;  // of `images`
  model::Sampling sampling;
  std::vector<std::int32_t> stop_tokens;
  model::BlockKey key_root;
  std::vector<model::BlockKey> keys;  // of the full blocks of `tokens` at the last match
  bool matched_before = false;        // the pool counts a request once
  std::uint64_t pool_request = 0;     // what that match is called there
  std::optional<kv::HitRead> hit;     // what the pool promised last, until the engine says what it read
  kv::HitAccount hit_account;
  std::optional<kv::WindowMode> window_mode;   // of models with a window
  bool audited = false;                        // if it begins approximate, its drift is measured
  std::vector<wire::StateOffer> state_offers;  // of the same answer; in models with a window

  /// Room that decode ranks set aside. By rank: the answer of one that was asked before may come late.
  struct Reservation {
    std::vector<std::uint32_t> blocks;
    std::uint32_t state_slot = 0;
  };
  std::map<model::RankId, Reservation> reserved;

  base::Nanos submitted_at;
  std::optional<base::Nanos> first_token_at;
  base::Nanos last_token_at;

  std::uint32_t generated() const { return static_cast<std::uint32_t>(tokens.size()) - prompt_tokens; }
};

}  // namespace trimtab::agents
