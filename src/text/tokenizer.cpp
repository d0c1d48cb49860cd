#include "text/tokenizer.h"

#include <algorithm>
#include <array>
#include <mutex>
#include <utility>

#include "text/pre_tokenizer.h"
#include "text/utf8.h"
#include "text/vocabulary.h"
#include "text/word_cache.h"

namespace trimtab::text {

namespace {

/// What one `encode` call writes to; pooled, so that concurrent calls share nothing and a call costs no
/// setup.
struct Scratch {
  explicit Scratch(const PreTokenizer& words) : match(words) {}
  PreTokenizer::Scratch match;
  WordCache cache;
  std::vector<TokenId> symbols;
};

}  // namespace

struct Tokenizer::Impl {
  Impl(Vocabulary vocab, PreTokenizer pre_tokenizer)
      : vocabulary(std::move(vocab)), words(std::move(pre_tokenizer)) {
    for (const std::string& bytes : vocabulary.bytes) {
      longest_token_bytes = std::max(longest_token_bytes, bytes.size());
    }
    for (const TokenId id : vocabulary.specials) {
      special_start[static_cast<unsigned char>(vocabulary.bytes[static_cast<std::size_t>(id)][0])] = true;
    }
  }

  std::unique_ptr<Scratch> borrow() const {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        auto scratch = std::move(idle.back());
        idle.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>(words);
  }
  void give_back(std::unique_ptr<Scratch> scratch) const {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(scratch));
  }

  void encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const;
  void encode_ordinary(std::string_view valid_text, Scratch& scratch, std::vector<TokenId>& out) const;
  /// The special token whose name begins at `at`, or -1.
  TokenId special_at(std::string_view text, std::size_t at) const;

  Vocabulary vocabulary;
  PreTokenizer words;
  std::size_t longest_token_bytes = 1;
  std::array<bool, 256> special_start{};  // bytes that begin the name of a special token
  mutable std::mutex mutex;
  mutable std::vector<std::unique_ptr<Scratch>> idle;
};

void Tokenizer::Impl::encode_word(std::string_view word, Scratch& scratch, std::vector<TokenId>& out) const {
  if (const auto ids = scratch.cache.find(word); !ids.empty()) {
    out.insert(out.end(), ids.begin(), ids.end());
    return;
  }
  auto& symbols = scratch.symbols;
  symbols.resize(word.size());
  std::transform(word.begin(), word.end(), symbols.begin(),
                 [&](char byte) { return vocabulary.of_byte[static_cast<unsigned char>(byte)]; });
  symbols.resize(merge_word(vocabulary.merges, symbols));
  // Bytes without a token vanish, as they do in llama.cpp and in Hugging Face tokenizers.
  symbols.erase(std::remove(symbols.begin(), symbols.end(), -1), symbols.end());
  scratch.cache.put(word, symbols);
  out.insert(out.end(), symbols.begin(), symbols.end());
}

void Tokenizer::Impl::encode_ordinary(std::string_view valid_text, Scratch& scratch,
                                      std::vector<TokenId>& out) const {
  for (std::size_t at = 0; at < valid_text.size();) {
    const std::size_t end = words.word_end(valid_text, at, scratch.match);
    encode_word(valid_text.substr(at, end - at), scratch, out);
    at = end;
  }
}

TokenId Tokenizer::Impl::special_at(std::string_view text, std::size_t at) const {
  if (!special_start[static_cast<unsigned char>(text[at])]) return -1;
  const std::string_view rest = text.substr(at);
  for (const TokenId id : vocabulary.specials) {  // longest first
    if (rest.starts_with(vocabulary.bytes[static_cast<std::size_t>(id)])) return id;
  }
  return -1;
}

base::Result<Tokenizer> Tokenizer::load(const gguf::GgufFile& file) {
  auto vocabulary = Vocabulary::load(file);
  if (!vocabulary) return tl::unexpected(std::move(vocabulary).error());
  auto words = PreTokenizer::create(vocabulary->pre_tokenizer);
  if (!words) return tl::unexpected(std::move(words).error());
  return Tokenizer(std::make_unique<Impl>(std::move(*vocabulary), std::move(*words)));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool parse_special) const {
  std::vector<TokenId> ids;
  ids.reserve(text.size() / 3 + 8);
  encode_to(text, parse_special, ids);
  return ids;
}

void Tokenizer::encode_to(std::string_view text, bool parse_special, std::vector<TokenId>& out) const {
  std::string repaired;
  if (valid_utf8_prefix(text) != text.size()) {
    repaired = replace_broken_bytes(text);
    text = repaired;
  }
  auto scratch = impl_->borrow();
  std::size_t begin = 0;  // of ordinary text not yet encoded
  if (parse_special) {
    for (std::size_t at = 0; at < text.size();) {
      const TokenId id = impl_->special_at(text, at);
      if (id < 0) {
        ++at;
        continue;
      }
      impl_->encode_ordinary(text.substr(begin, at - begin), *scratch, out);
      out.push_back(id);
      at += impl_->vocabulary.bytes[static_cast<std::size_t>(id)].size();
      begin = at;
    }
  }
  impl_->encode_ordinary(text.substr(begin), *scratch, out);
  impl_->give_back(std::move(scratch));
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special) const {
  std::string text;
  for (const TokenId id : ids) {
    if (!skip_special || !is_special(id)) text += token_bytes(id);
  }
  return text;
}

std::string_view Tokenizer::token_bytes(TokenId id) const {
  if (id < 0 || static_cast<std::size_t>(id) >= vocabulary_size()) return {};
  return impl_->vocabulary.bytes[static_cast<std::size_t>(id)];
}

std::size_t Tokenizer::vocabulary_size() const { return impl_->vocabulary.bytes.size(); }

std::size_t Tokenizer::longest_token_bytes() const { return impl_->longest_token_bytes; }

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && static_cast<std::size_t>(id) < vocabulary_size() &&
         impl_->vocabulary.special[static_cast<std::size_t>(id)];
}

std::optional<TokenId> Tokenizer::special(std::string_view name) const {
  for (const TokenId id : impl_->vocabulary.specials) {
    if (token_bytes(id) == name) return id;
  }
  return std::nullopt;
}

std::optional<TokenId> Tokenizer::bos() const { return impl_->vocabulary.bos; }
std::optional<TokenId> Tokenizer::eos() const { return impl_->vocabulary.eos; }
std::uint64_t Tokenizer::fingerprint() const { return impl_->vocabulary.fingerprint; }

}  // namespace trimtab::text
