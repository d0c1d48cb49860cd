"""Prefill policies in the simulator: capacity beside one FIFO pull queue, P99 at one rate for all, the quota curve under both votes for
two cost forms, the price of a wrong cost model, and the share of the ideal."""
import json
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
ONE = 'tier_bounds_tokens = []\n'
EDF = ONE + 'order = "edf"\n'
POLICIES = {
    'one queue, FIFO': ONE,
    'tiers, neighbours help': '',
    'one queue, arrival + work': ONE + 'order = "arrival_plus_work"\n',
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
    for profile in ('v3-like', 'deepseek-v4.1-flash'):
        for vote in ('min', 'mean'):
            for quota in (100, 200, 300, 500):
                keys = EDF + f'vote = "{vote}"\nstep_budget_ms = {quota}\n'
                rate = capacity(trace, keys, profile=profile)
                results.append(result(f'capacity, {profile}, quota {quota} ms, {vote}', rate, 'x recorded rate', lower_is_better=False))
    right = capacity(trace, EDF)
    for error in (0.03, 0.1, 0.3):
        results.append(result(f'capacity with {error:.0%} of cost error', capacity(trace, EDF, simulation=f'cost_error = {error}\n'),
                              'x recorded rate', lower_is_better=False, peer='no error', peer_value=right))
    share = simulate(trace, EDF, '--share', '--seeds', '1', '--no-capacity')['balancers']
    for balancer in share:
        results.append(result(f"prefill at saturation, {balancer['name']}", balancer['prefill_alone']['share']['mean'], '% of ideal',
                              lower_is_better=False))
    return results
