#include "io/expert_loads.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "io/expert_file.h"
#include "io/expert_maps.h"

namespace trimtab::io {

namespace {

constexpr std::int64_t kExpertsMax = 65'536, kLayersMax = 65'536;
constexpr std::array kLogicalNames = {"logical_count",
                                      "tokens_per_expert",
                                      "counts",
                                      "loads",
                                      "expert_count",
                                      "last_expert_load",
                                      "arr_0",
                                      "weight",
                                      "global_expert_load_window"};
constexpr std::array kPhysicalNames = {"expert_load_window", "expert_load_pass", "global_physical_count"};
constexpr std::array kMapNames = {"physical_to_logical_map", "physical_to_logical",
                                  "last_physical_to_logical_map"};

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "dump");
}

/// One file's counts, [steps, layers, width]; the steps of records carry their pass.
struct Piece {
  std::vector<std::int64_t> passes;  // empty: steps in order
  std::int64_t steps = 0, layers = 0, width = 0;
  std::vector<double> counts;
  bool physical = false;
};

base::Status check_shape(const ExpertArray& array, const Piece& piece) {
  if (piece.steps == 0 || piece.layers == 0 || piece.width == 0) {
    return bad(fmt::format("shape {} holds no step, layer or expert; dump at least one step with traffic",
                           shape_text(array.shape)));
  }
  if (piece.layers > kLayersMax || piece.width > kExpertsMax) {
    return bad(fmt::format(
        "shape {} means {} layers of {} experts; the last dimension is the expert, the one before "
        "it the layer: transpose the array",
        shape_text(array.shape), piece.layers, piece.width));
  }
  return {};
}

base::Result<Piece> piece_of(ExpertArray array, Matrix matrix, std::vector<std::string>& notes) {
  Piece piece;
  const auto& shape = array.shape;
  switch (shape.size()) {
    case 1:
      piece.steps = 1, piece.layers = 1, piece.width = shape[0];
      break;
    case 2:
      piece.steps = matrix == Matrix::kSteps ? shape[0] : 1;
      piece.layers = matrix == Matrix::kSteps ? 1 : shape[0];
      piece.width = shape[1];
      notes.push_back(
          matrix == Matrix::kSteps
              ? fmt::format("{} read as {} steps of one layer", shape_text(shape), shape[0])
              : fmt::format("{} read as one step of {} layers (--matrix steps reads {} steps of one "
                            "layer)",
                            shape_text(shape), shape[0], shape[0]));
      break;
    case 3:
      piece.steps = shape[0], piece.layers = shape[1], piece.width = shape[2];
      break;
    default:
      return bad(
          fmt::format("an array of shape {}; counts are [steps, layers, experts], [layers, experts] or "
                      "[steps, experts]",
                      shape_text(shape)));
  }
  TRIMTAB_TRY(check_shape(array, piece));
  piece.counts = std::move(array.values);
  return piece;
}

/// The passes of one file, in the order recorded.
base::Result<Piece> piece_of(std::vector<PassRecord>& records) {
  Piece piece;
  piece.physical = true;
  const std::vector<std::int64_t> shape = records.front().counts.shape;
  if (shape.size() != 2) {
    return bad(fmt::format("records of shape {}; they are [layers, slots]", shape_text(shape)));
  }
  piece.layers = shape[0], piece.width = shape[1];
  for (PassRecord& record : records) {
    if (record.counts.shape != shape) {
      return bad(fmt::format("the record of forward pass {} has shape {} and the first {}",
                             record.forward_pass, shape_text(record.counts.shape), shape_text(shape)));
    }
    piece.passes.push_back(record.forward_pass);
    piece.counts.insert(piece.counts.end(), record.counts.values.begin(), record.counts.values.end());
    record.counts.values = {};
  }
  piece.steps = static_cast<std::int64_t>(records.size());
  TRIMTAB_TRY(check_shape(ExpertArray{"", {piece.steps, shape[0], shape[1]}, {}}, piece));
  return piece;
}

template <class Names>
ExpertArray* first_of(ArrayFile& file, const Names& names) {
  for (const std::string_view name : names) {
    for (ExpertArray& array : file.arrays) {
      if (array.name == name) return &array;
    }
  }
  return nullptr;
}

