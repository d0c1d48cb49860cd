#include <cstddef>
#include <cstdint>
#include <span>

#include "io/expert_pickle.h"

/// Any bytes as a pickle: plain values whose nodes can be looked at, or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace trimtab;
  const auto values = io::read_pickle(std::as_bytes(std::span(data, size)));
  if (!values) return 0;
  const auto root = values->root();
  for (const auto& key : values->keys(root)) {
    if (const auto* node = values->find(root, key)) (void)values->kind(*node);
  }
  (void)values->find(root, "records");
  return 0;
}
