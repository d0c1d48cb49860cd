#pragma once

#include "swap_in/backend.h"

namespace trimtab::swap_in {

/// "Device" memory that is this process's own: the calling thread copies, and everything has landed when
/// `start` returns. What the CPU engine uses, and the yardstick of the others.
class MemcpyBackend final : public Backend {
 public:
  std::string_view name() const override { return "memcpy"; }
  std::uint32_t batch_max() const override { return 64; }
  base::Status start(std::span<const Copy> copies) override;
  base::Result<Marker> mark() override { return started_; }
  base::Result<bool> reached(Marker marker) override { return marker <= started_; }
  base::Status wait(Marker) override { return {}; }

 private:
  Marker started_ = 0;
};

}  // namespace trimtab::swap_in
