#include "kv_remote/redis/slot_map.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>

namespace trimtab::kv_remote {

namespace {

constexpr std::array<std::uint16_t, 256> make_crc16() {
  std::array<std::uint16_t, 256> table{};
  for (std::uint32_t byte = 0; byte < 256; ++byte) {
    std::uint32_t crc = byte << 8;
    for (int bit = 0; bit < 8; ++bit) crc = (crc << 1) ^ ((crc & 0x8000) != 0 ? 0x1021U : 0U);
    table[byte] = static_cast<std::uint16_t>(crc);
  }
  return table;
}
constexpr auto kCrc16 = make_crc16();

}  // namespace

std::uint32_t redis_slot(std::string_view key) {
  if (const auto open = key.find('{'); open != std::string_view::npos) {
    const auto close = key.find('}', open + 1);
    if (close != std::string_view::npos && close > open + 1) key = key.substr(open + 1, close - open - 1);
  }
  std::uint16_t crc = 0;
  for (const char c : key)
    crc = static_cast<std::uint16_t>((crc << 8) ^ kCrc16[(crc >> 8) ^ static_cast<unsigned char>(c)]);
  return crc % kRedisSlots;
}

void SlotMap::assign(std::uint32_t first, std::uint32_t last, const std::string& node) {
  for (std::uint32_t slot = first; slot <= last && slot < kRedisSlots; ++slot) nodes_[slot] = node;
}

std::vector<std::string> SlotMap::nodes() const {
  std::set<std::string> unique;
  for (const std::string& node : nodes_)
    if (!node.empty()) unique.insert(node);
  return {unique.begin(), unique.end()};
}

std::uint32_t SlotMap::slots_known() const {
  return static_cast<std::uint32_t>(std::ranges::count_if(nodes_, [](const auto& n) { return !n.empty(); }));
}

Redirection parse_redirection(std::string_view error, const std::string& asked) {
  Redirection answer;
  const auto word = [&error] {
    const auto space = error.find(' ');
    const std::string_view first = error.substr(0, space);
    error = space == std::string_view::npos ? std::string_view{} : error.substr(space + 1);
    return first;
  };
  const std::string_view what = word();
  if (what == "TRYAGAIN" || what == "CLUSTERDOWN" || what == "LOADING" || what == "MASTERDOWN") {
    answer.kind = Redirection::Kind::kWait;
    return answer;
  }
  if (what != "MOVED" && what != "ASK") return answer;
  const std::string_view slot = word();
  answer.node = std::string(word());
  const auto [end, bad] = std::from_chars(slot.data(), slot.data() + slot.size(), answer.slot);
  const auto colon = answer.node.rfind(':');
  if (bad != std::errc{} || end != slot.data() + slot.size() || answer.slot >= kRedisSlots ||
      colon == std::string::npos || colon + 1 == answer.node.size()) {
    return {};
  }
  if (colon == 0) answer.node = asked.substr(0, asked.rfind(':')) + answer.node;
  answer.kind = what == "MOVED" ? Redirection::Kind::kMoved : Redirection::Kind::kAsk;
  return answer;
}

}  // namespace trimtab::kv_remote
