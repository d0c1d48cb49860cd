#include "io/expert_maps.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "io/expert_file.h"
#include "io/expert_json.h"
#include "io/npy.h"
#include "io/npz.h"

namespace trimtab::io {

namespace {

constexpr std::int64_t kSlotsMax = 65'536, kLayersMax = 65'536;
constexpr std::size_t kFileBytesMax = std::size_t{1} << 30;

tl::unexpected<base::Error> bad(std::string message) {
  return base::fail(base::Code::kInvalidArgument, std::move(message), "map");
}

base::Result<ExpertMaps> from_array(const ExpertArray& array) {
  ExpertMaps maps;
  const bool one = array.shape.size() == 1;
  if ((!one && array.shape.size() != 2) || array.values.empty() || array.shape.back() > kSlotsMax ||
      (!one && array.shape[0] > kLayersMax)) {
    return bad(fmt::format("physical_to_logical of shape {}; it is [layers, slots] with at most {} slots",
                           shape_text(array.shape), kSlotsMax));
  }
  maps.layers = one ? 1 : static_cast<std::int32_t>(array.shape[0]);
  maps.slots = static_cast<std::int32_t>(array.shape.back());
  for (std::size_t i = 0; i < array.values.size(); ++i) {
    const double id = array.values[i];
    if (!(id >= 0 && id < kSlotsMax) || id != std::floor(id)) {
      const auto slots = static_cast<std::size_t>(maps.slots);
      return bad(fmt::format("layer {}, slot {}: {} is no logical expert; every slot needs an id from 0 up",
                             i / slots, i % slots, id));
    }
    maps.logical.push_back(static_cast<std::int32_t>(id));
    maps.experts = std::max(maps.experts, maps.logical.back() + 1);
  }
  return maps;
}

/// {"moe_layer_count": L, "layer_list": [{"layer_id", "device_count", "device_list": [{"device_id",
/// "device_expert": [...]}]}]}.
base::Result<ExpertMaps> from_ascend(const nlohmann::json& document) {
  ExpertMaps maps;
  const auto& list = document.at("layer_list");
  if (!list.is_array() || list.empty() || list.size() > static_cast<std::size_t>(kLayersMax)) {
    return bad("layer_list is no list of layers");
  }
  for (const auto& layer : list) {
    const auto index = maps.layers++;
    const auto devices = layer.is_object() ? layer.find("device_list") : layer.end();
    if (!layer.is_object() || devices == layer.end() || !devices->is_array() || devices->empty()) {
      return bad(fmt::format("layer_list[{}] has no device_list", index));
    }
    const auto ranks = static_cast<std::int32_t>(std::min<std::size_t>(devices->size(), kSlotsMax));
    if (index == 0) maps.ranks = ranks;
    const std::size_t before = maps.logical.size();
    for (const auto& device : *devices) {
      const auto experts = device.is_object() ? device.find("device_expert") : device.end();
      if (!device.is_object() || experts == device.end() || !experts->is_array()) {
        return bad(fmt::format("layer_list[{}]: a device without a device_expert list", index));
      }
      if (index == 0 && before == maps.logical.size()) {
        maps.slots = static_cast<std::int32_t>(std::min<std::size_t>(experts->size(), kSlotsMax)) * ranks;
      }
      if (static_cast<std::int64_t>(experts->size()) * ranks != maps.slots || maps.slots > kSlotsMax) {
        return bad(fmt::format(
            "layer_list[{}]: a device holds {} experts and the first holds {}; every device of every "
            "layer holds as many",
            index, experts->size(), maps.slots / ranks));
      }
      for (const auto& expert : *experts) {
        if (!expert.is_number_integer() || expert.get<std::int64_t>() < 0 ||
            expert.get<std::int64_t>() >= kSlotsMax) {
          return bad(fmt::format("layer_list[{}]: {} is no expert", index, expert.dump().substr(0, 40)));
        }
        maps.logical.push_back(expert.get<std::int32_t>());
        maps.experts = std::max(maps.experts, maps.logical.back() + 1);
      }
    }
    if (ranks != maps.ranks) {
      return bad(
          fmt::format("layer_list[{}] has {} devices and the first layer {}", index, ranks, maps.ranks));
    }
  }
  if (maps.slots == 0) return bad("the devices hold no experts");
  const auto count = document.find("moe_layer_count");
  if (count != document.end() && count->is_number_integer() && count->get<std::int64_t>() != maps.layers) {
    return bad(fmt::format("moe_layer_count is {} and layer_list has {} layers", count->get<std::int64_t>(),
                           maps.layers));
  }
  return maps;
}

base::Result<ExpertMaps> from_file(const ArrayFile& file) {
  const ExpertArray* map = nullptr;
  for (const std::string_view name :
       {"physical_to_logical_map", "physical_to_logical", "last_physical_to_logical_map"}) {
    if (map == nullptr) map = file.find(name);
  }
  if (map == nullptr && file.arrays.size() == 1 && file.arrays[0].name.empty()) map = &file.arrays[0];
  if (map == nullptr) {
    return bad(fmt::format("no physical_to_logical_map in the file; it holds {}", file.contents()));
  }
  auto maps = from_array(*map);
  if (!maps) return maps;
  if (const ExpertArray* ranks = file.find("ep_size"); ranks != nullptr && ranks->values.size() == 1) {
    if (ranks->values[0] >= 1 && ranks->values[0] <= kSlotsMax)
      maps->ranks = static_cast<std::int32_t>(ranks->values[0]);
  }
  return maps;
}

base::Status write_text(const std::string& path, const std::string& text) {
  TRIMTAB_TRY(check_replaceable(path));
  const std::string part = path + ".part";
  const auto failed = [&](const char* what) {
    const int error = errno;
    ::unlink(part.c_str());
    return base::fail(base::Code::kIo, fmt::format("cannot {} {}: {}", what, path, std::strerror(error)),
                      "map");
  };
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return failed("write");
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const int error = errno;
      ::close(fd);
      errno = error;
      return failed("write");
    }
    done += static_cast<std::size_t>(n);
  }
  if (::close(fd) != 0) return failed("write");
  if (std::rename(part.c_str(), path.c_str()) != 0) return failed("write");
  return {};
}

