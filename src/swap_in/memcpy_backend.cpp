#include "swap_in/memcpy_backend.h"

#include <cstring>

namespace trimtab::swap_in {

base::Status Backend::hold_stream(Marker, void*) {
  return base::fail(base::Code::kUnsupported, std::string{name()} + " has no device stream to hold",
                    "swap_in");
}

base::Status MemcpyBackend::start(std::span<const Copy> copies) {
  for (const Copy& copy : copies) std::memcpy(copy.destination, copy.source, copy.bytes);
  ++started_;
  return {};
}

}  // namespace trimtab::swap_in
