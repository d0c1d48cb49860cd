"""How far the simulator is from the reference engine: serve a load, fit the profile to it, simulate another load and compare."""
import json
import os
import pathlib
import random
import shutil
import signal
import socket
import statistics
import subprocess
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
        self.url, self.sent, self.pieces = url, 0.0, []

    def __call__(self):
        request = urllib.request.Request(self.url + '/v1/chat/completions', json.dumps(self.body).encode(),
                                         {'content-type': 'application/json'})
        self.sent = time.monotonic()
        with urllib.request.urlopen(request, timeout=300) as answer:
            for line in answer:
                if line.startswith(b'data: {') and json.loads(line[6:])['choices'][0]['delta'].get('content'):
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


def run(arguments):
    del arguments
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        process, url = serve(folder)
        try:
            began = time.monotonic()
            first = play(url, 1)
            shutil.copytree(folder / 'state/decisions', folder / 'first')
            second = play(url, 2)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)
        fitted = subprocess.run([BIN, 'cost', 'fit', folder / 'first', '--output', folder / 'fitted.toml', '--error-max', '30',
                                 '--outliers-max', '30'], capture_output=True, text=True)
        print(fitted.stdout + fitted.stderr)
        fitted.check_returncode()
        profile = (ROOT / 'profiles/smollm2-135m.toml').read_text()
        kv = profile[profile.index('[kv]'):]
        fixed, each = decode_step(first)
        table = f'[decode_step]\nfixed_ns = {fixed:.0f}\nattention_ns_per_kv_token = 0.0\ndispatch_ns_per_request = 0.0\n'
        profiles = folder / 'profiles'
        profiles.mkdir()
        cost = (folder / 'fitted.toml').read_text()
        cost = '[cost]' + cost.split('[cost]')[1].split('[calibration]')[0]  # a profile does not say how it was measured
        (profiles / 'fitted.toml').write_text('name = "fitted"\nsource = "measured"\ncontext_limit_tokens = 8192\n'
                                              'quota_scope = "whole_step"\n' + cost + '\n' + table +
                                              f'moe_ns_per_request = {each:.1f}\n' + kv)
        scenario = folder / 'fleet.toml'
        scenario.write_text(TABLES.format(profile='fitted'))
        out = subprocess.run([BIN, 'simulate', scenario, '--profiles-dir', profiles, '--trace', folder / 'state/decisions', '--from-s',
                              f'{second[0].sent - first[0].sent - 0.1:.3f}', '--exact', '--json'], capture_output=True, text=True)
        print(out.stderr)
        out.check_returncode()
        simulated, real = json.loads(out.stdout)['runs'][0], measured(second)
        print(f'decode step {fixed / 1e6:.2f} ms + {each / 1e6:.2f} ms a request; {len(second)} requests measured, '
              f'{simulated["finished"]} simulated, {time.monotonic() - began:.0f} s')
        return [result(f'{what} {at}, simulated', simulated['all'][what][at + '_s'] * 1e3, 'ms', peer='measured',
                       peer_value=real[what][at] * 1e3) for what in ('ttft', 'tpot') for at in ('p50', 'mean', 'p90')]
