#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"

namespace trimtab::config {

/// A TOML table that tolerates no surprise. Every key that is read becomes known; `finish` then names the
/// first fault of the whole file with its line: a syntax error, a wrong type (both types said), a number out
/// of range, a missing key, or a key that nobody read (with the nearest known one). Faults are sticky: after
/// the first one reads leave their outputs alone, so a loader reads straight through and asks once.
///
///   TRIMTAB_TRY(StrictTable::parse_file(path)) ...
///   auto root = std::move(*parsed);
///   root.require("name", profile.name);
///   auto kv = root.table("kv");                       // absent: an empty table
///   kv.read("window_tokens", window, 0, 1 << 20);     // absent: `window` keeps its default
///   TRIMTAB_TRY(root.finish());
///
/// A `StrictTable` is a cheap handle; handles of one file share it. Not safe for several threads.
class StrictTable {
 public:
  /// Files over 256 KiB, or with lines over 4 KiB, are refused: no configuration is that large, and nesting
  /// stays bounded.
  static base::Result<StrictTable> parse_file(const std::string& path);
  /// `origin` stands for the path in messages.
  static base::Result<StrictTable> parse(std::string_view text, const std::string& origin);

  /// Reads an optional value; when the key is absent, `out` keeps its default. Bounds are inclusive.
  void read(std::string_view key, std::string& out);
  void read(std::string_view key, bool& out);
  void read(std::string_view key, double& out, double min = -kInfinity, double max = kInfinity);
  void read(std::string_view key, std::vector<std::int64_t>& out, std::int64_t min = INT64_MIN,
            std::int64_t max = INT64_MAX);
  void read(std::string_view key, std::vector<std::string>& out);
  template <class Integer>
  requires(std::is_integral_v<Integer> &&
           !std::is_same_v<Integer, bool>) void read(std::string_view key, Integer& out,
                                                     std::int64_t min = lowest<Integer>(),
                                                     std::int64_t max = highest<Integer>()) {
    std::int64_t value = 0;
    if (read_integer(key, value, min < lowest<Integer>() ? lowest<Integer>() : min,
                     max > highest<Integer>() ? highest<Integer>() : max)) {
      out = static_cast<Integer>(value);
    }
  }

  /// Reads one of `words`; `out` becomes its index.
  void read_choice(std::string_view key, std::size_t& out, const std::vector<std::string_view>& words);

  /// The same, but an absent key is a fault.
  template <class T, class... Bounds>
  void require(std::string_view key, T& out, Bounds... bounds) {
    demand(key);
    read(key, out, bounds...);
  }
  void require_choice(std::string_view key, std::size_t& out, const std::vector<std::string_view>& words) {
    demand(key);
    read_choice(key, out, words);
  }

  /// The sub-table `key`, empty when absent.
  StrictTable table(std::string_view key);
  /// The tables of an array of tables `[[key]]`, none when absent.
  std::vector<StrictTable> tables(std::string_view key);

  bool has(std::string_view key) const;
  /// "file:line" of the key, of the table itself when the key is absent.
  std::string where(std::string_view key) const;
  /// Records a fault found by the caller, e.g. two ports that clash. Names the key's line.
  void reject(std::string_view key, std::string message);

  /// The first fault of the whole file, unknown keys included; call on any handle after all reads.
  base::Status finish() const;

  struct Node;
  struct Document;

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  template <class Integer>
  static constexpr std::int64_t lowest() {
    return std::is_signed_v<Integer> ? static_cast<std::int64_t>(std::numeric_limits<Integer>::min()) : 0;
  }
  template <class Integer>
  static constexpr std::int64_t highest() {
    return sizeof(Integer) == 8 ? INT64_MAX : static_cast<std::int64_t>(std::numeric_limits<Integer>::max());
  }

  StrictTable(std::shared_ptr<Document> document, Node* node, std::string path);
  bool read_integer(std::string_view key, std::int64_t& out, std::int64_t min, std::int64_t max);
  void demand(std::string_view key);
  /// The node of `key`, marked as known; null when absent, or when a fault was recorded before.
  Node* take(std::string_view key);
  std::string full(std::string_view key) const;
  void wrong_type(std::string_view key, const Node& node, std::string_view wanted);

  std::shared_ptr<Document> document_;
  Node* node_;        // null: the table is absent
  std::string path_;  // dotted, for messages
};

/// The text of a configuration file. Errors: kNotFound, kIo; longer than 256 KiB: kTooLarge.
base::Result<std::string> read_text(const std::string& path);

}  // namespace trimtab::config
