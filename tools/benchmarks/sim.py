"""The simulator, part by part (--only speed,long): requests per CPU-second beside DynoSim on the same trace, the closed form beside every
step, ten million requests, what each way of giving work to prefill ranks can take, decode's share of the ideal, drafts and experts in the
loop. --quick: a million requests, and the first thousands of the trace in both simulators."""
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from benchmarks.report import BENCH_DIR, ROOT, result
from benchmarks.sim_dynosim import MODELLED, replay

BIN = ROOT / 'build/release/bin/trimtab'
ENGINES = '[model]\nprofile = "deepseek-v3"\n[prefill]\nengines = 16\nranks = 1\n[decode]\ngroups = 16\nranks = 1\n'
FLEET = '[model]\nprofile = "v3-like"\n[prefill]\nengines = 8\nranks = 8\n[decode]\ngroups = 2\nranks = 32\n'
RUNS = 3
QUICK_REQUESTS = 3000


def simulate(scenario, trace, *arguments):
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write(scenario)
        file.flush()
        out = subprocess.run([BIN, 'simulate', file.name, '--trace', trace, '--json', *arguments], check=True, capture_output=True,
                             text=True).stdout
    report = json.loads(out)
    return [run | {'memory_peak_bytes': report['memory_peak_bytes']} for run in report['runs']]


def requests_per_cpu_second(trace, *arguments):
    return statistics.median(simulate(ENGINES, trace, *arguments)[0]['requests_per_cpu_s'] for _ in range(RUNS))


def head(trace, requests, folder):
    """The first `requests` of the trace, in a file of its own."""
    path = pathlib.Path(folder) / 'head.jsonl'
    with open(trace) as lines:
        path.write_text(''.join(line for _, line in zip(range(requests), lines)))
    return str(path)


def speed(trace, quick):
    """CPU time of the whole process on its side of the replay, on ours that of the run; a run of ours lies before and after each of theirs,
    so that both meet the same machine."""
    results = []
    with tempfile.TemporaryDirectory() as folder:
        here = head(trace, QUICK_REQUESTS, folder) if quick else trace
        pairs, size, note = [], None, ''
        for router in ('kv_router', 'round_robin'):
            before = [requests_per_cpu_second(here), requests_per_cpu_second(here, '--exact')]
            theirs = replay(here, router, say=lambda line: print(line, file=sys.stderr))
            if theirs is None and size is None and not quick:  # too slow here: a part of the trace for both
                size, note = QUICK_REQUESTS, f', first {QUICK_REQUESTS:,} requests'
                here = head(trace, QUICK_REQUESTS, folder)
                before = [requests_per_cpu_second(here), requests_per_cpu_second(here, '--exact')]
                theirs = replay(here, router, say=lambda line: print(line, file=sys.stderr))
            after = [requests_per_cpu_second(here), requests_per_cpu_second(here, '--exact')]
            pairs.append((router, [statistics.fmean(both) for both in zip(before, after)], theirs))
    for i, (name, goal, times) in enumerate((('fast', 85_000, 100), ('exact', 8_530, 10))):
        for router, ours, theirs in pairs:
            results.append(result(f'{name}, 16 prefill + 16 decode engines{note}', ours[i], 'requests/CPU-s', goal=goal,
                                  lower_is_better=False, peer=f'DynoSim, {router}', peer_value=theirs))
            if theirs:
                results.append(result(f'{name} over DynoSim, {router}{note}', ours[i] / theirs, 'x', goal=times, lower_is_better=False))
    print(MODELLED, file=sys.stderr)
    return results


def accuracy(trace, quick):
    """At 11.8 times the recorded rate, 0.85 of what the fleet can take."""
    del quick
    fast, exact = simulate(FLEET, trace, '--rate', '11.8')[0], simulate(FLEET, trace, '--exact', '--rate', '11.8')[0]
    return [result(f'fast against exact, {measure} {at[:-2]}', abs(fast['all'][measure][at] / exact['all'][measure][at] - 1) * 100, '%',
                   goal=1.0) for measure in ('ttft', 'tpot') for at in ('mean_s', 'p99_s')]


