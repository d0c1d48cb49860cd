#include "kv/key_chain.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"

namespace trimtab::kv {

namespace {

static_assert(std::endian::native == std::endian::little, "the key format is written in little-endian words");

// Bumped whenever anything below changes: old pools then simply do not match.
constexpr std::uint32_t kFormatVersion = 1;

enum Tag : std::uint8_t {
  kTagFormat = 1,
  kTagBlockTokens = 2,
  kTagModel = 3,
  kTagKvFormat = 4,
  kTagTokenizer = 5,
  kTagAdapter = 6,
  kTagTenant = 7,
  kTagParent = 16,
  kTagTokens = 17,
  kTagImage = 18,
  kTagContent = 32,
};

/// SHA-256 over tagged, length-prefixed parts (u8 tag, u32 length, bytes), cut to 128 bits. One context
/// serves a whole chain: setting OpenSSL's up costs as much as hashing a block.
class PartHasher {
 public:
  PartHasher() : context_(EVP_MD_CTX_new(), &EVP_MD_CTX_free) {
    TRIMTAB_CHECK(context_ != nullptr, "out of memory");
    TRIMTAB_CHECK(EVP_DigestInit_ex2(context_.get(), EVP_sha256(), nullptr) == 1, "OpenSSL has no SHA-256");
  }

  void part(Tag tag, const void* data, std::size_t size) {
    std::array<unsigned char, 5> head{tag};
    const auto length = static_cast<std::uint32_t>(size);
    std::memcpy(head.data() + 1, &length, 4);
    raw(head.data(), head.size());
    raw(data, size);
  }
  void raw(const void* data, std::size_t size) {
    TRIMTAB_CHECK(EVP_DigestUpdate(context_.get(), data, size) == 1);
  }

  /// Ends this digest and begins the next.
  BlockKey finish() {
    std::array<unsigned char, 32> digest;
    unsigned size = 0;
    TRIMTAB_CHECK(EVP_DigestFinal_ex(context_.get(), digest.data(), &size) == 1 && size == digest.size());
    TRIMTAB_CHECK(EVP_DigestInit_ex2(context_.get(), nullptr, nullptr) == 1);
    std::uint64_t words[2];
    std::memcpy(words, digest.data(), sizeof words);
    return {__builtin_bswap64(words[0]), __builtin_bswap64(words[1])};
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context_;
};

/// The key's 16 digest bytes, in the order in which `model::to_string` prints them.
std::array<std::uint64_t, 2> key_bytes(BlockKey key) {
  return {__builtin_bswap64(key.high), __builtin_bswap64(key.low)};
}

constexpr std::size_t kBlockBytes = static_cast<std::size_t>(model::kBlockTokens) * 4;

/// Parent and tokens of one block as the bytes that are hashed, laid out in place: one update instead of
/// four.
struct [[gnu::packed]] BlockMessage {
  std::uint8_t parent_tag = kTagParent;
  std::uint32_t parent_length = 16;
  std::array<std::uint64_t, 2> parent{};
  std::uint8_t tokens_tag = kTagTokens;
  std::uint32_t tokens_length = kBlockBytes;
  std::array<std::byte, kBlockBytes> tokens{};
};
static_assert(sizeof(BlockMessage) == 5 + 16 + 5 + kBlockBytes);

/// How an image covers a block: its content, its length, where in the block it begins, how many of the
/// block's tokens are its own, and the first one's offset in the image.
struct [[gnu::packed]] ImageMessage {
  std::array<std::uint64_t, 2> content;
  std::uint32_t tokens, begin, count, offset;
};

class BlockHasher {
 public:
  BlockKey hash(BlockKey parent, const std::int32_t* tokens, std::int64_t position,
                std::span<const model::ImageSpan> images) {
    message_.parent = key_bytes(parent);
    std::memcpy(message_.tokens.data(), tokens, kBlockBytes);
    hasher_.raw(&message_, sizeof message_);
    const std::int64_t end = position + model::kBlockTokens;
    for (const model::ImageSpan& image : images) {
      const std::int64_t first = std::max<std::int64_t>(position, image.position);
      const std::int64_t last = std::min<std::int64_t>(end, std::int64_t{image.position} + image.tokens);
      if (first >= last) continue;
      const ImageMessage covered{
          key_bytes(image.content), image.tokens, static_cast<std::uint32_t>(first - position),
          static_cast<std::uint32_t>(last - first), static_cast<std::uint32_t>(first - image.position)};
      hasher_.part(kTagImage, &covered, sizeof covered);
    }
    return hasher_.finish();
  }

