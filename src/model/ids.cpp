#include "model/ids.h"

namespace trimtab::model {

std::string to_string(BlockKey key) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out(32, '0');
  for (int i = 0; i < 16; ++i) {
    out[static_cast<std::size_t>(15 - i)] = kDigits[(key.high >> (4 * i)) & 15];
    out[static_cast<std::size_t>(31 - i)] = kDigits[(key.low >> (4 * i)) & 15];
  }
  return out;
}

std::string to_string(RankId rank) {
  return std::to_string(rank.engine.value) + "." + std::to_string(rank.rank);
}

}  // namespace trimtab::model
