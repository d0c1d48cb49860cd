"""The simulator: requests per CPU-second beside DynoSim on the same trace, the closed form beside every step, and what each way of
giving work to prefill ranks can take."""
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from benchmarks.report import ROOT, result

BIN = ROOT / 'build/release/bin/trimtab'
ENGINES = '[model]\nprofile = "deepseek-v3"\n[prefill]\nengines = 16\nranks = 1\n[decode]\ngroups = 16\nranks = 1\n'
FLEET = '[model]\nprofile = "v3-like"\n[prefill]\nengines = 8\nranks = 8\n[decode]\ngroups = 2\nranks = 32\n'
RUNS = 3
PEER_LIMIT_S = 900  # of waiting for one replay: on a busy machine it may not come to an end

# DynoSim models vLLM-like engines and a router; the same trace, as many engines, blocks of the trace's own size.
_PEER_PROGRAM = '''
import json, sys, time
from dynamo.mocker.config import normalize_mocker_config
from dynamo.replay import run_trace_replay
def engine(kind):
    return normalize_mocker_config(json.dumps({'engine': dict(num_gpu_blocks=20000, block_size=512, worker_type=kind, max_num_seqs=256,
                                              max_num_batched_tokens=8192, enable_prefix_caching=True, backend='vllm')}))
started = time.process_time()
report = run_trace_replay(sys.argv[1], prefill_engine_args=engine('prefill'), decode_engine_args=engine('decode'), num_prefill_workers=16,
                          num_decode_workers=16, router_mode=sys.argv[2], trace_block_size=512, capture_planner_details=False)
print(json.dumps([report.summary['completed_requests'], time.process_time() - started]))
'''


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


def dynosim(trace, router):
    """Completed requests per CPU-second of ai-dynamo's replay, or None and why."""
    folder = ROOT / 'build/peers/dynosim'
    python = folder / 'bin/python'
    try:
        if not (folder / '.complete').exists():
            print('peers: fetching ai-dynamo 1.6.1 from PyPI', file=sys.stderr)
            subprocess.run([sys.executable, '-m', 'venv', folder], check=True, capture_output=True)
            pip = [python, '-m', 'pip', 'install', '--quiet']
            subprocess.run([*pip, '--no-deps', 'ai-dynamo-runtime==1.6.1', 'ai-dynamo==1.6.1'], check=True, capture_output=True)
            subprocess.run([*pip, 'pydantic<=2.13.5', 'msgspec', 'uvloop', 'pyyaml', 'packaging', 'prometheus_client', 'zstandard'],
                           check=True, capture_output=True)
            (folder / '.complete').touch()
        out = subprocess.run([python, '-c', _PEER_PROGRAM, trace, router], check=True, capture_output=True, text=True,
                             timeout=PEER_LIMIT_S, env=os.environ | {'DYN_LOG': 'error'}).stdout
    except (subprocess.SubprocessError, OSError) as error:
        print(f'peers: DynoSim cannot be run: {error}', file=sys.stderr)
        return None
    completed, seconds = json.loads(out.strip().splitlines()[-1])
    return completed / seconds


def long_run(trace):
    """Cost and memory as a run gets longer: TRIMTAB_SIM_REQUESTS (1,000,000; the goal is 10,000,000) beside a tenth of them. The pool has a
    size, because everything else forgets."""
    requests = int(os.environ.get('TRIMTAB_SIM_REQUESTS', 1_000_000))
    pool = ENGINES + '[simulation]\npool_capacity_blocks = 2000000\n'
    once = simulate(pool, trace)[0]
    few, many = (simulate(pool, trace, '--repeats', str(max(round(size / once['finished']), 1)))[0] for size in (requests / 10, requests))
    each = [run['cpu_s'] / run['events'] for run in (few, many)]
    return [result(f'CPU an event, {many["finished"]:,} requests over {few["finished"]:,}', each[1] / each[0], 'x', goal=1.1),
            result(f'CPU an event, {many["finished"]:,} requests', each[1] * 1e9, 'ns'),
            result(f'peak memory, {many["finished"]:,} requests over {few["finished"]:,}',
                   many['memory_peak_bytes'] / few['memory_peak_bytes'], 'x', goal=1.1),
            result(f'peak memory, {many["finished"]:,} requests', many['memory_peak_bytes'] / 2**20, 'MiB')]


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
    results = []
    peers = {router: dynosim(trace, router) for router in ('kv_router', 'round_robin')}
    for speed, flags, goal in (('fast', [], 85_000), ('exact', ['--exact'], 8_530)):
        ours = requests_per_cpu_second(trace, *flags)
        for router, theirs in peers.items():
            results.append(result(f'{speed}, 16 prefill + 16 decode engines', ours, 'requests/CPU-s', goal=goal, lower_is_better=False,
                                  peer=f'DynoSim, {router}', peer_value=theirs))
    fast, exact = simulate(FLEET, trace)[0], simulate(FLEET, trace, '--exact')[0]
    for measure in ('ttft', 'tpot'):
        for at in ('mean_s', 'p99_s'):
            error = abs(fast['all'][measure][at] / exact['all'][measure][at] - 1) * 100
            results.append(result(f'fast against exact, {measure} {at[:-2]}', error, '%', goal=1.0))
    results += long_run(trace)
    fifo = simulate(FLEET, trace, '--capacity', '--one-queue')[0]['rate']
    for flags in (['--prefill-assignment', 'round_robin'], ['--prefill-assignment', 'least_work'], ['--prefill-assignment', 'dualpath'], [],
                  ['--one-queue', '--prefill-order', 'edf'], ['--one-queue', '--prefill-order', 'arrival_plus_work']):
        found = simulate(FLEET, trace, '--capacity', *flags)[0]
        best = flags[-1:] == ['arrival_plus_work']
        results.append(result('capacity, ' + found['prefill'], found['rate'], 'x recorded rate', goal=1.05 * fifo if best else None,
                              lower_is_better=False, peer='one FIFO pull queue', peer_value=fifo))
    return results