 private:
  PartHasher hasher_;
  BlockMessage message_;
};

std::vector<model::ImageSpan> by_position(std::vector<model::ImageSpan> images) {
  std::sort(images.begin(), images.end(),
            [](const auto& a, const auto& b) { return a.position < b.position; });
  for (std::size_t i = 1; i < images.size(); ++i) {
    TRIMTAB_CHECK(std::uint64_t{images[i - 1].position} + images[i - 1].tokens <= images[i].position,
                  "images of a prompt overlap");
  }
  return images;
}

}  // namespace

BlockKey root_key(const KeyScope& scope) {
  PartHasher hasher;
  const std::uint32_t version = kFormatVersion;
  const auto block_tokens = static_cast<std::uint32_t>(model::kBlockTokens);
  hasher.part(kTagFormat, &version, sizeof version);
  hasher.part(kTagBlockTokens, &block_tokens, sizeof block_tokens);
  const auto text = [&hasher](Tag tag, const std::string& value) {
    hasher.part(tag, value.data(), value.size());
  };
  text(kTagModel, scope.model_revision);
  text(kTagKvFormat, scope.kv_format);
  text(kTagTokenizer, scope.tokenizer);
  text(kTagAdapter, scope.adapter);
  text(kTagTenant, scope.tenant);
  return hasher.finish();
}

BlockKey content_key(std::span<const std::byte> bytes) {
  PartHasher hasher;
  const std::uint64_t size = bytes.size();  // a part's own length has 32 bits, too few for any file
  hasher.part(kTagContent, &size, sizeof size);
  hasher.raw(bytes.data(), bytes.size());
  return hasher.finish();
}

std::vector<BlockKey> block_keys(BlockKey root, std::span<const std::int32_t> tokens,
                                 std::span<const model::ImageSpan> images) {
  const std::vector<model::ImageSpan> sorted = by_position({images.begin(), images.end()});
  const auto blocks = static_cast<std::int64_t>(tokens.size()) / model::kBlockTokens;
  std::vector<BlockKey> keys;
  keys.reserve(static_cast<std::size_t>(blocks));
  BlockHasher hasher;
  std::size_t first = 0;  // images before it end before the block
  for (std::int64_t block = 0; block < blocks; ++block) {
    const std::int64_t position = block * model::kBlockTokens;
    while (first < sorted.size() && std::int64_t{sorted[first].position} + sorted[first].tokens <= position)
      ++first;
    std::size_t last = first;
    while (last < sorted.size() && sorted[last].position < position + model::kBlockTokens) ++last;
    const std::span<const model::ImageSpan> covering{sorted.data() + first, last - first};
    root = hasher.hash(root, tokens.data() + position, position, covering);
    keys.push_back(root);
  }
  return keys;
}

KeyChain::KeyChain(BlockKey root, std::vector<model::ImageSpan> images)
    : parent_(root), images_(by_position(std::move(images))) {
  partial_.reserve(static_cast<std::size_t>(model::kBlockTokens));
}

KeyChain::KeyChain(BlockKey root, std::span<const BlockKey> keys, std::span<const std::int32_t> tokens,
                   std::vector<model::ImageSpan> images)
    : KeyChain(keys.empty() ? root : keys.back(), std::move(images)) {
  position_ = static_cast<std::int64_t>(keys.size()) * model::kBlockTokens;
  TRIMTAB_CHECK(position_ <= static_cast<std::int64_t>(tokens.size()), "more keys than full blocks");
  for (const std::int32_t token : tokens.subspan(static_cast<std::size_t>(position_)))
    if (auto key = append(token)) new_keys_.push_back(*key);
}

std::optional<BlockKey> KeyChain::append(std::int32_t token) {
  partial_.push_back(token);
  ++position_;
  if (static_cast<std::int64_t>(partial_.size()) < model::kBlockTokens) return {};
  BlockHasher hasher;
  parent_ = hasher.hash(parent_, partial_.data(), position_ - model::kBlockTokens, images_);
  partial_.clear();
  return parent_;
}

std::vector<BlockKey> KeyChain::take_new_keys() { return std::exchange(new_keys_, {}); }

}  // namespace trimtab::kv
