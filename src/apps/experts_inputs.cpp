#include "apps/experts_inputs.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <iostream>
#include <limits>

namespace trimtab::apps {

namespace {

struct Unit {
  std::string_view name;
  double factor;
};

constexpr std::int64_t kCountMax = 65'536;  // what map files may hold, too

/// A positive number with one of the units behind it.
std::optional<double> with_unit(std::string_view text, std::span<const Unit> units) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || !std::isfinite(value) || value < 0) return std::nullopt;
  std::string_view unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const Unit& known : units) {
    if (unit == known.name && value * known.factor < 9e18) return value * known.factor;
  }
  return std::nullopt;
}

base::Result<std::int32_t> small(std::optional<std::int64_t> value, std::int32_t otherwise,
                                 const char* flag) {
  if (!value) return otherwise;
  if (*value < 0 || *value > kCountMax) {
    return wrong(fmt::format("{} {}: give a number from 0 to {}", flag, *value, kCountMax));
  }
  return static_cast<std::int32_t>(*value);
}

/// The flag to turn, by what the shape's error is about.
std::string_view flag_of(std::string_view message) {
  if (message.find("physical slots") != std::string_view::npos) {
    return " (--ep-size, --num-redundant-experts or --num-physical-experts)";
  }
  if (message.find("groups") != std::string_view::npos) return " (--num-groups)";
  if (message.find("nodes") != std::string_view::npos) return " (--num-nodes)";
  return " (--ep-size)";
}

/// Physical experts from the flags, or from the map in force.
base::Result<std::int32_t> slots_of(const ShapeArguments& arguments, std::int32_t experts, std::int32_t ranks,
                                    const io::ExpertMaps* map, std::ostream& notes) {
  const auto physical = small(arguments.physical, 0, "--num-physical-experts");
  const auto redundant = small(arguments.redundant, 0, "--num-redundant-experts");
  if (!physical) return physical;
  if (!redundant) return redundant;
  if (arguments.physical) {
    if (arguments.redundant && *physical != experts + *redundant) {
      return wrong(
          fmt::format("--num-physical-experts {} is not {} experts + --num-redundant-experts {}; give one "
                      "of the two",
                      *physical, experts, *redundant));
    }
    return *physical;
  }
  if (!arguments.redundant && map != nullptr) return map->slots;
  if (ranks < 1) return experts + *redundant;
  const std::int64_t slots = experts::physical_slots(experts, *redundant, ranks);
  if (slots != experts + *redundant) {
    notes << fmt::format("note: {} experts + {} redundant rounded up to {} physical experts, {} a rank\n",
                         experts, *redundant, slots, slots / ranks);
  }
  return static_cast<std::int32_t>(slots);
}

}  // namespace

tl::unexpected<base::Error> wrong(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message));
}

base::Status check_move_limits(std::int32_t moves_max, double move_price) {
  if (moves_max < -1) {
    return wrong(fmt::format("--moves-max {}: give a number of copies, 0 or more", moves_max));
  }
  if (!(move_price >= 0) && move_price != -1) {
    return wrong(fmt::format("--move-price {}: give a part of the peaks, such as 0.0005", move_price));
  }
  return {};
}

void add_load_options(CLI::App& command, LoadArguments& arguments, bool required) {
  CLI::Option* files = command.add_option("loads", arguments.files,
                                          "dumps of tokens per expert: .npz, .npy, .csv, .json, .pt "
                                          "(SGLang's recorder); several follow one another in "
                                          "time, per-pass dumps of several ranks add up");
  if (required) files->required();
  command
      .add_option("--matrix", arguments.matrix,
                  "what a 2-dimensional array is: one step of all `layers`, or the `steps` of one layer")
      ->check(CLI::IsMember({"layers", "steps"}))
      ->capture_default_str();
  command.add_option("--array", arguments.options.array, "the array's name, in a file of several");
  command.add_option("--physical-map", arguments.options.physical_map,
                     "counts are by physical slot: the map that was in force, to fold them to experts");
  command.add_option("--window", arguments.options.window, "use the last so many steps; 0: all")
      ->capture_default_str();
}

base::Result<io::ExpertLoads> read_loads(const LoadArguments& arguments, std::ostream& notes) {
  io::LoadsOptions options = arguments.options;
  options.matrix = arguments.matrix == "steps" ? io::Matrix::kSteps : io::Matrix::kLayers;
  auto loads = io::read_expert_loads(arguments.files, options);
  if (loads) {
    for (const std::string& note : loads->notes) notes << "note: " << note << "\n";
  }
  return loads;
}

