#pragma once

#include <cstdint>
#include <string>

#include "base/units.h"

/// The parts of a simulated cluster beside its engines.
namespace trimtab::model {

/// The machines behind the pool. Block ids are spread over them by hash; each has its own capacity, its own
/// order of leaving and its own queue of reads.
struct StorageModel {
  std::uint32_t nodes = 0;         // 0: storage never limits, an engine's own machine does
  double read_bytes_per_s = 20e9;  // of one node
  std::string eviction = "lru";    // what leaves a full node: a name of sim::eviction_names()
};

/// Vision machines: one image at a time and encoder, first come, first served.
struct EncoderModel {
  base::Nanos fixed{10'000'000};   // per image
  double patches_per_s = 100'000;  // of one encoder. ASSUMED: nothing is published
};

/// How a decode rank's load reaches the placers. Tokens and ends come by their own streams and are not late.
struct ReportModel {
  base::Nanos delay;             // a report is this old when it comes
  std::int64_t delay_steps = 0;  // and as many of its group's steps (their mean so far) older
  double loss = 0;               // share of reports that never come
};

/// Gateway processes. Each places the requests that it holds from its own deeds and the ranks' reports.
struct EntrypointModel {
  std::uint32_t count = 1;
  std::uint32_t retries = 2;             // clients ask again so often while no token has come
  base::Nanos retry_after{500'000'000};  // then twice as long
};

}  // namespace trimtab::model
