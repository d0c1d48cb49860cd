"""How far the simulator is from the reference engine: serve a load, fit the profile to it, simulate another load and compare; and where
the difference is."""
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

from benchmarks.report import ROOT, result

BIN = pathlib.Path(os.environ.get('TRIMTAB_BIN', ROOT / 'build/release/bin/trimtab'))
REQUESTS, GAP_S = 40, 2.0
TABLES = """[model]
profile = "{profile}"
[prefill]
engines = 1
ranks = 1
step_budget_ms = 1500
quota_scope = "whole_step"
chunk_tokens_max = 1024
kv_blocks = 72
tier_bounds_tokens = [512, 2048, 4096]
[decode]
groups = 1
ranks = 1
kv_blocks = 72
max_running = 16
[vision]
machines = 1
encoders = 1
[pool]
memory_bytes = 268435456
file_bytes = 1073741824
"""
WORDS = 'balance queue engine token window cache block rank prefill decode latency budget vote share load drift'.split()


class Asked:
    """One streamed request: when it was sent, and when each piece of its answer came."""

    def __init__(self, url, prompt, tokens):
        self.body = {'model': 'smollm2-135m-instruct', 'max_tokens': tokens, 'temperature': 0, 'stream': True,
                     'messages': [{'role': 'user', 'content': prompt}]}
        self.url, self.sent, self.pieces, self.id = url, 0.0, [], None

    def __call__(self):
        request = urllib.request.Request(self.url + '/v1/chat/completions', json.dumps(self.body).encode(),
                                         {'content-type': 'application/json'})
        self.sent = time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if not line.startswith(b'data: {'):
                    continue
                piece = json.loads(line[6:])
                self.id = piece['id']
                if piece['choices'] and piece['choices'][0]['delta'].get('content'):
                    self.pieces.append(time.monotonic())


def play(url, seed):
    """Poisson arrivals of prompts that share nothing; returns what was asked."""
    rng, threads, asked = random.Random(seed), [], []
    for _ in range(REQUESTS):
        prompt = ' '.join(rng.choice(WORDS) + str(rng.randrange(10)) for _ in range(rng.randrange(8, 110)))
        asked.append(Asked(url, prompt, rng.randrange(8, 40)))
        threads.append(threading.Thread(target=asked[-1]))
        threads[-1].start()
        time.sleep(rng.expovariate(1 / GAP_S))
    for thread in threads:
        thread.join()
    return [one for one in asked if len(one.pieces) > 1]


def decode_step(asked):
    """Fixed and per-request ns of a decode step: gaps between pieces against how many answers were running, by least squares."""
    points = []
    for one in asked:
        for before, after in zip(one.pieces[1:], one.pieces[2:]):
            points.append((sum(other.pieces[0] <= before and after <= other.pieces[-1] for other in asked), after - before))
    longest = statistics.quantiles([gap for _, gap in points], n=50)[-1]  # the last 2 % waited for something else
    points = [point for point in points if point[1] <= longest]
    x, y = statistics.fmean(p[0] for p in points), statistics.fmean(p[1] for p in points)
    spread = sum((p[0] - x) ** 2 for p in points)
    each = max(sum((p[0] - x) * (p[1] - y) for p in points) / spread, 0) if spread else 0
    return max(y - each * x, 1e-4) * 1e9, each * 1e9


def percentiles(values):
    return {'p50': statistics.median(values), 'mean': statistics.fmean(values), 'p90': statistics.quantiles(values, n=10)[-1]}


def measured(asked):
    return {'ttft': percentiles([one.pieces[0] - one.sent for one in asked]),
            'tpot': percentiles([(one.pieces[-1] - one.pieces[0]) / (len(one.pieces) - 1) for one in asked])}


def serve(folder):
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    config = folder / 'cluster.toml'
    config.write_text(TABLES.format(profile='smollm2-135m'))
    url = f'http://127.0.0.1:{port}'
    process = subprocess.Popen([BIN, 'serve', '--config', config, '--port', str(port), '--state-dir', folder / 'state',
                                '--model-path', os.environ['TRIMTAB_MODEL']], cwd=ROOT, stderr=open(folder / 'serve.log', 'w'))
    for _ in range(1200):
        try:
            if urllib.request.urlopen(url + '/health', timeout=2).status == 200:
                return process, url
        except OSError:
            time.sleep(0.1)
    process.kill()
    raise RuntimeError((folder / 'serve.log').read_text()[-2000:])


def journeys(asked, folder):
    """What the decision log says of each request, instants in ms of the calendar."""
    found = []
    for one in asked:
        out = subprocess.run([BIN, 'explain', '--state-dir', folder / 'state', '--json', one.id], capture_output=True, text=True, cwd=ROOT)
        if out.returncode == 0:
            found.append(json.loads(out.stdout))
    return found


