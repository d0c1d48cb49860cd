#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/expert_array.h"

namespace trimtab::io {

/// One pass of SGLang's recorder (modes per_pass and per_token): counts by physical slot, [layers, slots].
struct PassRecord {
  std::int64_t forward_pass = 0;
  ExpertArray counts;
};

/// What a file of any of the formats holds, by name. A bare array has an empty name.
struct ArrayFile {
  std::vector<ExpertArray> arrays;
  std::vector<PassRecord> records;
  std::vector<std::string> notes;
  std::vector<std::string> others;  // names that are no arrays of numbers, with the reason

  const ExpertArray* find(std::string_view name) const;
  /// "logical_count [1000, 61, 256], rank: no array of numbers".
  std::string contents() const;
};

/// Opens a file by its first bytes (npy, npz, torch, JSON, CSV). `only`: the name to read of several.
base::Result<ArrayFile> read_array_file(const std::string& path, std::string_view only,
                                        std::int64_t elements_max = kExpertElementsMax);
/// The same of bytes in memory.
base::Result<ArrayFile> read_array_bytes(std::span<const std::byte> bytes, std::string_view only,
                                         std::int64_t elements_max = kExpertElementsMax);

}  // namespace trimtab::io
