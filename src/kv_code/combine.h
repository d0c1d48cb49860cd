#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kv_code/coder.h"

namespace trimtab::kv_code {

/// Whether this processor multiplies whole registers in GF(2^8) by a bit matrix (GFNI, with AVX-512).
bool has_matrix_multiply();

/// out[r] = the sum of factors[r][j] x sources[j], `bytes` of each, for the first `rows` (1 or 2). Only where
/// `has_matrix_multiply`: one instruction for 64 products, where tables of half bytes take five.
void combine_by_matrix(const std::array<std::array<std::uint8_t, kData>, kParity>& factors,
                       std::uint32_t rows, const Coder::Sources& sources,
                       const std::array<std::byte*, kParity>& out, std::size_t bytes);

}  // namespace trimtab::kv_code
