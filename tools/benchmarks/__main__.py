"""./bench NAME [--json] [--trace PATH], or ./bench --publish, which runs all of them and writes docs/benchmarks.md."""
import argparse
import importlib
import json
import sys

from benchmarks.report import ROOT, machine, markdown, print_table

# Modules of this package: each is imported when it runs, so that --list and --help need no package that is not installed yet.
BENCHES = {
    'policy': 'decisions: prefill pull, decode choice, chunk solve, hash chain; gateway CPU per request and token',
    'gateway': 'CPU per request and per streamed token of the gateway with a fake engine',
    'engine': 'tokens per second of the reference engine on one thread',
    'experts': 'expert balancing: plans, dispatch, moves and time beside DeepInfer, vLLM and SGLang (minutes; --quick)',
    'eviction': 'which blocks leave a full store: time an operation, hit rates on recorded traces (TRIMTAB_DATA)',
    'kv': 'block keys, pool, striped pool beside memcpy and Mooncake, thirteen processes over TCP (minutes; --quick)',
    'sim': 'the simulator: speed beside DynoSim, accuracy, 10 million requests, policies (needs a trace; --only, --quick)',
    'sim_prefill': 'prefill policies simulated: capacity, P99, quota, vote, cost error (needs a trace; minutes)',
    'calibration': 'the simulator beside the reference engine that it was fitted to (minutes)',
    'text': 'tokenizer throughput beside the PyPI tokenizers wheel',
}


HEAD = """# Benchmarks

Written by `./bench --publish`; each table by `./bench NAME` (`--json` for programs). CPU time, medians of several runs;
a ratio is ours over the peer's in the same run. Machine: {cores} cores, {cpu}, {system}.

"""


def report(name, arguments):
    return {'bench': name, 'machine': machine(), 'results': importlib.import_module(f'benchmarks.{name}').run(arguments)}


def main():
    parser = argparse.ArgumentParser(prog='./bench', description=__doc__)
    parser.add_argument('name', nargs='?', choices=sorted(BENCHES), help='which benchmark')
    parser.add_argument('--list', action='store_true', help='name the benchmarks and exit')
    parser.add_argument('--dry-run', action='store_true', help='only say what is wrong with the arguments')
    parser.add_argument('--json', action='store_true', help='print the JSON form instead of a table')
    parser.add_argument('--trace', metavar='PATH', help='a recorded trace (Mooncake jsonl) to draw prompt lengths from; '
                        'without it each bench generates its own load')
    parser.add_argument('--publish', action='store_true', help='run every benchmark and write docs/benchmarks.md')
    parser.add_argument('--quick', action='store_true', help='experts, sim, kv: few seeds, layers and requests, to see that all runs')
    parser.add_argument('--only', metavar='SECTIONS', help='experts, sim: some of its sections, by comma; a wrong name lists them')
    parser.add_argument('--document', action='store_true', help='experts: write the figures that have a goal into docs/policies/experts.md')
    arguments = parser.parse_args()
    if arguments.dry_run:
        return 0
    if arguments.publish:
        sections = [markdown(report(name, arguments)) for name in ('policy', 'engine', 'kv', 'text', 'experts')]
        (ROOT / 'docs/benchmarks.md').write_text(HEAD.format(**machine()) + '\n'.join(sections))
        return 0
    if arguments.list or arguments.name is None:
        for name, what in sorted(BENCHES.items()):
            print(f'{name:12} {what}')
        return 0 if arguments.list else 2
    measured = report(arguments.name, arguments)
    if arguments.document:
        importlib.import_module('benchmarks.experts').document(measured)
    if arguments.json:
        print(json.dumps(measured, indent=1))
    else:
        print_table(measured)
    return 0


if __name__ == '__main__':
    sys.exit(main())
