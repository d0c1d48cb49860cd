#pragma once

#include <cstddef>

namespace trimtab::kv_code {

/// memcpy past the caches: what is copied is in them (it was just verified), where it goes is for somebody
/// else, and a store that first fetches the line it overwrites moves half as much again. In whole lines of
/// 64 bytes; a few bytes at both ends go the ordinary way.
void copy_past(std::byte* to, const std::byte* from, std::size_t bytes);

/// What was copied so is there for other threads that are told of it after this.
void copied_past();

}  // namespace trimtab::kv_code