/// logical_to_physical [layers, experts, max copies] padded with -1, and logical_count [layers, experts].
base::Status write_npz(const std::string& path, const ExpertMaps& maps) {
  const auto layers = static_cast<std::size_t>(maps.layers), slots = static_cast<std::size_t>(maps.slots),
             experts = static_cast<std::size_t>(maps.experts);
  std::vector<std::int64_t> counts(layers * experts, 0);
  for (std::size_t i = 0; i < maps.logical.size(); ++i) {
    ++counts[i / slots * experts + static_cast<std::size_t>(maps.logical[i])];
  }
  const std::int64_t copies = std::max<std::int64_t>(*std::max_element(counts.begin(), counts.end()), 1);
  const auto width = static_cast<std::size_t>(copies);
  std::vector<std::int64_t> physical(layers * experts * width, -1), filled(layers * experts, 0);
  for (std::size_t i = 0; i < maps.logical.size(); ++i) {
    const std::size_t row = i / slots * experts + static_cast<std::size_t>(maps.logical[i]);
    physical[row * width + static_cast<std::size_t>(filled[row]++)] = static_cast<std::int64_t>(i % slots);
  }
  const std::vector<std::int64_t> logical(maps.logical.begin(), maps.logical.end());
  const std::vector<std::int64_t> ranks = {maps.ranks};
  using Shape = std::vector<std::int64_t>;
  const std::span<const std::int64_t> logical_span(logical), physical_span(physical), counts_span(counts),
      ranks_span(ranks);
  return write_zip(
      path, {{"physical_to_logical.npy", npy_bytes(Shape{maps.layers, maps.slots}, logical_span)},
             {"logical_to_physical.npy", npy_bytes(Shape{maps.layers, maps.experts, copies}, physical_span)},
             {"logical_count.npy", npy_bytes(Shape{maps.layers, maps.experts}, counts_span)},
             {"ep_size.npy", npy_bytes(Shape{1}, ranks_span)}});
}

