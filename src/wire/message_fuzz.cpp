#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "wire/messages.h"

namespace {

using namespace trimtab::wire;

/// What decodes writes back to bytes that decode to the same again; what does not is an error with a reason.
template <class M>
void check(const std::vector<std::byte>& payload) {
  const auto message = from_frame<M>({static_cast<std::uint16_t>(M::kType), payload});
  if (!message) {
    if (message.error().message.empty()) std::abort();
    return;
  }
  const auto frame = to_frame(*message);
  const auto again = from_frame<M>(frame);
  if (!again || to_frame(*again).payload != frame.payload) std::abort();
}

template <class... M>
void check_one(std::size_t which, const std::vector<std::byte>& payload) {
  std::size_t index = 0;
  ((index++ == which % sizeof...(M) ? check<M>(payload) : void()), ...);
}

}  // namespace

/// Any bytes as the payload of any message between the processes; the first byte picks the message.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto* begin = reinterpret_cast<const std::byte*>(data) + 1;
  check_one<Hello, PrefillStart, Embeddings, DecodeTarget, Abort, DecodeReserve, DecodeStart, Shutdown,
            PrefillStep, PrefillDone, RequestFailed, Reserved, DecodeStep, Preempted, Released, Idle, Encode,
            Encoded, EncodeFailed>(data[0], {begin, begin + (size - 1)});
  return 0;
}
