#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "io/expert_loads.h"
#include "io/expert_maps.h"
#include "policy/experts/load_window.h"
#include "policy/experts/types.h"

namespace trimtab::apps {

/// The dumps of a command: positional files, --matrix, --array, --physical-map, --window.
struct LoadArguments {
  std::vector<std::string> files;
  std::string matrix = "layers";
  io::LoadsOptions options;
};
void add_load_options(CLI::App& command, LoadArguments& arguments, bool required = true);
/// Reads them; how they were understood goes to `notes`.
base::Result<io::ExpertLoads> read_loads(const LoadArguments& arguments, std::ostream& notes);

/// --ep-size, --num-redundant-experts, --num-physical-experts, --num-nodes, --num-groups.
struct ShapeArguments {
  std::optional<std::int64_t> ep_size, redundant, physical, nodes, groups;
};
void add_shape_options(CLI::App& command, ShapeArguments& arguments);
/// `map`: one whose slots and ranks fill what was not given. Errors are the shape's, with the flags to set.
base::Result<experts::Shape> shape_of(const ShapeArguments& arguments, std::int32_t experts,
                                      const io::ExpertMaps* map, std::ostream& notes);

/// Reads a map and checks it: as many layers as the loads (or one for all), legal ids.
base::Result<io::ExpertMaps> read_map(const std::string& path, std::int32_t layers, std::int32_t experts);
/// One layer of it.
std::span<const std::int32_t> layer_of(const io::ExpertMaps& maps, std::int32_t layer);

base::Result<experts::LoadWindow> window_of(const io::ExpertLoads& loads, std::int32_t layer);

/// "44MB", "18.8 MB", "1.5GiB", "640": bytes. Errors name the flag, the value and the form.
base::Result<std::int64_t> bytes_of(const std::string& text, const std::string& flag);
/// "2ms", "500us", "1.5s": nanoseconds.
base::Result<std::int64_t> nanos_of(const std::string& text, const std::string& flag);
/// "81.7 GB", in powers of ten.
std::string bytes_text(double bytes);

/// --moves-max and --move-price: -1 is none given; what else is negative, or no number, is an error.
base::Status check_move_limits(std::int32_t moves_max, double move_price);

/// Ends the command with an invalid-argument error.
tl::unexpected<base::Error> wrong(std::string message);

}  // namespace trimtab::apps
