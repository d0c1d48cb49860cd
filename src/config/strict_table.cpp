#include "config/strict_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/nearest.h"
#include "config/toml_text.h"

// The only translation unit that compiles toml++: a slow header, and its types stay out of every other file.
// Its assertions are wrong: "[:" in a file (found by profile_fuzz) fails one of toml++ 3.3, though the code
// behind it reports the error properly; and under NDEBUG they become promises to the compiler. So neither.
#undef NDEBUG
#define TOML_ASSERT(expr) static_assert(true)
#define TOML_EXCEPTIONS 0
#define TOML_ENABLE_FORMATTERS 0
#include <toml++/toml.h>

namespace trimtab::config {

namespace {

constexpr std::size_t kTextBytesMax = 256 << 10;
constexpr std::size_t kLineBytesMax = 4 << 10;
constexpr int kDepthMax = 16;

}  // namespace

/// A value of the file, copied out of toml++ with its line.
struct StrictTable::Node {
  enum class Kind { kTable, kArray, kString, kInteger, kFloat, kBoolean, kOther } kind = Kind::kOther;
  std::uint32_t line = 0;
  std::string string;
  std::int64_t integer = 0;
  double real = 0;
  bool boolean = false;
  std::vector<Node> items;           // kArray
  std::map<std::string, Node> keys;  // kTable
  std::set<std::string> known;       // keys that were read

  std::string_view type() const {
    static constexpr std::string_view kNames[] = {"table",  "array",   "string",      "integer",
                                                  "number", "boolean", "date or time"};
    return kNames[static_cast<int>(kind)];
  }
};

struct StrictTable::Document {
  std::string origin;
  Node root;
  base::Error error;
  bool failed = false;

  void fail(std::string message, std::uint32_t line) {
    if (failed) return;
    failed = true;
    error = {base::Code::kInvalidArgument, std::move(message), fmt::format("{}:{}", origin, line)};
  }
};

namespace {

using Node = StrictTable::Node;

/// False when the value nests too deeply.
bool copy(const toml::node& from, Node& to, int depth) {
  if (depth > kDepthMax) return false;
  to.line = from.source().begin.line;
  if (const auto* table = from.as_table()) {
    to.kind = Node::Kind::kTable;
    for (const auto& [key, value] : *table) {
      if (!copy(value, to.keys[std::string(key.str())], depth + 1)) return false;
    }
  } else if (const auto* array = from.as_array()) {
    to.kind = Node::Kind::kArray;
    for (const auto& value : *array) {
      if (!copy(value, to.items.emplace_back(), depth + 1)) return false;
    }
  } else if (const auto* string = from.as_string()) {
    to.kind = Node::Kind::kString;
    to.string = string->get();
  } else if (const auto* integer = from.as_integer()) {
    to.kind = Node::Kind::kInteger;
    to.integer = integer->get();
  } else if (const auto* real = from.as_floating_point()) {
    to.kind = Node::Kind::kFloat;
    to.real = real->get();
  } else if (const auto* boolean = from.as_boolean()) {
    to.kind = Node::Kind::kBoolean;
    to.boolean = boolean->get();
  }
  return true;
}

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

/// The first unknown key in the order of lines, as a message; empty when there is none.
void unknown(const Node& node, const std::string& path, std::uint32_t& line, std::string& message) {
  for (const auto& [key, value] : node.keys) {
    if (!node.known.contains(key)) {
      if (message.empty() || value.line < line) {
        const std::vector<std::string_view> known(node.known.begin(), node.known.end());
        const std::string close = base::nearest(key, known);
        line = value.line;
        message = fmt::format("unknown key '{}'", join(path, key));
        if (!close.empty()) {
          message += fmt::format("; did you mean '{}'?", join(path, close));
        } else if (!known.empty()) {
          message += fmt::format("; known here: {}", fmt::join(known, ", "));
        }
      }
    } else if (value.kind == Node::Kind::kTable) {
      unknown(value, join(path, key), line, message);
    } else if (value.kind == Node::Kind::kArray) {
      for (const Node& item : value.items) {
        if (item.kind == Node::Kind::kTable) unknown(item, join(path, key), line, message);
      }
    }
  }
}

/// Gives every string of the document its own bytes back.
void restore(Node& node, const AsciiForm& ascii) {
  ascii.restore(node.string);
  for (Node& item : node.items) restore(item, ascii);
  std::map<std::string, Node> keys;
  for (auto& [key, value] : node.keys) {
    std::string name = key;
    ascii.restore(name);
    restore(value, ascii);
    keys.emplace(std::move(name), std::move(value));
  }
  node.keys = std::move(keys);
}

}  // namespace

StrictTable::StrictTable(std::shared_ptr<Document> document, Node* node, std::string path)
    : document_(std::move(document)), node_(node), path_(std::move(path)) {}

base::Result<StrictTable> StrictTable::parse(std::string_view text, const std::string& origin) {
  if (text.size() > kTextBytesMax) {
    return base::fail(base::Code::kTooLarge,
                      fmt::format("{} bytes; a configuration has at most {}", text.size(), kTextBytesMax),
                      origin);
  }
  std::size_t line = 1;
  for (std::size_t begin = 0; begin < text.size(); ++line) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end - begin > kLineBytesMax) {
      return base::fail(base::Code::kTooLarge,
                        fmt::format("a line of {} bytes; at most {} are read", end - begin, kLineBytesMax),
                        fmt::format("{}:{}", origin, line));
    }
    begin = end + 1;
  }
  if (const std::size_t stray = stray_byte_line(text); stray > 0) {
    return base::fail(base::Code::kInvalidArgument,
                      "a character beyond ASCII outside of strings and comments; keys are plain ASCII",
                      fmt::format("{}:{}", origin, stray));
  }
  const AsciiForm ascii(text);
  const toml::parse_result parsed = toml::parse(ascii.text(), origin);
  if (!parsed) {
    return base::fail(base::Code::kInvalidArgument, fmt::format("not TOML: {}", parsed.error().description()),
                      fmt::format("{}:{}", origin, parsed.error().source().begin.line));
  }
  auto document = std::make_shared<Document>();
  document->origin = origin;
  if (!copy(parsed.table(), document->root, 0)) {
    return base::fail(base::Code::kInvalidArgument, fmt::format("nested more than {} deep", kDepthMax),
                      origin);
  }
  restore(document->root, ascii);
  Node* root = &document->root;
  return StrictTable(std::move(document), root, "");
}

