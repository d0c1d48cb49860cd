#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/error.h"
#include "model/profile.h"

namespace trimtab::config {

/// Loads a model profile. A name without '/' and without ".toml" is `profiles_dir`/NAME.toml; anything else
/// is a path. Every fault names the file, the line, the value and what would be right.
base::Result<model::Profile> load_profile(const std::string& name_or_path, const std::string& profiles_dir);

/// The same from text; `origin` stands for the path in messages.
base::Result<model::Profile> parse_profile(std::string_view text, const std::string& origin);

/// How a calibration came about; kept in its file for the reader.
struct CalibrationNote {
  std::string machine;            // what was measured on
  std::int64_t samples = 0;       // steps measured
  double error_ratio_mean = 0.0;  // mean |predicted - actual| / actual over the samples
  double error_ratio_worst = 0.0;
};

struct Calibration {
  model::CostSpec cost;  // replaces `Profile::cost`
  CalibrationNote note;
};

/// A calibration file: a `[cost]` table as in a profile, and a `[calibration]` table that says where it comes
/// from. `load_cost` reads what `cost_toml` writes; a profile takes both tables as they are.
std::string cost_toml(const model::QuadraticCost& cost, const CalibrationNote& note);
base::Result<Calibration> load_cost(const std::string& path);

}  // namespace trimtab::config
