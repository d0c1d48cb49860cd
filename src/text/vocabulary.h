#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/error.h"
#include "gguf/gguf_file.h"
#include "text/bpe.h"

namespace trimtab::text {

/// Tokens and merges of a GGUF file, with GPT-2's printable stand-ins for bytes ("Ġ" for a space) turned back
/// into the bytes themselves.
struct Vocabulary {
  std::vector<std::string> bytes;      // by id
  std::vector<bool> special;           // by id: control and user-defined tokens
  std::vector<std::int32_t> specials;  // ids, longest name first
  std::vector<std::int32_t> of_byte;   // [256]; -1 for a byte without a token
  MergeTable merges{0};
  std::string pre_tokenizer;
  std::optional<std::int32_t> bos, eos;
  std::uint64_t fingerprint = 0;

  static base::Result<Vocabulary> load(const gguf::GgufFile& file);
};

}  // namespace trimtab::text
