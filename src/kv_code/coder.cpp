#include "kv_code/coder.h"

#include <isa-l.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"
#include "kv_code/combine.h"
#include "kv_code/galois.h"

namespace trimtab::kv_code {
namespace {

using Row = std::array<std::uint8_t, kData>;

/// How shard `shard` is made of the data shards.
Row row_of(std::uint32_t shard) {
  Row row{};
  for (std::uint32_t i = 0; i < kData; ++i) {
    if (shard < kData) {
      row[i] = shard == i ? 1 : 0;
    } else {
      row[i] = shard == kData ? 1 : kGalois.power[i];
    }
  }
  return row;
}

/// By Gauss and Jordan. Any ten rows of the code are independent.
std::array<Row, kData> inverse(std::array<Row, kData> matrix) {
  std::array<Row, kData> out{};
  for (std::uint32_t i = 0; i < kData; ++i) out[i][i] = 1;
  for (std::uint32_t column = 0; column < kData; ++column) {
    std::uint32_t pivot = column;
    while (matrix[pivot][column] == 0) {
      ++pivot;
      TRIMTAB_CHECK(pivot < kData);
    }
    std::swap(matrix[pivot], matrix[column]);
    std::swap(out[pivot], out[column]);
    const std::uint8_t scale = kGalois.inverse(matrix[column][column]);
    for (std::uint32_t j = 0; j < kData; ++j) {
      matrix[column][j] = kGalois.multiply(matrix[column][j], scale);
      out[column][j] = kGalois.multiply(out[column][j], scale);
    }
    for (std::uint32_t i = 0; i < kData; ++i) {
      const std::uint8_t factor = matrix[i][column];
      if (i == column || factor == 0) continue;
      for (std::uint32_t j = 0; j < kData; ++j) {
        matrix[i][j] ^= kGalois.multiply(factor, matrix[column][j]);
        out[i][j] ^= kGalois.multiply(factor, out[column][j]);
      }
    }
  }
  return out;
}

constexpr std::size_t kRowTable = std::size_t{32} * kData;  // bytes of ISA-L's table for one row

/// ISA-L's arguments are not const.
unsigned char* bytes_of(const std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(const_cast<std::byte*>(bytes));
}

void combine_tables(const std::uint8_t* tables, std::uint32_t rows, const Coder::Sources& sources,
                    std::byte** out, std::size_t bytes) {
  std::array<unsigned char*, kData> in{};
  std::array<unsigned char*, kParity> to{};
  std::ranges::transform(sources, in.begin(), bytes_of);
  for (std::uint32_t r = 0; r < rows; ++r) to[r] = bytes_of(out[r]);
  ec_encode_data(static_cast<int>(bytes), kData, static_cast<int>(rows), const_cast<std::uint8_t*>(tables),
                 in.data(), to.data());
}

void combine_portable(const Row& factors, const Coder::Sources& sources, std::byte* out, std::size_t bytes) {
  std::fill_n(out, bytes, std::byte{0});
  for (std::uint32_t j = 0; j < kData; ++j) {
    if (factors[j] == 0) continue;
    std::array<std::byte, 256> times{};
    for (std::uint32_t v = 0; v < 256; ++v)
      times[v] = std::byte{kGalois.multiply(factors[j], static_cast<std::uint8_t>(v))};
    for (std::size_t i = 0; i < bytes; ++i) out[i] ^= times[std::to_integer<std::uint8_t>(sources[j][i])];
  }
}

}  // namespace

Coder::Coder(Form form)
    : form_(form),
      by_matrix_(form == Form::kFast && has_matrix_multiply()),
      index_(std::size_t{1} << kShards, 0) {
  std::array<std::uint8_t, kData * kParity> rows{};
  for (std::uint32_t p = 0; p < kParity; ++p) {
    encode_factors_[p] = row_of(kData + p);
    std::ranges::copy(encode_factors_[p], rows.begin() + p * kData);
  }
  encode_tables_.resize(kRowTable * kParity);
  ec_init_tables(kData, kParity, rows.data(), encode_tables_.data());
  for (std::uint32_t a = 0; a < kShards; ++a)
    for (std::uint32_t b = a; b < kShards; ++b) make_pattern(static_cast<ShardSet>(1U << a | 1U << b));
}

void Coder::make_pattern(ShardSet lost) {
  Pattern pattern;
  std::array<Row, kData> rows{};
  std::uint32_t sources = 0;
  for (std::uint32_t s = 0; s < kShards && sources < kData; ++s) {
    if (has(lost, s)) continue;
    pattern.sources[sources] = static_cast<std::uint8_t>(s);
    rows[sources++] = row_of(s);
  }
  const std::array<Row, kData> data = inverse(rows);  // data shard i = sum of data[i][j] x source j
  std::uint32_t at = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (!has(lost, s)) continue;
    const Row of_data = row_of(s);
    Row& factors = pattern.factors[at];
    for (std::uint32_t j = 0; j < kData; ++j)
      for (std::uint32_t i = 0; i < kData; ++i) factors[j] ^= kGalois.multiply(of_data[i], data[i][j]);
    pattern.tables.resize(kRowTable * ++at);
    ec_init_tables(kData, 1, factors.data(), pattern.tables.data() + kRowTable * (at - 1));
  }
  index_[lost] = static_cast<std::uint8_t>(patterns_.size());
  patterns_.push_back(std::move(pattern));
}

void Coder::encode(const Sources& data, std::array<std::byte*, kParity> parity, std::size_t bytes) const {
  if (by_matrix_) {
    combine_by_matrix(encode_factors_, kParity, data, parity, bytes);
  } else if (form_ != Form::kPortable) {
    combine_tables(encode_tables_.data(), kParity, data, parity.data(), bytes);
  } else {
    for (std::uint32_t p = 0; p < kParity; ++p) combine_portable(encode_factors_[p], data, parity[p], bytes);
  }
}

void Coder::recover(const std::array<std::byte*, kShards>& shards, ShardSet present, ShardSet wanted,
                    std::size_t bytes) const {
  TRIMTAB_CHECK((present & wanted) == 0 && std::popcount(present) >= static_cast<int>(kData));
  if (wanted == 0) return;
  const auto lost = static_cast<ShardSet>(kAllShards & ~present);
  const Pattern& how = patterns_[index_[lost]];
  Sources sources{};
  for (std::uint32_t j = 0; j < kData; ++j) sources[j] = shards[how.sources[j]];
  std::array<std::byte*, kParity> out{};
  std::uint32_t first = kParity, rows = 0, at = 0;
  for (std::uint32_t s = 0; s < kShards; ++s) {
    if (!has(lost, s)) continue;
    if (has(wanted, s)) {
      first = std::min(first, at);
      out[rows++] = shards[s];
    }
    ++at;
  }
  // The wanted rows lie one after the other.
  if (by_matrix_) {
    combine_by_matrix({how.factors[first], how.factors[first + rows - 1]}, rows, sources, out, bytes);
  } else if (form_ != Form::kPortable) {
    combine_tables(how.tables.data() + first * kRowTable, rows, sources, out.data(), bytes);
  } else {
    for (std::uint32_t r = 0; r < rows; ++r) combine_portable(how.factors[first + r], sources, out[r], bytes);
  }
}

const Coder& coder() {
  static const Coder one;
  return one;
}

}  // namespace trimtab::kv_code