base::Result<StrictTable> StrictTable::parse_file(const std::string& path) {
  auto text = read_text(path);
  if (!text) return tl::unexpected<base::Error>(std::move(text).error());
  return parse(*text, path);
}

base::Result<std::string> read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return base::fail(base::Code::kNotFound, "cannot open this file; does it exist?", path);
  std::string text(kTextBytesMax + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return base::fail(base::Code::kIo, "cannot read this file; is it a directory?", path);
  text.resize(static_cast<std::size_t>(in.gcount()));
  if (text.size() > kTextBytesMax) {
    return base::fail(base::Code::kTooLarge,
                      fmt::format("over {} bytes; no configuration is that large", kTextBytesMax), path);
  }
  return text;
}

std::string StrictTable::full(std::string_view key) const { return join(path_, key); }

StrictTable::Node* StrictTable::take(std::string_view key) {
  if (node_ == nullptr) return nullptr;
  const auto [known, fresh] = node_->known.emplace(key);
  const auto found = node_->keys.find(*known);
  if (found == node_->keys.end() || document_->failed) return nullptr;
  return &found->second;
}

bool StrictTable::has(std::string_view key) const {
  return node_ != nullptr && node_->keys.contains(std::string(key));
}

std::string StrictTable::where(std::string_view key) const {
  std::uint32_t line = node_ == nullptr ? 1 : node_->line;
  if (has(key)) line = node_->keys.at(std::string(key)).line;
  return fmt::format("{}:{}", document_->origin, line);
}

void StrictTable::reject(std::string_view key, std::string message) {
  std::uint32_t line = node_ == nullptr ? 1 : node_->line;
  if (has(key)) line = node_->keys.at(std::string(key)).line;
  document_->fail(fmt::format("{}: {}", full(key), message), line);
}

void StrictTable::demand(std::string_view key) {
  if (!has(key)) reject(key, "this key is required and missing");
}

void StrictTable::wrong_type(std::string_view key, const Node& node, std::string_view wanted) {
  document_->fail(fmt::format("{}: {} where {} is expected", full(key), node.type(), wanted), node.line);
}

