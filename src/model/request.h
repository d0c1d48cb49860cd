#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "model/ids.h"

namespace trimtab::model {

/// How the next token is drawn. Temperature 0 is greedy; otherwise softmax(logits / temperature) cut to the
/// smallest set of tokens whose probabilities reach `top_p`, drawn with a counter-based generator on (seed,
/// position), so a draw does not depend on the batch, the rank or a restart.
struct Sampling {
  float temperature = 0.0F;
  float top_p = 1.0F;
  std::uint64_t seed = 0;

  template <class A>
  void visit(A& a) {
    a(temperature, top_p, seed);
  }
};

/// An image inside a prompt: `tokens` placeholder tokens from `position` on; its encoder's embedding rows
/// replace them.
struct ImageSpan {
  std::uint32_t position = 0;  // index of the first placeholder token in the prompt
  std::uint32_t tokens = 0;    // n, from the image header by the profile's formula
  std::uint32_t width = 0;     // pixels
  std::uint32_t height = 0;
  std::uint32_t patches = 0;  // the unit of the vision balancer
  BlockKey content;           // hash of the encoded bytes: part of every block key that covers the image

  template <class A>
  void visit(A& a) {
    a(position, tokens, width, height, patches, content);
  }
};

enum class FinishReason : std::uint8_t { kNone, kStop, kLength };

/// What the balancers know of a request when it enters a queue. Times are nanoseconds of the host's clock.
struct RequestShape {
  RequestId id;
  base::TokenCount prompt;        // total context, hit included
  base::TokenCount hit;           // leading tokens whose KV the pool has; the rest is computed. hit < prompt
  base::TokenCount output_limit;  // max_tokens; the real output length is unknown
  std::int64_t patches = 0;       // of all its images
  base::Nanos arrival;
  base::Nanos deadline = base::kForever;

  base::TokenCount to_compute() const { return prompt - hit; }
};

}  // namespace trimtab::model
