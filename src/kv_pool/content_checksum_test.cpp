#include "kv_pool/content_checksum.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <rapidcheck/gtest.h>

#include <algorithm>
#include <vector>

namespace trimtab::kv_pool {
namespace {

RC_GTEST_PROP(ContentChecksum, PiecesGiveWhatTheWholeGives, ()) {
  const model::BlockKey key{*rc::gen::arbitrary<std::uint64_t>(), *rc::gen::arbitrary<std::uint64_t>()};
  std::vector<std::byte> block(*rc::gen::inRange<std::size_t>(1, 5'000));
  for (std::size_t i = 0; i < block.size(); ++i) block[i] = static_cast<std::byte>(i * 7 + i / 251);
  base::RunningChecksum layered(content_seed(key));
  for (std::size_t done = 0; done < block.size();) {
    const std::size_t piece = *rc::gen::inRange<std::size_t>(1, block.size() - done + 1);
    layered.add(std::span(block).subspan(done, piece));
    done += piece;
  }
  RC_ASSERT(layered.value() == content_checksum(key, block));
  // Another key, or another byte, does not match.
  RC_ASSERT(layered.value() != content_checksum({key.high + 1, key.low}, block));
  block[block.size() / 2] ^= std::byte{1};
  RC_ASSERT(layered.value() != content_checksum(key, block));
}

}  // namespace
}  // namespace trimtab::kv_pool
