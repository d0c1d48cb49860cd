"""Expert balancing: plans, weighted dispatch and re-placement beside the published planners (docs/policies/experts.md reads the table).

Balance is busiest rank over mean rank (sums over steps); excess is balance - 1. Loads are trimtab's own: 384 experts, top-6, 256 tokens
a rank and step. Options were tuned on seeds 0 to 2; the figures are of seeds 100 and up, differences paired by seed.
"""
import re
import sys
import time

from benchmarks import experts_plans, experts_rolling, experts_time
from benchmarks.peers import Peers
from benchmarks.report import ROOT, figure, value_of

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


def document(report):
    """Puts the figures that have a goal between the two marks of docs/policies/experts.md."""
    machine = report['machine']
    lines = [f'`./bench experts --document` on {machine["cores"]} cores, {machine["cpu"]}.', '', '| figure | ours | goal | met | peer | its value |',
             '|---|---|---|---|---|---|']
    for item in report['results']:
        if item['goal'] is None:
            continue
        places = item.get('places')
        unit = f' {item["unit"]}' if item['unit'] in ('%', 'us', 'ms', 'ms/layer', 'x') else ''
        lines.append(f'| {item["name"]} | {value_of(item)}{unit} | {figure(item["goal"], places)} | {"yes" if item["met"] else "**no**"} | '
                     f'{item["peer"] or ""} | {figure(item["peer_value"], places)} |')
    path = ROOT / 'docs/policies/experts.md'
    text, found = re.subn(r'(?s)(<!-- measured -->\n).*?(<!-- end -->)', lambda m: m[1] + '\n'.join(lines) + '\n' + m[2], path.read_text())
    if found != 1:
        raise SystemExit(f'bench: {path} has no <!-- measured --> ... <!-- end --> to write between')
    path.write_text(text)
