#include "engine/logits_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <iterator>
#include <numeric>
#include <optional>
#include <vector>

#include "base/hash.h"
#include "engine/local_model.h"
#include "kv/block_table.h"

namespace trimtab::engine {

namespace {

using base::Code;

/// A JSON array of integers, nothing else.
std::optional<std::vector<std::int32_t>> parse_ids(const std::string& text) {
  constexpr const char* kSpace = " \t\r\n";
  std::vector<std::int32_t> ids;
  std::size_t at = text.find_first_not_of(kSpace);
  if (at == std::string::npos || text[at] != '[') return std::nullopt;
  char separator = '[';
  while (separator != ']') {
    at = text.find_first_not_of(kSpace, at + 1);
    if (at == std::string::npos) return std::nullopt;
    if (ids.empty() && text[at] == ']') break;
    std::int32_t id = 0;
    const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), id);
    if (error != std::errc{}) return std::nullopt;
    ids.push_back(id);
    at = text.find_first_not_of(kSpace, static_cast<std::size_t>(end - text.data()));
    if (at == std::string::npos || (text[at] != ',' && text[at] != ']')) return std::nullopt;
    separator = text[at];
  }
  if (text.find_first_not_of(kSpace, at + 1) != std::string::npos) return std::nullopt;
  return ids;
}

base::Result<std::vector<std::int32_t>> read_tokens(const std::string& path) {
  std::string text;
  if (path == "-") {
    text.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::ifstream file(path, std::ios::binary);
    if (!file) return base::fail(Code::kIo, "cannot read " + path, "logits");
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  auto ids = parse_ids(text);
  if (!ids || ids->empty()) {
    return base::fail(Code::kInvalidArgument,
                      path + " is not a JSON array of token ids such as [1, 4093, 198]", "logits");
  }
  return std::move(*ids);
}

base::Status check_tokens(const std::vector<std::int32_t>& tokens, const LlamaShape& shape) {
  if (static_cast<std::int64_t>(tokens.size()) > shape.context_tokens) {
    return base::fail(
        Code::kInvalidArgument,
        fmt::format("{} tokens; the model's context holds {}", tokens.size(), shape.context_tokens),
        "logits");
  }
  for (const std::int32_t token : tokens) {
    if (token < 0 || static_cast<std::size_t>(token) >= shape.vocabulary) {
      return base::fail(Code::kInvalidArgument,
                        fmt::format("token {} is not in the vocabulary of {}", token, shape.vocabulary),
                        "logits");
    }
  }
  return {};
}

/// Every token as a segment of its own wants its logits; the bits are those of any other cut.
base::Status write_all(LocalModel& model, const std::vector<std::int32_t>& tokens,
                       const LogitsOptions& options, std::ofstream& out) {
  std::vector<std::uint32_t> blocks(model.arena().blocks());
  std::iota(blocks.begin(), blocks.end(), 0U);
  for (std::size_t done = 0; done < tokens.size(); done += options.chunk_tokens) {
    const std::size_t end = std::min(tokens.size(), done + options.chunk_tokens);
    std::vector<Segment> segments;
    for (std::size_t t = done; t < end; ++t) {
      Segment& segment = segments.emplace_back();
      segment.tokens = {tokens.data() + t, 1};
      segment.start = static_cast<std::int64_t>(t);
      segment.blocks = blocks;
      segment.window.ring = model.ring();
      segment.wants_logits = true;
    }
    TRIMTAB_TRY(model.step(segments));
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto row = model.forward().logits(i);
      out.write(reinterpret_cast<const char*>(row.data()), static_cast<std::streamsize>(row.size_bytes()));
    }
  }
  return {};
}

void print_top(std::span<const float> row, std::size_t count) {
  std::vector<std::int32_t> order(row.size());
  std::iota(order.begin(), order.end(), 0);
  count = std::min(count, order.size());
  const auto larger = [&](std::int32_t a, std::int32_t b) {
    const float x = row[static_cast<std::size_t>(a)], y = row[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count), order.end(), larger);
  for (std::size_t i = 0; i < count; ++i)
    fmt::print("{:>8} {:.6f}\n", order[i], row[static_cast<std::size_t>(order[i])]);
  fmt::print("checksum {:016x}\n", base::checksum_of(row));
}

base::Status run(const LogitsOptions& options) {
  auto tokens = read_tokens(options.tokens_path);
  if (!tokens) return tl::unexpected(tokens.error());
  if (options.chunk_tokens == 0)
    return base::fail(Code::kInvalidArgument, "a chunk of 0 tokens never ends", "logits");
  const auto blocks = kv::blocks_for(static_cast<std::int64_t>(tokens->size()));
  auto model = LocalModel::open(options.model_path, options.ffn_experts, blocks, nullptr,
                                options.f32_cache ? KvFormat::kF32 : KvFormat::kF16);
  if (!model) return tl::unexpected(model.error());
  TRIMTAB_TRY(check_tokens(*tokens, (*model)->shape()));
  std::ofstream out;
  if (!options.out_path.empty()) {
    out.open(options.out_path, std::ios::binary | std::ios::trunc);
    if (!out) return base::fail(Code::kIo, "cannot write " + options.out_path, "logits");
  }
  if (options.all_positions) TRIMTAB_TRY(write_all(**model, *tokens, options, out));
  auto last = (*model)->run(*tokens, options.chunk_tokens);
  if (!last) return tl::unexpected(last.error());
  if (out.is_open() && !options.all_positions)
    out.write(reinterpret_cast<const char*>(last->data()), static_cast<std::streamsize>(last->size() * 4));
  out.close();
  if (!options.out_path.empty() && !out)
    return base::fail(Code::kIo, "writing " + options.out_path + " failed: is the disk full?", "logits");
  print_top(*last, options.top);
  return {};
}

}  // namespace

int logits_command(const LogitsOptions& options) {
  if (auto status = run(options); !status) {
    fmt::print(stderr, "trimtab logits: {}\n", base::to_string(status.error()));
    return 1;
  }
  return 0;
}

}  // namespace trimtab::engine
