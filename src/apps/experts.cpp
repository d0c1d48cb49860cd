#include "apps/commands.h"
#include "apps/experts_commands.h"

namespace trimtab::apps {

void add_experts(CLI::App& app) {
  CLI::App* experts = app.add_subcommand(
      "experts", "balance MoE experts over ranks: plan, evaluate, move, export, is it worth it?");
  experts->require_subcommand(1);
  add_experts_plan(*experts);
  add_experts_evaluate(*experts);
  add_experts_moves(*experts);
  add_experts_export(*experts);
  add_experts_advise(*experts);
  add_experts_synthesize(*experts);
  experts->footer(
      "Try it without a cluster:\n"
      "  trimtab experts synthesize --experts 384 --layers 4 --ep-size 8 --output loads.npz\n"
      "  trimtab experts advise loads.npz --ep-size 8\n"
      "  trimtab experts plan loads.npz --ep-size 8 --num-redundant-experts 32 --output plan.npz\n"
      "docs/experts.md is the guide, docs/policies/experts.md says how plans are made.");
}

}  // namespace trimtab::apps
