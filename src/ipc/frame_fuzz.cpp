#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "ipc/channel.h"

/// Any bytes in any pieces (the first byte sets their size): the same frames as at once, or an error.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using trimtab::ipc::FrameSplitter;
  if (size == 0) return 0;
  const std::size_t piece = 1 + data[0];
  std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data) + 1, size - 1);
  const auto drain = [](FrameSplitter& splitter, std::vector<std::byte>& out) {
    while (true) {
      const auto frame = splitter.next();
      if (!frame) return false;
      if (!*frame) return true;
      const auto packed = pack(**frame);
      out.insert(out.end(), packed.begin(), packed.end());
    }
  };
  std::vector<std::byte> whole, cut;
  FrameSplitter at_once;
  at_once.append(bytes);
  const bool good = drain(at_once, whole);
  FrameSplitter pieces;
  bool going = true;
  for (std::size_t at = 0; at < bytes.size() && going; at += piece) {
    pieces.append(bytes.subspan(at, std::min(piece, bytes.size() - at)));
    going = drain(pieces, cut);
  }
  if (good != going || whole != cut) std::abort();
  return 0;
}
