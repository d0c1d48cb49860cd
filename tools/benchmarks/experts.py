"""Expert balancing: plans, weighted dispatch and re-placement beside the published planners (docs/policies/experts.md reads the table).

Balance is busiest rank over mean rank (sums over steps); excess is balance - 1. Loads are trimtab's own: 384 experts, top-6, 256 tokens
a rank and step. Options were tuned on seeds 0 to 2; the figures are of seeds 100 and up, differences paired by seed.
"""
import sys
import time

from benchmarks import experts_plans, experts_rolling, experts_time
from benchmarks.peers import Peers

SECTIONS = {
    'rolling': experts_rolling.rolling,
    'weighted': experts_rolling.weighted,
    'dispatch': experts_rolling.dispatch_time,
    'routing': experts_rolling.real_routing,
    'held_out': experts_plans.held_out,
    'in_window': experts_plans.in_window,
    'single_slot': experts_plans.one_expert_a_rank,
    'seed_table': experts_plans.seed_table,
    'rules': experts_plans.rules,
    'time': experts_time.planning_time,
    'repair_time': experts_time.repair_time,
}


class Say:
    """Progress on standard error, so that a run of minutes is not silent."""

    def __init__(self):
        self.start = time.monotonic()

    def __call__(self, line):
        print(f'[{time.monotonic() - self.start:6.1f} s] {line}', file=sys.stderr, flush=True)


def run(arguments):
    wanted = arguments.only.split(',') if arguments.only else list(SECTIONS)
    unknown = sorted(set(wanted) - set(SECTIONS))
    if unknown:
        raise SystemExit(f'bench: --only knows no {", ".join(unknown)}; it knows {", ".join(SECTIONS)}')
    say, results = Say(), []
    with Peers(say=say) as peers:
        for name in wanted:
            say(f'experts: {name}')
            results += SECTIONS[name](experts_plans.Scale(arguments.quick), peers, say)
    return results