def long_run(trace, quick):
    """Cost and memory as a run gets longer: TRIMTAB_SIM_REQUESTS (10,000,000) of the trace and Azure's, where it is at hand, beside a tenth
    of them. The pool has a size, because everything else forgets."""
    requests = int(os.environ.get('TRIMTAB_SIM_REQUESTS', 1_000_000 if quick else 10_000_000))
    azure = pathlib.Path(os.environ.get('TRIMTAB_DATA', '.')) / 'traces/azure_2023_code.csv'
    mixed = ['--trace', str(azure), '--mix', '0.7', '0.3'] if azure.exists() else []
    pool = ENGINES + '[simulation]\npool_capacity_blocks = 2000000\n'
    once = simulate(pool, trace, *mixed)[0]
    few, many = (simulate(pool, trace, *mixed, '--repeats', str(math.ceil(size / once['finished'])))[0]
                 for size in (requests / 10, requests))
    each = [run['cpu_s'] / run['events'] for run in (few, many)]
    return [result('requests in one run', many['finished'], '', goal=requests, lower_is_better=False),
            result(f'CPU an event, {many["finished"]:,} requests over {few["finished"]:,}', each[1] / each[0], 'x',
                   goal=None if quick else 1.1),  # a tenth of a million does not fill the pool
            result(f'CPU an event, {many["finished"]:,} requests', each[1] * 1e9, 'ns'),
            result(f'CPU, {many["finished"]:,} requests', many['cpu_s'], 's'),
            result(f'peak memory, {many["finished"]:,} requests over {few["finished"]:,}',
                   many['memory_peak_bytes'] / few['memory_peak_bytes'], 'x', goal=1.1),
            result(f'peak memory, {many["finished"]:,} requests', many['memory_peak_bytes'] / 2**20, 'MiB')]


def capacity(trace, quick):
    del quick
    fifo = simulate(FLEET, trace, '--capacity', '--one-queue', '--prefill-order', 'fifo')[0]['rate']
    results = []
    for flags in (['--prefill-assignment', 'round_robin'], ['--prefill-assignment', 'least_work'], ['--prefill-assignment', 'dualpath'],
                  ['--one-queue', '--prefill-order', 'edf'], ['--one-queue', '--prefill-order', 'arrival_plus_work']):
        found = simulate(FLEET, trace, '--capacity', *flags)[0]
        goal = 1.05 * fifo if 'edf' in flags else None
        results.append(result('capacity, ' + found['prefill'], found['rate'], 'x recorded rate', goal=goal, lower_is_better=False,
                              peer='one FIFO pull queue', peer_value=fifo))
    return results


def counters(program, name_filter):
    """Name and counters of each benchmark that the filter picks."""
    out = subprocess.run([BENCH_DIR / program, '--benchmark_format=json', f'--benchmark_filter={name_filter}'], check=True,
                         capture_output=True, text=True, cwd=ROOT).stdout
    return [(run['name'].removesuffix('/iterations:1'), run) for run in json.loads(out)['benchmarks']]


def decode(trace, quick):
    """One seed (TRIMTAB_STUDY_SEEDS); each row says what it is held against: a goal, or the published figure that shows the model right."""
    del trace
    results = []
    for name, run in counters('policy_decode_bench', 'decode_study.*ranks:32' if quick else 'decode_study'):
        row = result(name.replace('decode_study/', 'decode: '), run['percent_of_ideal'], '% of ideal', goal=run.get('goal') or None,
                     lower_is_better=False, peer='published' if run.get('published') else None, peer_value=run.get('published') or None)
        results.append(row)
    return results


def verify(trace, quick):
    """Drafts verified per step, ours and the published rule, over five of everyone."""
    del trace
    results = []
    for name, run in counters('sim_bench', 'verify_in_the_loop.*exact:0' if quick else 'verify_in_the_loop'):
        ours, theirs, requests = run['ours_%'], run['published_%'], int(name.split('requests:')[1].split('/')[0])
        how = 'drawn' if name.endswith('exact:1') else 'closed form'
        goal = -0.2 if requests == 16 else theirs + 1
        results.append(result(f'drafts, {requests} requests a rank, {how}', ours, '% over five', goal=goal, lower_is_better=False,
                              peer='published rule', peer_value=theirs))
    return results


def experts(trace, quick):
    """The talk's ablation: re-placement and both about +1.8 and +2 %, copies alone slightly negative."""
    del trace, quick
    (_, run), = counters('sim_bench', 'eplb_ablation/fresh_seeds:1')
    return [result('experts in the loop, ' + key.removesuffix('_%').replace('_', ' '), value, '%',
                   standard_error=run.get(key.removesuffix('_%') + '_error')) for key, value in run.items() if key.endswith('_%')]


PARTS = {'speed': speed, 'accuracy': accuracy, 'long': long_run, 'capacity': capacity, 'decode': decode, 'verify': verify,
         'experts': experts}


def trace_of(arguments):
    if arguments.trace:
        return arguments.trace
    data = os.environ.get('TRIMTAB_DATA')
    found = pathlib.Path(data or '.') / 'traces/mooncake_conversation.jsonl'
    if data and found.exists():
        return str(found)
    sys.exit('bench sim: name a Mooncake trace by --trace, or set TRIMTAB_DATA to the folder that has traces/mooncake_conversation.jsonl')


def run(arguments):
    trace = trace_of(arguments)
    wanted = arguments.only.split(',') if arguments.only else list(PARTS)
    if unknown := sorted(set(wanted) - set(PARTS)):
        sys.exit(f'bench sim: --only knows no {", ".join(unknown)}; it knows {", ".join(PARTS)}')
    results = []
    for name in wanted:
        began = time.monotonic()
        results += PARTS[name](trace, arguments.quick)
        print(f'sim: {name} took {time.monotonic() - began:.0f} s', file=sys.stderr)
    return results