void StrictTable::read(std::string_view key, std::string& out) {
  Node* node = take(key);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kString) return wrong_type(key, *node, "string");
  out = node->string;
}

void StrictTable::read(std::string_view key, bool& out) {
  Node* node = take(key);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kBoolean) return wrong_type(key, *node, "boolean");
  out = node->boolean;
}

void StrictTable::read(std::string_view key, double& out, double min, double max) {
  Node* node = take(key);
  if (node == nullptr) return;
  double value = node->real;
  if (node->kind == Node::Kind::kInteger) {
    value = static_cast<double>(node->integer);
  } else if (node->kind != Node::Kind::kFloat) {
    return wrong_type(key, *node, "number");
  }
  // Written so that NaN fails too.
  if (!(value >= min && value <= max)) {
    return document_->fail(fmt::format("{}: {} is outside [{}, {}]", full(key), value, min, max), node->line);
  }
  out = value;
}

bool StrictTable::read_integer(std::string_view key, std::int64_t& out, std::int64_t min, std::int64_t max) {
  Node* node = take(key);
  if (node == nullptr) return false;
  if (node->kind != Node::Kind::kInteger) {
    wrong_type(key, *node, "integer");
    return false;
  }
  if (node->integer < min || node->integer > max) {
    document_->fail(fmt::format("{}: {} is outside [{}, {}]", full(key), node->integer, min, max),
                    node->line);
    return false;
  }
  out = node->integer;
  return true;
}

void StrictTable::read(std::string_view key, std::vector<std::int64_t>& out, std::int64_t min,
                       std::int64_t max) {
  Node* node = take(key);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kArray) return wrong_type(key, *node, "array of integers");
  std::vector<std::int64_t> values;
  for (const Node& item : node->items) {
    if (item.kind != Node::Kind::kInteger) return wrong_type(key, item, "integer in an array of integers");
    if (item.integer < min || item.integer > max) {
      return document_->fail(fmt::format("{}: {} is outside [{}, {}]", full(key), item.integer, min, max),
                             item.line);
    }
    values.push_back(item.integer);
  }
  out = std::move(values);
}

void StrictTable::read(std::string_view key, std::vector<std::string>& out) {
  Node* node = take(key);
  if (node == nullptr) return;
  if (node->kind != Node::Kind::kArray) return wrong_type(key, *node, "array of strings");
  std::vector<std::string> values;
  for (const Node& item : node->items) {
    if (item.kind != Node::Kind::kString) return wrong_type(key, item, "string in an array of strings");
    values.push_back(item.string);
  }
  out = std::move(values);
}

void StrictTable::read_choice(std::string_view key, std::size_t& out,
                              const std::vector<std::string_view>& words) {
  std::string word;
  read(key, word);
  if (document_->failed || !has(key)) return;
  const auto found = std::find(words.begin(), words.end(), word);
  if (found == words.end()) {
    const std::string close = base::nearest(word, words);
    return reject(key, fmt::format("'{}' is not one of {}{}", word, fmt::join(words, ", "),
                                   close.empty() ? "" : fmt::format("; did you mean '{}'?", close)));
  }
  out = static_cast<std::size_t>(found - words.begin());
}

StrictTable StrictTable::table(std::string_view key) {
  Node* node = take(key);
  if (node != nullptr && node->kind != Node::Kind::kTable) {
    wrong_type(key, *node, "table");
    node = nullptr;
  }
  return StrictTable(document_, node, full(key));
}

std::vector<StrictTable> StrictTable::tables(std::string_view key) {
  Node* node = take(key);
  std::vector<StrictTable> result;
  if (node == nullptr) return result;
  if (node->kind != Node::Kind::kArray) {
    wrong_type(key, *node, "array of tables");
    return result;
  }
  for (Node& item : node->items) {
    if (item.kind != Node::Kind::kTable) {
      wrong_type(key, item, "table in an array of tables");
      return {};
    }
    result.push_back(StrictTable(document_, &item, full(key)));
  }
  return result;
}

base::Status StrictTable::finish() const {
  if (!document_->failed) {
    std::uint32_t line = 0;
    std::string message;
    unknown(document_->root, "", line, message);
    if (!message.empty()) document_->fail(std::move(message), line);
  }
  if (document_->failed) return tl::unexpected<base::Error>(document_->error);
  return {};
}

}  // namespace trimtab::config
