#include "text/vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/hash.h"
#include "text/utf8.h"

namespace trimtab::text {

namespace {

constexpr std::int32_t kControlToken = 3;  // values of tokenizer.ggml.token_type
constexpr std::int32_t kUserDefinedToken = 4;
constexpr std::size_t kStandIns = 0x144;  // code points below this may stand for bytes

/// GPT-2's table: printable Latin-1 stands for itself, the other bytes for U+0100 and following, in order.
std::array<int, kStandIns> make_byte_of_code_point() {
  std::array<int, kStandIns> table;
  table.fill(-1);
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable =
        (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
    table[static_cast<std::size_t>(printable ? byte : next++)] = byte;
  }
  return table;
}

/// The bytes that `name` stands for; `name` itself when it holds a character that stands for no byte.
std::string bytes_of(std::string_view name) {
  static const auto table = make_byte_of_code_point();
  std::string bytes;
  for (std::size_t at = 0; at < name.size();) {
    const auto lead = static_cast<unsigned char>(name[at]);
    std::size_t code_point = lead;
    std::size_t length = 1;
    if (lead >= 0xC0 && lead < 0xE0 && at + 1 < name.size()) {
      code_point = (lead & 0x1FU) << 6 | (static_cast<unsigned char>(name[at + 1]) & 0x3FU);
      length = 2;
    } else if (lead >= 0x80) {
      return std::string(name);
    }
    if (code_point >= kStandIns || table[code_point] < 0) return std::string(name);
    bytes += static_cast<char>(table[code_point]);
    at += length;
  }
  return bytes;
}

tl::unexpected<base::Error> data_loss(std::string message) {
  return base::fail(base::Code::kDataLoss, std::move(message), "text");
}

using Ids = std::unordered_map<std::string_view, std::int32_t>;

base::Status add_merges(const std::vector<std::string_view>& lines, const Ids& ids, MergeTable& merges) {
  for (std::size_t rank = 0; rank < lines.size(); ++rank) {
    const std::string_view line = lines[rank];
    const std::size_t space = line.find(' ', 1);
    if (space == std::string_view::npos)
      return data_loss(fmt::format("merge {} is '{}': no pair", rank, line));
    const std::string_view left = line.substr(0, space);
    const std::string_view right = line.substr(space + 1);
    const auto left_id = ids.find(left);
    const auto right_id = ids.find(right);
    const auto merged = ids.find(std::string(left) + std::string(right));
    if (left_id == ids.end() || right_id == ids.end() || merged == ids.end()) {
      return data_loss(
          fmt::format("merge {} is '{}', whose parts or result are not in the vocabulary", rank, line));
    }
    merges.add(left_id->second, right_id->second, {static_cast<std::uint32_t>(rank), merged->second});
  }
  return {};
}

std::optional<std::int32_t> id_key(const gguf::GgufFile& file, std::string_view key, std::size_t size) {
  const auto id = file.u32(key);
  if (!id || *id >= size) return std::nullopt;
  return static_cast<std::int32_t>(*id);
}

void add_tokens(const std::vector<std::string_view>& names, const std::vector<std::int32_t>& types,
                Vocabulary& vocabulary) {
  vocabulary.of_byte.assign(256, -1);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const auto id = static_cast<std::int32_t>(i);
    const bool special = types[i] == kControlToken || types[i] == kUserDefinedToken;
    vocabulary.special.push_back(special);
    vocabulary.bytes.push_back(special ? std::string(names[i]) : bytes_of(names[i]));
    if (special && !names[i].empty()) vocabulary.specials.push_back(id);
    if (!special && vocabulary.bytes[i].size() == 1) {
      vocabulary.of_byte[static_cast<unsigned char>(vocabulary.bytes[i][0])] = id;
    }
  }
  std::stable_sort(vocabulary.specials.begin(), vocabulary.specials.end(), [&](auto a, auto b) {
    return vocabulary.bytes[static_cast<std::size_t>(a)].size() >
           vocabulary.bytes[static_cast<std::size_t>(b)].size();
  });
}

}  // namespace

base::Result<Vocabulary> Vocabulary::load(const gguf::GgufFile& file) {
  const auto model = file.string("tokenizer.ggml.model");
  if (!model) return tl::unexpected(model.error());
  if (*model != "gpt2") {
    return base::fail(base::Code::kUnsupported,
                      fmt::format("the model's tokenizer is '{}'; 'gpt2' (byte-level BPE) is known", *model),
                      "text");
  }
  const auto names = file.strings("tokenizer.ggml.tokens");
  if (!names) return tl::unexpected(names.error());
  const auto types = file.i32s("tokenizer.ggml.token_type");
  if (!types) return tl::unexpected(types.error());
  const auto lines = file.strings("tokenizer.ggml.merges");
  if (!lines) return tl::unexpected(lines.error());
  const auto pre = file.string("tokenizer.ggml.pre");
  if (!pre) return tl::unexpected(pre.error());
  if (names->empty() || types->size() != names->size()) {
    return data_loss(
        fmt::format("the vocabulary has {} tokens and {} token types", names->size(), types->size()));
  }

  Vocabulary vocabulary;
  add_tokens(*names, *types, vocabulary);
  Ids ids;
  ids.reserve(names->size());
  for (std::size_t i = 0; i < names->size(); ++i) ids.emplace((*names)[i], static_cast<std::int32_t>(i));
  vocabulary.merges = MergeTable(lines->size());
  TRIMTAB_TRY(add_merges(*lines, ids, vocabulary.merges));
  vocabulary.pre_tokenizer = *pre;
  vocabulary.bos = id_key(file, "tokenizer.ggml.bos_token_id", names->size());
  vocabulary.eos = id_key(file, "tokenizer.ggml.eos_token_id", names->size());

  std::uint64_t hash = base::checksum(*pre);
  for (const auto name : *names) hash = base::mix(hash, base::checksum(name));
  for (const auto type : *types) hash = base::mix(hash, static_cast<std::uint64_t>(type));
  for (const auto line : *lines) hash = base::mix(hash, base::checksum(line));
  vocabulary.fingerprint = hash;
  return vocabulary;
}

}  // namespace trimtab::text
