#pragma once

#include <string>
#include <vector>

#include "policy/decode/study/closed_loop.h"

namespace trimtab::policy {

/// One line of the study's table: the same policy and conditions at several shapes (ranks x requests per
/// rank).
struct StudyRow {
  struct Shape {
    std::int64_t ranks = 32, batch = 16;
    double reference = 0;  // percent: what the request study or the goals say; 0: nothing
  };
  std::string condition, policy;
  StudyCase base;
  std::vector<Shape> shapes;
  bool must_match = false;  // the reference is a figure to reproduce rather than one to reach
};

/// Everything that docs/policies/decode.md prints: first the published figures that prove the model, then the
/// policies of this folder under each condition.
std::vector<StudyRow> study_rows();

}  // namespace trimtab::policy
