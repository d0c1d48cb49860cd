#include "io/expert_routing.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "io/expert_loads.h"
#include "io/npz.h"

namespace trimtab::io {
namespace {

constexpr std::int64_t kExpertsMax = 65'536;

tl::unexpected<base::Error> wrong(const std::string& path, const std::string& message) {
  return base::fail(base::Code::kInvalidArgument, fmt::format("{}: {}", path, message), "routing");
}

/// The recorded layer that the simulated one stands for.
std::int64_t spaced(std::int32_t layer, std::int32_t of, std::int64_t recorded) {
  return recorded * layer / of;
}

base::Status check_layers(const std::string& path, std::int64_t recorded, std::int32_t layers) {
  if (recorded >= layers) return {};
  return wrong(path, fmt::format("{} recorded layers, and {} are to be simulated: set layers to {} or less",
                                 recorded, layers, recorded));
}

base::Status check_experts(const std::string& path, std::int64_t recorded, std::int32_t experts,
                           bool exactly) {
  if (recorded > kExpertsMax)
    return wrong(path, fmt::format("{} experts: at most {} can be simulated", recorded, kExpertsMax));
  if (experts == 0 || recorded == experts || (!exactly && recorded < experts)) return {};
  return wrong(path, fmt::format("routing of {} experts for a model of {}: leave experts out or set it to {}",
                                 recorded, experts, recorded));
}

/// Counts to shares, row by row; what nothing was routed to is taken to be even.
void normalize(std::span<double> shares, std::size_t experts) {
  for (std::size_t at = 0; at < shares.size(); at += experts) {
    const auto row = shares.subspan(at, experts);
    double sum = 0;
    for (const double count : row) sum += count;
    for (double& share : row) share = sum > 0 ? share / sum : 1.0 / static_cast<double>(experts);
  }
}

/// One more than the largest id.
base::Result<std::int64_t> experts_in(const std::string& path, const ExpertArray& ids) {
  double most = 0;
  for (const double id : ids.values) {
    if (!(id >= 0) || id != std::floor(id) || id >= kExpertsMax) {
      return wrong(path, fmt::format("{} has the id {}: ids are whole numbers from 0 to {}", ids.name, id,
                                     kExpertsMax - 1));
    }
    most = std::max(most, id);
  }
  return static_cast<std::int64_t>(most) + 1;
}

/// All arrays must be of one model.
base::Status check_ids(const std::string& path, const std::vector<ExpertArray>& arrays) {
  for (const ExpertArray& ids : arrays) {
    if (ids.shape.size() != 4 || ids.values.empty()) {
      return wrong(path, fmt::format("{} is {}: ids of chosen experts are [windows, tokens, layers, choices]",
                                     ids.name, shape_text(ids.shape)));
    }
    if (!std::ranges::equal(std::span(ids.shape).subspan(1), std::span(arrays[0].shape).subspan(1))) {
      return wrong(path,
                   fmt::format("{} is {} and {} {}: all texts must have as many tokens a window, "
                               "layers and choices",
                               ids.name, shape_text(ids.shape), arrays[0].name, shape_text(arrays[0].shape)));
    }
  }
  return {};
}

base::Result<ExpertRouting> of_ids(const std::string& path, const std::vector<ExpertArray>& arrays,
                                   std::int32_t layers, std::int32_t experts) {
  TRIMTAB_TRY(check_ids(path, arrays));
  std::int64_t recorded = 0;
  for (const ExpertArray& ids : arrays) {
    const auto most = experts_in(path, ids);
    if (!most) return tl::unexpected<base::Error>(most.error());
    recorded = std::max(recorded, *most);
  }
  const std::int64_t tokens = arrays[0].shape[1], all_layers = arrays[0].shape[2],
                     choices = arrays[0].shape[3];
  TRIMTAB_TRY(check_layers(path, all_layers, layers));
  TRIMTAB_TRY(check_experts(path, recorded, experts, false));
  ExpertRouting out;
  out.recorded_layers = static_cast<std::int32_t>(all_layers);
  out.per_token = static_cast<std::int32_t>(choices);
  model::ExpertPopularity& popularity = out.popularity;
  popularity.layers = layers;
  popularity.experts = experts > 0 ? experts : static_cast<std::int32_t>(recorded);
  popularity.window_tokens = tokens;
  const auto width = static_cast<std::size_t>(popularity.experts);
  for (std::size_t text = 0; text < arrays.size(); ++text) {
    const ExpertArray& ids = arrays[text];
    for (std::int64_t window = 0; window < ids.shape[0]; ++window) {
      popularity.texts.push_back(static_cast<std::int32_t>(text));
      for (std::int32_t layer = 0; layer < layers; ++layer) {
        const std::size_t row = popularity.shares.size();
        popularity.shares.resize(row + width);
        for (std::int64_t token = 0; token < tokens; ++token) {
          const std::int64_t at =
              ((window * tokens + token) * all_layers + spaced(layer, layers, all_layers)) * choices;
          for (std::int64_t choice = at; choice < at + choices; ++choice)
            popularity.shares[row + static_cast<std::size_t>(ids.values[static_cast<std::size_t>(choice)])] +=
                1;
        }
      }
    }
  }
  popularity.domains = static_cast<std::int32_t>(popularity.texts.size());
  normalize(popularity.shares, width);
  return out;
}

base::Result<ExpertRouting> of_counts(const std::string& path, std::int32_t layers, std::int32_t experts) {
  const auto loads = read_expert_loads({path}, {});
  if (!loads) return tl::unexpected<base::Error>(loads.error());
  TRIMTAB_TRY(check_layers(path, loads->layers, layers));
  TRIMTAB_TRY(check_experts(path, loads->experts, experts, true));
  ExpertRouting out;
  out.recorded_layers = loads->layers;
  model::ExpertPopularity& popularity = out.popularity;
  popularity.layers = layers;
  popularity.experts = loads->experts;
  popularity.domains = loads->steps;
  popularity.texts.assign(static_cast<std::size_t>(loads->steps), 0);
  const auto width = static_cast<std::size_t>(loads->experts);
  for (std::int64_t step = 0; step < loads->steps; ++step) {
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      const std::int64_t from = step * loads->layers + spaced(layer, layers, loads->layers);
      const auto row = std::span(loads->counts).subspan(static_cast<std::size_t>(from) * width, width);
      popularity.shares.insert(popularity.shares.end(), row.begin(), row.end());
    }
  }
  normalize(popularity.shares, width);
  return out;
}

}  // namespace

base::Result<ExpertRouting> read_expert_routing(const std::string& path, std::int32_t layers,
                                                std::int32_t experts) {
  auto file = FileSource::open(path);
  if (!file) return tl::unexpected<base::Error>(file.error());
  std::array<std::byte, 4> magic{};
  const auto got = read_full(**file, magic);
  if (!got) return tl::unexpected<base::Error>(got.error());
  const std::string_view first(reinterpret_cast<const char*>(magic.data()), *got);
  if (first != kZipMagic) return of_counts(path, layers, experts);
  const auto archive = ZipArchive::open_file(path);
  if (!archive) return tl::unexpected<base::Error>(archive.error());
  const bool pickled = std::ranges::none_of(archive->names(), [](const std::string& name) {
    return name.ends_with(".npy");  // a .pt is a zip as well
  });
  if (pickled) return of_counts(path, layers, experts);
  const auto contents = read_npz(*archive, "");
  if (!contents) return tl::unexpected<base::Error>(contents.error());
  const bool ids =
      std::ranges::any_of(contents->arrays, [](const ExpertArray& one) { return one.shape.size() == 4; });
  return ids ? of_ids(path, contents->arrays, layers, experts) : of_counts(path, layers, experts);
}

}  // namespace trimtab::io