std::string row_text(const ExpertMaps& maps, std::int32_t layer, std::int32_t from, std::int32_t count) {
  const auto begin = maps.logical.begin() + static_cast<std::ptrdiff_t>(layer) * maps.slots + from;
  return fmt::format("[{}]", fmt::join(begin, begin + count, ","));
}

}  // namespace

std::string_view name(MapFormat format) {
  switch (format) {
    case MapFormat::kNpz:
      return "npz";
    case MapFormat::kSglang:
      return "sglang";
    case MapFormat::kAscend:
      return "vllm-ascend";
  }
  return "npz";
}

/// A JSON object with a layer_list is vllm-ascend's; everything else is arrays by name.
base::Result<ExpertMaps> read_expert_maps_bytes(std::span<const std::byte> bytes, std::int64_t elements_max) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') {
    MemorySource source(bytes);
    const auto document = parse_json(source);
    if (!document) return tl::unexpected(document.error());
    if (document->is_object() && document->contains("layer_list")) return from_ascend(*document);
  }
  const auto file = read_array_bytes(bytes, "", elements_max);
  if (!file) return tl::unexpected(file.error());
  return from_file(*file);
}

base::Result<ExpertMaps> read_expert_maps(const std::string& path) {
  const auto read = [&]() -> base::Result<ExpertMaps> {
    const auto source = FileSource::open(path);
    if (!source) return tl::unexpected(source.error());
    const auto bytes = read_all(**source, kFileBytesMax);
    if (!bytes) return tl::unexpected(bytes.error());
    return read_expert_maps_bytes(*bytes, kExpertElementsMax);
  };
  auto maps = read();
  if (!maps && maps.error().message.find(path) == std::string::npos) {
    maps.error().message = path + ": " + maps.error().message;
  }
  return maps;
}

std::string expert_maps_json(const ExpertMaps& maps, MapFormat format) {
  std::string out;
  if (format == MapFormat::kSglang) {
    // Exactly one key: SGLang passes the object's keys on as arguments.
    out = "{\"physical_to_logical_map\": [\n";
    for (std::int32_t layer = 0; layer < maps.layers; ++layer) {
      out += row_text(maps, layer, 0, maps.slots) + (layer + 1 < maps.layers ? ",\n" : "\n");
    }
    return out + "]}\n";
  }
  const std::int32_t each = maps.slots / std::max(maps.ranks, 1);
  out = fmt::format("{{\"moe_layer_count\": {}, \"layer_list\": [\n", maps.layers);
  for (std::int32_t layer = 0; layer < maps.layers; ++layer) {
    out += fmt::format("{{\"layer_id\": {}, \"device_count\": {}, \"device_list\": [\n", layer, maps.ranks);
    for (std::int32_t rank = 0; rank < maps.ranks; ++rank) {
      out += fmt::format("{{\"device_id\": {}, \"device_expert\": {}}}{}\n", rank,
                         row_text(maps, layer, rank * each, each), rank + 1 < maps.ranks ? "," : "");
    }
    out += layer + 1 < maps.layers ? "]},\n" : "]}\n";
  }
  return out + "]}\n";
}

base::Status write_expert_maps(const std::string& path, const ExpertMaps& maps, MapFormat format) {
  if (format == MapFormat::kAscend && (maps.ranks <= 0 || maps.slots % maps.ranks != 0)) {
    return bad(
        fmt::format("expert_map.json lists devices, and {} slots on {} ranks do not make any; give --ep-size",
                    maps.slots, maps.ranks));
  }
  if (format == MapFormat::kNpz) return write_npz(path, maps);
  return write_text(path, expert_maps_json(maps, format));
}

}  // namespace trimtab::io