def steps_of(told):
    """Prefill steps in order: processor time, predicted time and wall time, which begins when the rank had work and its last step was
    over."""
    steps = {}
    for journey in told:
        began = journey['submitted_unix_ns'] / 1e6
        leased = next(began + event['at_ms'] for event in journey['events'] if event['kind'] == 'lease')
        for event in journey['events']:
            if event['kind'] == 'chunk':
                step = steps.setdefault(event['step'], {'end': began + event['at_ms'], 'cpu': event['step_actual_ms'],
                                                        'predicted': event['step_predicted_ms'], 'ready': leased})
                step['ready'] = min(step['ready'], leased)
    order, before = [steps[number] for number in sorted(steps)], 0
    for step in order:
        step['wall'] = step['end'] - max(before, step['ready'])
        before = step['end']
    return order


def ratio(steps, of, over):
    return sum(step[of] for step in steps) / sum(step[over] for step in steps)


def parts_of(asked, told):
    """Means over requests, ms: where the time to the first token went."""
    by_name = {journey['name']: journey for journey in told}
    client, queued, until_computed, after = [], [], [], []
    for one in asked:
        if one.id not in by_name:
            continue
        journey = by_name[one.id]
        at = {event['kind']: event['at_ms'] for event in journey['events']}  # the last of its kind
        client.append((one.pieces[0] - one.sent) * 1e3 - journey['token_at_ms'][0])
        queued.append(at['lease'])
        until_computed.append(at['chunk'] - at['lease'])
        after.append(at['prefill_done'] - at['chunk'])
    names = ('outside the cluster (HTTP, tokenizer, client)', 'in the queue', 'waiting for the rank and computed',
             'computed, until the first token leaves')
    return dict(zip(names, map(statistics.fmean, (client, queued, until_computed, after))))


def scaled(cost, factor):
    """The cost table with all its times multiplied."""
    return re.sub(r'(?m)^(\w+_(?:ns|ps)) = (\d+)', lambda found: f'{found[1]} = {round(int(found[2]) * factor)}', cost)


def simulate(folder, name, cost, step, since):
    profile = (ROOT / 'profiles/smollm2-135m.toml').read_text()
    profiles = folder / 'profiles'
    profiles.mkdir(exist_ok=True)
    table = (f'[decode_step]\nfixed_ns = {step[0]:.0f}\nattention_ns_per_kv_token = 0.0\ndispatch_ns_per_request = 0.0\n'
             f'moe_ns_per_request = {step[1]:.1f}\n')
    (profiles / f'{name}.toml').write_text(f'name = "{name}"\nsource = "measured"\ncontext_limit_tokens = 8192\n'
                                           f'quota_scope = "whole_step"\n{cost}\n{table}' + profile[profile.index('[kv]'):])
    scenario = folder / f'{name}-fleet.toml'
    scenario.write_text(TABLES.format(profile=name))
    out = subprocess.run([BIN, 'simulate', scenario, '--profiles-dir', profiles, '--trace', folder / 'state/decisions', '--from-s',
                          f'{since:.3f}', '--exact', '--json'], capture_output=True, text=True)
    print(out.stderr, file=sys.stderr)
    out.check_returncode()
    return json.loads(out.stdout)['runs'][0]


def serve_two_loads(folder):
    process, url = serve(folder)
    try:
        first = play(url, 1)
        shutil.copytree(folder / 'state/decisions', folder / 'first')
        return first, play(url, 2)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def compare(folder, first, second):
    """Fits to the first load and simulates the second: with processor time a step, as the fit has it; with the wall time that steps took
    in the first load; and with that of the second itself, so that what is left is not the step times' error."""
    fitted = subprocess.run([BIN, 'cost', 'fit', folder / 'first', '--output', folder / 'fitted.toml', '--error-max', '30',
                             '--outliers-max', '30'], capture_output=True, text=True)
    print(fitted.stdout + fitted.stderr, file=sys.stderr)
    if fitted.returncode:
        sys.exit('bench calibration: no fit. Beside other jobs steps merge and become few: run it on an idle machine, or with priority')
    cost = (folder / 'fitted.toml').read_text()
    cost = '[cost]' + cost.split('[cost]')[1].split('[calibration]')[0]  # a profile does not say how it was measured
    told = [journeys(load, folder) for load in (first, second)]
    steps = [steps_of(load) for load in told]
    walls = [ratio(load, 'wall', 'predicted') for load in steps]
    since = second[0].sent - first[0].sent - 0.1
    real, results = measured(second), []
    for name, how, factor, load in (('plain', 'fit', 1, first), ('wall', 'fit, wall time', walls[0], first),
                                    ('own', 'steps of this load', walls[1], second)):
        simulated = simulate(folder, name, scaled(cost, factor), decode_step(load), since)
        results += [result(f'{what} {at}, {how}', simulated['all'][what][at + '_s'] * 1e3, 'ms', peer='measured',
                           peer_value=real[what][at] * 1e3) for what in ('ttft', 'tpot') for at in ('p50', 'mean', 'p90')]
    for number, load in enumerate(steps):
        which = ('fitted', 'simulated')[number]
        results += [result(f'steps of the {which} load: predicted over processor time', ratio(load, 'predicted', 'cpu'), 'x'),
                    result(f'steps of the {which} load: wall over processor time', ratio(load, 'wall', 'cpu'), 'x')]
    return results + [result('TTFT measured, of it ' + name, value, 'ms') for name, value in parts_of(second, told[1]).items()]


def run(arguments):
    del arguments
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        return compare(folder, *serve_two_loads(folder))