/// The array that holds the counts, and whether it counts physical slots.
base::Result<std::pair<ExpertArray*, bool>> choose(ArrayFile& file, const std::string& wanted) {
  if (!wanted.empty()) {
    for (ExpertArray& array : file.arrays) {
      if (array.name == wanted) {
        const bool physical =
            std::find(kPhysicalNames.begin(), kPhysicalNames.end(), wanted) != kPhysicalNames.end();
        return std::pair(&array, physical);
      }
    }
    return bad(fmt::format("no array {} in the file; it holds {}", wanted, file.contents()));
  }
  if (ExpertArray* array = first_of(file, kLogicalNames)) return std::pair(array, false);
  if (ExpertArray* array = first_of(file, kPhysicalNames)) return std::pair(array, true);
  if (file.arrays.size() == 1 && first_of(file, kMapNames) == nullptr)
    return std::pair(&file.arrays[0], false);
  return bad(
      fmt::format("which array holds the counts? Name it with --array; the file holds {}", file.contents()));
}

/// counts by slot -> counts by logical expert, with `map` [layers, slots] or [slots]. Slots that hold nothing
/// are -1 in the engines' maps; the tokens that they counted belong to no expert.
base::Status fold(Piece& piece, const ExpertArray& map, std::int64_t elements_max) {
  const bool one = map.shape.size() == 1;
  if ((!one && map.shape.size() != 2) || map.shape.back() != piece.width ||
      (!one && map.shape[0] != piece.layers)) {
    return bad(fmt::format(
        "counts of {} layers x {} slots and a physical_to_logical map of shape {}; they must agree",
        piece.layers, piece.width, shape_text(map.shape)));
  }
  double top = -1;
  for (std::size_t i = 0; i < map.values.size(); ++i) {
    const double id = map.values[i];
    if (!(id >= -1 && id < static_cast<double>(kExpertsMax)) || id != std::floor(id)) {
      return bad(fmt::format(
          "the physical_to_logical map holds {} in place {}; experts are 0 to {}, -1 for an empty "
          "slot",
          id, i, kExpertsMax - 1));
    }
    top = std::max(top, id);
  }
  if (top < 0) return bad("the physical_to_logical map names no expert");
  const auto experts = static_cast<std::size_t>(top) + 1;
  const auto width = static_cast<std::size_t>(piece.width), layers = static_cast<std::size_t>(piece.layers);
  const std::size_t rows = static_cast<std::size_t>(piece.steps) * layers;
  // A small file may name a large expert: what it unfolds to is bounded as what it holds is.
  if (rows * experts > static_cast<std::size_t>(std::max<std::int64_t>(0, elements_max))) {
    return base::fail(
        base::Code::kTooLarge,
        fmt::format("the physical_to_logical map names expert {}, and {} steps x {} layers x {} "
                    "experts are more than {} counts, what one read may hold; mend the map, or "
                    "dump fewer steps",
                    experts - 1, piece.steps, piece.layers, experts, elements_max));
  }
  std::vector<double> folded(rows * experts, 0);
  for (std::size_t row = 0; row < rows; ++row) {
    const std::size_t from = one ? 0 : row % layers * width;
    for (std::size_t slot = 0; slot < width; ++slot) {
      const double id = map.values[from + slot];
      if (id >= 0) folded[row * experts + static_cast<std::size_t>(id)] += piece.counts[row * width + slot];
    }
  }
  piece.counts = std::move(folded);
  piece.width = static_cast<std::int64_t>(experts);
  return {};
}

base::Status check_values(const Piece& piece) {
  for (std::size_t i = 0; i < piece.counts.size(); ++i) {
    const double value = piece.counts[i];
    if (value >= 0 && value <= std::numeric_limits<float>::max()) continue;
    const auto at = static_cast<std::int64_t>(i);
    return bad(
        fmt::format("step {}, layer {}, {} {}: {} is no count of tokens; counts are finite and not negative. "
                    "Mend the recorder, or leave the step out",
                    at / (piece.layers * piece.width), at / piece.width % piece.layers,
                    piece.physical ? "slot" : "expert", at % piece.width, value));
  }
  return {};
}

base::Result<Piece> read_piece(const std::string& path, const LoadsOptions& options, std::int64_t left,
                               std::vector<std::string>& notes) {
  auto file = read_array_file(path, "", left);
  if (!file) return tl::unexpected(file.error());
  for (const std::string& note : file->notes) notes.push_back(path + ": " + note);
  std::vector<std::string> own;
  auto piece = [&]() -> base::Result<Piece> {
    if (!file->records.empty() && options.array.empty()) return piece_of(file->records);
    auto chosen = choose(*file, options.array);
    if (!chosen) return tl::unexpected(chosen.error());
    auto out = piece_of(std::exchange(*chosen->first, {}), options.matrix, own);
    if (out) out->physical = chosen->second || !options.physical_map.empty();
    return out;
  }();
  if (piece) {
    for (const std::string& note : own) notes.push_back(path + ": " + note);
    if (const auto status = check_values(*piece); !status) return tl::unexpected(status.error());
  }
  if (!piece || !piece->physical) return piece;
  const ExpertArray* map = first_of(*file, kMapNames);
  ExpertArray given;
  if (!options.physical_map.empty()) {
    const auto maps = read_expert_maps(options.physical_map);
    if (!maps) return tl::unexpected(maps.error());
    given.shape = {maps->layers, maps->slots};
    if (maps->layers == 1) given.shape = {maps->slots};
    given.values.assign(maps->logical.begin(), maps->logical.end());
    map = &given;
  }
  if (map == nullptr) {
    return bad(
        "the counts are by physical slot and the file has no physical_to_logical_map; give the map in force "
        "with --physical-map FILE");
  }
  TRIMTAB_TRY(fold(*piece, *map, left));
  return piece;
}

