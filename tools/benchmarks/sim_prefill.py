"""Prefill policies in the simulator: capacity beside one FIFO pull queue, P99 at one rate for all, the quota curve under both votes for
two cost forms, the price of a wrong cost model, the share of the ideal, and waiting for peers against the spread of lengths."""
import json
import math
import random
import subprocess
import tempfile

from benchmarks.report import result
from benchmarks.sim import BIN, trace_of

# Decode is given room, so that prefill alone decides.
FLEET = '''[model]
profile = "{profile}"
[prefill]
engines = 8
ranks = 8
kv_blocks = 1000000
{keys}
[decode]
groups = 4
ranks = 32
max_running = 512
kv_blocks = 65536
policy = "total_requests"
[simulation]
{simulation}
'''
DISPERSION_FLEET = '''[model]
profile = "v3-like"
[prefill]
engines = 2
ranks = 8
kv_blocks = 1000000
[decode]
groups = 2
ranks = 32
max_running = 32
kv_blocks = 65536
'''
ONE = 'order = "fifo"\n'
EDF = 'order = "edf"\n'  # the default of a fleet
POLICIES = {
    'one queue, FIFO': ONE,
    'tiers, neighbours help': ONE + 'tier_bounds_tokens = [16384, 65536, 262144]\n',
    'one queue, arrival + work': 'order = "arrival_plus_work"\n',
    'one queue, EDF': EDF,
    'one queue, EDF, mean': EDF + 'vote = "mean"\n',
    'one queue, EDF, group-wide above 8 quotas': EDF + 'context_parallel_quotas = 8\n',
}


def simulate(trace, keys, *flags, profile='v3-like', simulation=''):
    with tempfile.NamedTemporaryFile('w', suffix='.toml') as file:
        file.write(FLEET.format(profile=profile, keys=keys, simulation=simulation))
        file.flush()
        return json.loads(subprocess.run([BIN, 'simulate', file.name, '--trace', trace, '--json', *flags], check=True, capture_output=True,
                                         text=True).stdout)


def capacity(trace, keys, **more):
    return simulate(trace, keys, '--capacity', **more)['runs'][0]['rate']


def p99(run):
    return [tier['ttft']['p99_s'] for tier in run['tiers'] if tier['requests']]


def run(arguments):
    trace = trace_of(arguments)
    results = []
    fifo = capacity(trace, ONE)
    for name, keys in POLICIES.items():
        rate = capacity(trace, keys)
        results.append(result(f'capacity, {name}', rate, 'x recorded rate', goal=1.05 * fifo if name == 'one queue, EDF' else None,
                              lower_is_better=False, peer='one FIFO queue', peer_value=fifo))
    rates = {'load 0.5': 0.56, 'load 0.7': 0.785, 'load 0.9': 1.01, '1.05 x its capacity': 1.05}  # of FIFO's capacity, which is load 0.89
    for where, factor in rates.items():
        base = p99(simulate(trace, ONE, '--rate', str(factor * fifo))['runs'][0])
        for name in ('one queue, EDF', 'one queue, EDF, mean', 'one queue, EDF, group-wide above 8 quotas'):
            there = p99(simulate(trace, POLICIES[name], '--rate', str(factor * fifo))['runs'][0])
            for tier, (ours, theirs) in enumerate(zip(there, base)):
                halved = where.startswith('1.05') and 'group' in name and tier == 2
                goal = (0.5 if halved else 1.2) * theirs if halved or name == 'one queue, EDF' else None
                results.append(result(f'P99 TTFT of tier {tier + 1} at {where}, {name}', ours, 's', goal=goal, peer='FIFO',
                                      peer_value=theirs))
    for vote in ('min', 'mean'):
        for quota in (100, 200, 300, 500):
            keys = EDF + f'vote = "{vote}"\nstep_budget_ms = {quota}\n'
            results.append(result(f'capacity, v3-like, quota {quota} ms, {vote}', capacity(trace, keys), 'x recorded rate',
                                  lower_is_better=False))
            # V4.1 takes so much more that decode would decide its capacity: its times at one rate instead.
            there = simulate(trace, keys, '--rate', '30', profile='deepseek-v4.1-flash')['runs'][0]
            results.append(result(f'mean TTFT at rate 30, V4.1, quota {quota} ms, {vote}', there['all']['ttft']['mean_s'], 's'))
    right = capacity(trace, EDF)
    for error in (0.03, 0.1, 0.3):
        results.append(result(f'capacity with {error:.0%} of cost error', capacity(trace, EDF, simulation=f'cost_error = {error}\n'),
                              'x recorded rate', lower_is_better=False, peer='no error', peer_value=right))
    share = simulate(trace, EDF, '--share', '--seeds', '1', '--no-capacity', '--share-stages', 'prefill')['balancers']
    for balancer in share:
        results.append(result(f"prefill at saturation, {balancer['name']}", balancer['prefill_alone']['share']['mean'], '% of ideal',
                              lower_is_better=False))
    return results + dispersion()


def lognormal_trace(file, sigma):
    """4,000 requests of 6,000 prompt and 300 answer tokens in the mean, each with this deviation of the logarithm."""
    draw = random.Random(7)

    def length(mean, least, most):
        return min(max(int(mean * math.exp(sigma * draw.gauss(0, 1) - sigma * sigma / 2)), least), most)

    file.write('arrival_s,prompt,output\n')
    for i in range(4_000):
        file.write(f'{i * 0.05:.3f},{length(6_000, 16, 900_000)},{length(300, 2, 20_000)}\n')
    file.flush()


def dispersion():
    """Time that ranks wait for one another at saturation, against the spread of lengths."""
    results = []
    for sigma in (0, 0.5, 1, 1.5):
        with tempfile.NamedTemporaryFile('w', suffix='.csv') as trace, tempfile.NamedTemporaryFile('w', suffix='.toml') as fleet:
            lognormal_trace(trace, sigma)
            fleet.write(DISPERSION_FLEET)
            fleet.flush()
            columns = ['--csv-prompt', 'prompt', '--csv-output', 'output']
            share = json.loads(subprocess.run([BIN, 'simulate', fleet.name, '--trace', trace.name, '--json', '--share', '--seeds', '1',
                                               '--no-capacity', '--share-stages', 'prefill', 'decode', *columns], check=True,
                                              capture_output=True, text=True).stdout)
        ours, _, robin = share['balancers']
        for stage in ('prefill_alone', 'decode_alone'):
            results.append(result(f'waiting for peers, {stage.split("_")[0]}, sigma {sigma}', waits(ours[stage]), '% of time',
                                  peer='round robin', peer_value=waits(robin[stage])))
    return results


def waits(stage):
    return sum(stage['losses'][key]['mean'] for key in ('mixture', 'atomic', 'staleness'))
