#include "apps/commands.h"
#include "base/nearest.h"

namespace {

/// The command whose subcommand is missing: the deepest that was named.
const CLI::App& innermost(const CLI::App& app) {
  const auto named = app.get_subcommands();
  return named.empty() ? app : innermost(*named.front());
}

/// CLI11 says that a subcommand is required, and not which word it took for none.
std::string unknown_subcommand(const CLI::App& app) {
  const CLI::App& within = innermost(app);
  const std::vector<std::string> words = within.remaining();
  if (words.empty() || within.get_subcommands({}).empty()) return {};
  std::vector<std::string_view> known;
  for (const CLI::App* command : within.get_subcommands({})) known.push_back(command->get_name());
  const std::string close = trimtab::base::nearest(words.front(), known);
  return "; \"" + words.front() + "\" is none" + (close.empty() ? "" : ", did you mean \"" + close + "\"?");
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{
      "trimtab: the serving half around MoE engines: gateway, balancers, pooled KV cache.\n"
      "Start with `trimtab serve --config configs/laptop.toml`, then ask `trimtab status` and `trimtab "
      "explain REQUEST_ID`.",
      "trimtab"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TRIMTAB_VERSION);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    const bool wanted = error.get_name() == "RequiredError";
    return std::string("trimtab: ") + error.what() + (wanted ? unknown_subcommand(*failed) : "") + "\nTry `" +
           failed->get_name() + " --help`.\n";
  });
  trimtab::apps::add_serve(app);
  trimtab::apps::add_roles(app);
  trimtab::apps::add_explain(app);
  trimtab::apps::add_simulate(app);
  trimtab::apps::add_replay(app);
  trimtab::apps::add_cost(app);
  trimtab::apps::add_tools(app);
  trimtab::apps::add_experts(app);
  trimtab::apps::add_pool(app);
  trimtab::apps::add_kv_target(app);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