/// Ranks that recorded the same passes add up; everything else follows in time.
class Joiner {
 public:
  base::Status add(Piece piece) {
    if (experts_ == 0) {
      layers_ = piece.layers, experts_ = piece.width, by_pass_ = !piece.passes.empty();
    }
    if (piece.layers != layers_ || piece.width != experts_ || by_pass_ == piece.passes.empty()) {
      return bad(fmt::format(
          "this file has {} layers of {} experts{} and the first has {} of {}{}; give files of one "
          "model and one recorder mode",
          piece.layers, piece.width, piece.passes.empty() ? "" : " by forward pass", layers_, experts_,
          by_pass_ ? " by forward pass" : ""));
    }
    const auto row = static_cast<std::size_t>(layers_ * experts_);
    if (!by_pass_) {
      counts_.insert(counts_.end(), piece.counts.begin(), piece.counts.end());
      return {};
    }
    for (std::size_t i = 0; i < piece.passes.size(); ++i) {
      const auto [found, fresh] = place_.try_emplace(piece.passes[i], place_.size());
      if (fresh) counts_.resize(counts_.size() + row, 0);
      double* to = counts_.data() + found->second * row;
      for (std::size_t k = 0; k < row; ++k) to[k] += piece.counts[i * row + k];
    }
    return {};
  }

  ExpertLoads finish(std::int32_t window) {
    const auto row = static_cast<std::size_t>(layers_ * experts_);
    if (by_pass_) {
      std::vector<double> ordered;
      ordered.reserve(counts_.size());
      for (const auto& [pass, at] : place_) {
        const auto from = counts_.begin() + static_cast<std::ptrdiff_t>(at * row);
        ordered.insert(ordered.end(), from, from + static_cast<std::ptrdiff_t>(row));
      }
      counts_ = std::move(ordered);
    }
    const std::size_t steps = counts_.size() / row;
    if (window > 0 && static_cast<std::size_t>(window) < steps) {
      counts_.erase(counts_.begin(), counts_.end() - static_cast<std::ptrdiff_t>(row) * window);
    }
    ExpertLoads loads;
    loads.steps = static_cast<std::int32_t>(counts_.size() / row);
    loads.layers = static_cast<std::int32_t>(layers_);
    loads.experts = static_cast<std::int32_t>(experts_);
    loads.counts = std::move(counts_);
    return loads;
  }

  std::int64_t elements() const { return static_cast<std::int64_t>(counts_.size()); }

 private:
  std::int64_t layers_ = 0, experts_ = 0;
  bool by_pass_ = false;
  std::map<std::int64_t, std::size_t> place_;  // forward pass -> row
  std::vector<double> counts_;
};

}  // namespace

base::Result<ExpertLoads> read_expert_loads(const std::vector<std::string>& paths,
                                            const LoadsOptions& options) {
  if (paths.empty()) return bad("no file of counts; name at least one");
  if (options.window < 0)
    return bad(fmt::format("--window {}; give 1 or more steps, 0 for all", options.window));
  Joiner joiner;
  std::vector<std::string> notes;
  for (const std::string& path : paths) {
    const auto with_path = [&](base::Error error) {
      if (error.message.find(path) == std::string::npos) error.message = path + ": " + error.message;
      return tl::unexpected(std::move(error));
    };
    auto piece = read_piece(path, options, options.elements_max - joiner.elements(), notes);
    if (!piece) return with_path(piece.error());
    if (auto status = joiner.add(std::move(*piece)); !status) return with_path(status.error());
  }
  ExpertLoads loads = joiner.finish(options.window);
  if (options.window > loads.steps) {
    notes.push_back(fmt::format("--window {} and only {} steps were recorded: all are used", options.window,
                                loads.steps));
  }
  loads.notes = std::move(notes);
  return loads;
}

}  // namespace trimtab::io
