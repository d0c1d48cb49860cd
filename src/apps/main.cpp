#include "apps/commands.h"

int main(int argc, char** argv) {
  CLI::App app{
      "trimtab: the serving half around MoE engines: gateway, balancers, pooled KV cache.\n"
      "Start with `trimtab serve --config configs/laptop.toml`, then ask `trimtab status` and `trimtab "
      "explain REQUEST_ID`.",
      "trimtab"};
  app.require_subcommand(1);
  app.set_version_flag("--version", TRIMTAB_VERSION);
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    return std::string("trimtab: ") + error.what() + "\nTry `" + failed->get_name() + " --help`.\n";
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
