#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "model/ids.h"
#include "model/request.h"

namespace trimtab::kv {

using model::BlockKey;

/// Everything besides the tokens that decides what a block's bytes mean. Two scopes that differ in any part
/// share no key; parts are tagged and length-prefixed, so that an adapter named like another tenant's salt is
/// still a different scope.
struct KeyScope {
  std::string model_revision;  // of the weights, e.g. the fingerprint of the file
  std::string kv_format;       // element type and layout of a block, e.g. "f32/30x2x3x64"
  std::string tokenizer;       // its fingerprint: the same id must mean the same text
  std::string adapter;         // LoRA name and revision; empty: none
  std::string tenant;          // salt; empty: shared by all
};

/// Where every chain of the scope starts. Includes the format's version and the block length (128 tokens).
BlockKey root_key(const KeyScope& scope);

/// 128 bits of SHA-256 over the encoded bytes of an image: `model::ImageSpan::content`.
BlockKey content_key(std::span<const std::byte> bytes);

/// The keys of all full blocks of `tokens`: key i covers tokens [0, 128 (i+1)), because each key hashes its
/// parent. An image takes part in every block that it touches with its content, length and the offset inside
/// it, so equal placeholder tokens of another image (or of another part of it) give other keys. `images` may
/// be in any order but must not overlap. 64K tokens take less than 1 ms on one core (docs/benchmarks.md).
std::vector<BlockKey> block_keys(BlockKey root, std::span<const std::int32_t> tokens,
                                 std::span<const model::ImageSpan> images = {});

/// The same chain, fed token by token (decode) or piece by piece.
///
///   KeyChain chain(root, {}, tokens, images);   // over a prompt, from the start
///   if (auto key = chain.append(token)) pool.put(*key, ...);
class KeyChain {
 public:
  /// Starts at position 0. Positions of `images` count from there.
  explicit KeyChain(BlockKey root, std::vector<model::ImageSpan> images = {});

  /// Goes on where `keys` (the full blocks known already) end: the remaining tokens of `tokens` are appended.
  /// `keys` must not be longer than the full blocks of `tokens`. Keys that fill here are in `take_new_keys`.
  KeyChain(BlockKey root, std::span<const BlockKey> keys, std::span<const std::int32_t> tokens,
           std::vector<model::ImageSpan> images = {});

  /// Adds one token; the key of the block that it completes, if it does.
  std::optional<BlockKey> append(std::int32_t token);

  /// Keys completed by the constructor, once.
  std::vector<BlockKey> take_new_keys();

  std::int64_t tokens() const { return position_; }
  BlockKey last_key() const { return parent_; }  // the root before the first block

 private:
  BlockKey parent_;
  std::vector<model::ImageSpan> images_;  // by position
  std::vector<std::int32_t> partial_;     // of the block being filled
  std::int64_t position_ = 0;
  std::vector<BlockKey> new_keys_;
};

}  // namespace trimtab::kv
