#pragma once

#include "policy/experts/plan/placement.h"

namespace trimtab::experts {

/// Fills an empty placement: copies by falling square of their load (ties by id), each to the rank with a
/// free slot whose load it overlaps least and that lacks the expert; when every rank with room holds it, a
/// full rank hands one of its copies to such a rank. Always succeeds when no expert has more copies than
/// ranks.
void construct(const Shape& shape, Placement& placement);

}  // namespace trimtab::experts
