#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "model/request.h"

namespace trimtab::cluster {

/// One image of a prompt with its bytes.
struct PromptImage {
  model::ImageSpan span;
  std::string media_type;  // image/png or image/jpeg
  std::vector<std::uint8_t> bytes;
};

/// A request as the gateway hands it to the serving system: validated, templated, tokenized.
struct Submission {
  std::string name;  // the public id, e.g. "msg_..." or "chatcmpl-...": what `explain` looks up
  std::vector<std::int32_t> tokens;  // the whole prompt; image placeholders included
  std::vector<PromptImage> images;
  model::Sampling sampling;
  std::uint32_t output_limit = 0;         // > 0
  std::vector<std::int32_t> stop_tokens;  // ids that end the answer
  std::string tenant;                     // salt of the block keys; empty: shared by all
  std::optional<base::Nanos> timeout;
};

struct Accepted {
  model::RequestId id;
  std::uint32_t prompt_tokens = 0;
  std::uint32_t hit_tokens = 0;  // found in the pool before routing
};

struct Finished {
  model::FinishReason reason = model::FinishReason::kStop;
  std::uint32_t prompt_tokens = 0, hit_tokens = 0, computed_tokens = 0, output_tokens = 0;
};

/// Where a request's answer goes. Calls come on the host's one thread, in order: accepted, tokens..., then
/// finished or failed once. After `Backend::cancel` nothing more comes.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void on_accepted(const Accepted& accepted) = 0;
  virtual void on_tokens(std::span<const std::int32_t> ids) = 0;  // stop tokens included, as the last one
  virtual void on_finished(const Finished& finished) = 0;
  /// `retry_after` is set when waiting helps (429, 503, 529).
  virtual void on_failed(const base::Error& error, std::optional<base::Nanos> retry_after) = 0;
};

/// The serving system as the gateway sees it. One thread.
class Backend {
 public:
  virtual ~Backend() = default;
  /// Starts a request. An immediate refusal (limits, queue full) comes through `sink->on_failed` too.
  virtual model::RequestId submit(Submission submission, std::shared_ptr<Sink> sink) = 0;
  /// The client left, or a stop sequence was met: everything the request holds is freed within a step.
  virtual void cancel(model::RequestId id) = 0;
  /// JSON for `GET /debug/requests/ID`; `name` is the public id or the number. Empty when unknown.
  virtual std::optional<std::string> journey(const std::string& name) = 0;
  /// JSON for `GET /debug/status`: engines, ranks, tiers, queues, pool, encoders.
  virtual std::string status() = 0;
  /// True once every engine of the configuration is there.
  virtual bool ready() = 0;
};

}  // namespace trimtab::cluster
