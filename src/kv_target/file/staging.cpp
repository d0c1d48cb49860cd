#include "kv_target/file/staging.h"

#include <algorithm>
#include <new>

namespace trimtab::kv_target::file {

namespace {

std::uint64_t pages_of(std::size_t bytes) { return (bytes + Staging::kPageBytes - 1) / Staging::kPageBytes; }

}  // namespace

void Staging::Free::operator()(std::byte* memory) const {
  ::operator delete[](memory, std::align_val_t{kPageBytes});
}

Staging::Staging(std::size_t bytes)
    : bytes_(std::max<std::size_t>(pages_of(bytes), 4) * kPageBytes),
      memory_(static_cast<std::byte*>(::operator new[](bytes_, std::align_val_t{kPageBytes}))),
      pages_(bytes_ / kPageBytes) {
  pages_.give(0, bytes_ / kPageBytes);
}

std::byte* Staging::take(std::size_t bytes) {
  const auto page = pages_.take(pages_of(bytes));
  return page ? memory_.get() + *page * kPageBytes : nullptr;
}

void Staging::give(std::byte* memory, std::size_t bytes) {
  pages_.give(static_cast<std::uint64_t>(memory - memory_.get()) / kPageBytes, pages_of(bytes));
}

}  // namespace trimtab::kv_target::file
