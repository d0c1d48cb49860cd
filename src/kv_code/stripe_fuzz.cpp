// Any bytes as the shards of a block: nothing but the block that was written may come out.
#include <cstdlib>
#include <cstring>
#include <vector>

#include "kv_code/stripe.h"

using namespace trimtab;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const kv_code::StripeLayout layout = [] {
    model::KvLayout kv;
    kv.layer_bytes = {base::Bytes{90}, base::Bytes{200}};
    kv.block_bytes = base::Bytes{290};
    return *kv_code::StripeLayout::make(kv);
  }();
  const model::BlockKey key{7, 9};
  std::vector<std::byte> block(layout.block_bytes, std::byte{0x5a});
  std::array<std::vector<std::byte>, kv_code::kShards> bytes;
  kv_code::Shards shards;
  for (std::uint32_t s = 0; s < kv_code::kShards; ++s) {
    bytes[s].resize(layout.shard_bytes);
    shards[s] = bytes[s];
  }
  kv_code::write_shards(layout, key, block, shards);
  // Each three input bytes: a place in all the shards, and what is written there.
  for (std::size_t i = 0; i + 3 <= size; i += 3) {
    const std::size_t at =
        (data[i] | std::size_t{data[i + 1]} << 8) % (layout.shard_bytes * kv_code::kShards);
    bytes[at / layout.shard_bytes][at % layout.shard_bytes] ^= std::byte{data[i + 2]};
  }
  kv_code::StripeReader reader(layout, key);
  for (std::uint32_t s = 0; s < kv_code::kShards; ++s) reader.arrived(s, bytes[s]);
  std::vector<std::byte> out(layout.block_bytes);
  if (reader.assemble_all(out, kv_code::coder()) && out != block) std::abort();
  return 0;
}
