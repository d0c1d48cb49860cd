#pragma once

#include <string>
#include <vector>

#include "io/expert_array.h"

namespace trimtab::io {

/// What a CSV file of counts holds: [steps, layers, experts] when it names steps or layers, else the plain
/// [rows, columns].
struct CsvCounts {
  ExpertArray array;
  std::vector<std::string> notes;
};

/// Fields are separated by commas, semicolons or tabs (whichever the first line has); '#' begins a comment
/// line. Three forms, told apart by the header: columns step, layer, expert, count (a row each; absent rows
/// are zero); one column per expert named e0, e1, ... (or expert0, expert_0), beside optional step and layer
/// and others that are ignored; no header: a matrix. Errors name the line: a field that is no number, another
/// number of fields than the header's (with a word for a last line that was cut short), a repeated (step,
/// layer, expert), experts that are negative or above 65,535.
base::Result<CsvCounts> read_csv(ByteSource& source, std::int64_t elements_max = kExpertElementsMax);

}  // namespace trimtab::io