void add_shape_options(CLI::App& command, ShapeArguments& arguments) {
  command.add_option("--ep-size,--ep", arguments.ep_size, "ranks of the expert-parallel group");
  command.add_option("--num-redundant-experts,--ep-num-redundant-experts", arguments.redundant,
                     "copies besides one of each expert; rounded up to fill every rank");
  command.add_option("--num-physical-experts,--num-replicas", arguments.physical,
                     "slots of all ranks, instead of --num-redundant-experts");
  command.add_option("--num-nodes,--nnodes", arguments.nodes, "nodes that the ranks stand in (1)");
  command.add_option("--num-groups", arguments.groups, "expert groups of the model (1; DeepSeek-V3: 8)");
}

base::Result<experts::Shape> shape_of(const ShapeArguments& arguments, std::int32_t experts,
                                      const io::ExpertMaps* map, std::ostream& notes) {
  experts::Shape shape;
  shape.experts = experts;
  const bool known = map != nullptr && map->ranks > 0;
  if (!arguments.ep_size && !known) {
    return wrong("how many ranks share the experts? Give --ep-size (for example --ep-size 8)");
  }
  const auto ranks = small(arguments.ep_size, known ? map->ranks : 0, "--ep-size");
  const auto nodes = small(arguments.nodes, 1, "--num-nodes");
  const auto groups = small(arguments.groups, 1, "--num-groups");
  for (const auto* part : {&ranks, &nodes, &groups}) {
    if (!*part) return tl::unexpected(part->error());
  }
  shape.ranks = *ranks, shape.nodes = *nodes, shape.groups = *groups;
  const auto slots = slots_of(arguments, experts, shape.ranks, map, notes);
  if (!slots) return tl::unexpected(slots.error());
  shape.slots = *slots;
  if (auto status = experts::check(shape); !status) {
    status.error().message += flag_of(status.error().message);
    status.error().origin.clear();
    return tl::unexpected(status.error());
  }
  return shape;
}

base::Result<io::ExpertMaps> read_map(const std::string& path, std::int32_t layers, std::int32_t experts) {
  auto maps = io::read_expert_maps(path);
  if (!maps) return maps;
  if (maps->layers != layers && maps->layers != 1) {
    return wrong(fmt::format("{} has {} layers and the loads have {}; give the map of the same model", path,
                             maps->layers, layers));
  }
  if (maps->experts > experts) {
    return wrong(
        fmt::format("{} names expert {} and the loads have {} experts (0 to {}); give the map of the same "
                    "model",
                    path, maps->experts - 1, experts, experts - 1));
  }
  return maps;
}

std::span<const std::int32_t> layer_of(const io::ExpertMaps& maps, std::int32_t layer) {
  const auto slots = static_cast<std::size_t>(maps.slots);
  return std::span(maps.logical)
      .subspan(maps.layers == 1 ? 0 : static_cast<std::size_t>(layer) * slots, slots);
}

base::Result<experts::LoadWindow> window_of(const io::ExpertLoads& loads, std::int32_t layer) {
  const auto experts = static_cast<std::size_t>(loads.experts);
  return experts::LoadWindow::make(loads.counts.data() + static_cast<std::size_t>(layer) * experts,
                                   loads.steps, loads.experts,
                                   static_cast<std::ptrdiff_t>(loads.layers) * loads.experts);
}

base::Result<std::int64_t> bytes_of(const std::string& text, const std::string& flag) {
  constexpr std::array<Unit, 12> units = {{{"", 1},
                                           {"B", 1},
                                           {"kB", 1e3},
                                           {"KB", 1e3},
                                           {"MB", 1e6},
                                           {"GB", 1e9},
                                           {"TB", 1e12},
                                           {"KiB", 1024.0},
                                           {"MiB", 1024.0 * 1024},
                                           {"GiB", 1024.0 * 1024 * 1024},
                                           {"M", 1e6},
                                           {"G", 1e9}}};
  const auto bytes = with_unit(text, units);
  if (bytes && *bytes >= 1) return static_cast<std::int64_t>(std::llround(*bytes));
  return wrong(fmt::format("{} {}: give a positive size such as 44MB, 18.8MB or 1.5GiB", flag, text));
}

base::Result<std::int64_t> nanos_of(const std::string& text, const std::string& flag) {
  constexpr std::array<Unit, 4> units = {{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};
  const auto nanos = with_unit(text, units);
  if (nanos) return static_cast<std::int64_t>(std::llround(*nanos));
  return wrong(fmt::format("{} {}: give a time with its unit, such as 2ms, 500us or 1.5s", flag, text));
}

std::string bytes_text(double bytes) {
  for (const Unit& unit : {Unit{"TB", 1e12}, Unit{"GB", 1e9}, Unit{"MB", 1e6}, Unit{"kB", 1e3}}) {
    if (bytes >= unit.factor) {
      const double value = bytes / unit.factor;
      return fmt::format("{:.{}f} {}", value, value < 10 ? 2 : 1, unit.name);
    }
  }
  return fmt::format("{:.0f} B", bytes);
}

}  // namespace trimtab::apps
