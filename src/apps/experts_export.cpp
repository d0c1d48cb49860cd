#include <fmt/format.h>

#include <iostream>
#include <memory>

#include "apps/commands.h"
#include "apps/experts_commands.h"
#include "apps/experts_inputs.h"

namespace trimtab::apps {

namespace {

struct ExportCommand {
  std::string input, output, format;
  std::int32_t ep_size = 0, skip_layers = 0;
};

base::Status run(const ExportCommand& command) {
  const auto format = format_of(command.output, command.format);
  if (!format) return tl::unexpected(format.error());
  auto maps = io::read_expert_maps(command.input);
  if (!maps) return tl::unexpected(maps.error());
  if (command.ep_size < 0)
    return wrong(fmt::format("--ep-size {}: give the number of ranks", command.ep_size));
  if (command.ep_size > 0) maps->ranks = command.ep_size;
  if (command.skip_layers < 0 || command.skip_layers >= maps->layers) {
    return wrong(fmt::format("--skip-layers {}: the map has {} layers and at least one must stay",
                             command.skip_layers, maps->layers));
  }
  maps->logical.erase(maps->logical.begin(),
                      maps->logical.begin() + static_cast<std::ptrdiff_t>(command.skip_layers) * maps->slots);
  maps->layers -= command.skip_layers;
  experts::Shape shape{maps->experts, maps->slots, std::max(maps->ranks, 1), 1, 1};
  if (maps->ranks > 0) TRIMTAB_TRY(experts::check(shape));
  for (std::int32_t layer = 0; layer < maps->layers; ++layer) {
    auto status = experts::check(shape, layer_of(*maps, layer), /*distinct=*/false);
    // Without ranks nothing but the ids can be checked, and a rank of all slots would call copies useless.
    if (!status && maps->ranks > 0) {
      status.error().message = fmt::format("{}: layer {}: {}", command.input, layer, status.error().message);
      return status;
    }
  }
  TRIMTAB_TRY(io::write_expert_maps(command.output, *maps, *format));
  std::cout << usage_of(*format, command.output, shape);
  return {};
}

}  // namespace

base::Result<io::MapFormat> format_of(const std::string& path, const std::string& format) {
  if (format == "npz") return io::MapFormat::kNpz;
  if (format == "sglang" && !path.ends_with(".json")) {
    return wrong(fmt::format(
        "--output {}: SGLang takes a name without .json for the map's own text; end it in .json", path));
  }
  if (format == "sglang") return io::MapFormat::kSglang;
  if (format == "vllm-ascend") return io::MapFormat::kAscend;
  if (path.ends_with(".npz")) return io::MapFormat::kNpz;
  if (path.ends_with("expert_map.json")) return io::MapFormat::kAscend;
  if (path.ends_with(".json")) return io::MapFormat::kSglang;
  return wrong(fmt::format(
      "--output {}: end the name in .npz or .json, or say --format npz, sglang or vllm-ascend", path));
}

std::string usage_of(io::MapFormat format, const std::string& path, const experts::Shape& shape) {
  std::string out = fmt::format("wrote {} ({})\n", path, io::name(format));
  switch (format) {
    case io::MapFormat::kNpz:
      out += fmt::format(
          "  numpy: numpy.load('{0}')['physical_to_logical']; engines: trimtab experts export {0}\n", path);
      break;
    case io::MapFormat::kSglang:
      out += fmt::format("  SGLang: --init-expert-location {} --ep-num-redundant-experts {}\n", path,
                         shape.redundant());
      break;
    case io::MapFormat::kAscend:
      out += fmt::format(
          "  vllm-ascend: --additional-config '{{\"eplb_config\": {{\"expert_map_path\": \"{}\"}}}}' (older "
          "releases: "
          "expert_map_path without eplb_config around it)\n",
          path);
      break;
  }
  return out;
}

void add_experts_export(CLI::App& experts) {
  auto options = std::make_shared<ExportCommand>();
  CLI::App* command =
      experts.add_subcommand("export", "write a map in the form that an engine loads at its start");
  command->add_option("map", options->input, "a plan of ours, or any map file that is read")->required();
  command->add_option("--output,-o", options->output, "the file to write")->required();
  command->add_option("--format", options->format, "npz, sglang or vllm-ascend; else by the file's name")
      ->check(CLI::IsMember({"npz", "sglang", "vllm-ascend"}));
  command->add_option("--ep-size,--ep", options->ep_size, "ranks, when the file does not say them");
  command
      ->add_option("--skip-layers", options->skip_layers,
                   "leave out the first layers: SGLang counts dense layers, vllm-ascend only MoE layers")
      ->capture_default_str();
  command->footer(
      "Examples:\n"
      "  trimtab experts export plan.npz --output map.json                    # SGLang "
      "--init-expert-location\n"
      "  trimtab experts export plan.npz --output expert_map.json             # vllm-ascend\n"
      "  trimtab experts export map.json --ep-size 32 --format npz -o map.npz # back to arrays");
  command->callback([options] { finish(run(*options)); });
}

}  // namespace trimtab::apps
