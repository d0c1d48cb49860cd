"""What users of other planners and simulators report as going wrong, asked of `trimtab simulate`; docs/simulation.md has the list."""
import csv
import json
import os
import pathlib
import random
import subprocess

import pytest

BIN = os.environ.get('TRIMTAB_BIN', 'build/release/bin/trimtab')
DATA = pathlib.Path(os.environ.get('TRIMTAB_DATA', '-'))


def fleet(folder, prefill, decode, more=''):
    path = folder / f'fleet-{len(list(folder.glob("fleet*")))}.toml'
    path.write_text(f'[model]\nprofile = "v3-like"\n[prefill]\nengines = {prefill}\nranks = 2\n'
                    f'[decode]\ngroups = {decode}\nranks = 4\nmax_running = 16\n{more}')
    return path


def rows(path, requests):
    """`requests`: (arrival s, prompt tokens, answer tokens)."""
    path.write_text('arrival_s,prompt_tokens,output_tokens\n' + ''.join(f'{at:.3f},{p},{a}\n' for at, p, a in requests))
    return path


def run(*arguments):
    out = subprocess.run([BIN, 'simulate', *map(str, arguments), '--json'], capture_output=True, text=True, timeout=120)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)['runs'][0]


def most_queued(series):
    return max(float(row['queued']) for row in csv.DictReader(series.read_text().splitlines()))


def test_a_burst_waits_in_the_queue_and_evenly_spread_work_does_not(tmp_path):
    """A planner that looks at mean rates sees no difference between these two hours."""
    rng = random.Random(3)
    lengths = [(rng.randint(1000, 8000), 100) for _ in range(240)]
    even = rows(tmp_path / 'even.csv', [(i / 2, *one) for i, one in enumerate(lengths)])
    bursts = rows(tmp_path / 'bursts.csv', [(i // 40 * 20 + i % 40 * 0.01, *one) for i, one in enumerate(lengths)])
    place = fleet(tmp_path, 2, 1)
    calm, burst = (run(place, '--trace', trace, '--csv', tmp_path / trace.stem) for trace in (even, bursts))
    assert calm['finished'] == burst['finished'] == 240
    assert burst['all']['ttft']['p99_s'] > 4 * calm['all']['ttft']['p99_s']
    waiting = [most_queued(tmp_path / trace.stem / 'series.csv') for trace in (even, bursts)]
    assert waiting[1] > 10 > 2 * waiting[0], 'the queue is where the time goes'
    rates = [run(place, '--trace', trace, '--capacity')['rate'] for trace in (even, bursts)]
    assert rates[1] < rates[0]


@pytest.mark.parametrize('prompt, answer, helps', [(12_000, 4, 'prefill'), (200, 900, 'decode')])
def test_prefill_and_decode_are_scaled_apart(tmp_path, prompt, answer, helps):
    """More of what is short raises the capacity, more of the other does not: a mean over both roles would say the same twice."""
    rng = random.Random(7)
    trace = rows(tmp_path / 'mine.csv', [(i / 3, prompt + rng.randint(0, 100), answer) for i in range(300)])
    capacity = {name: run(fleet(tmp_path, *size), '--trace', trace, '--capacity')['rate']
                for name, size in {'base': (2, 2), 'prefill': (4, 2), 'decode': (2, 4)}.items()}
    other = 'decode' if helps == 'prefill' else 'prefill'
    assert capacity[helps] > 1.6 * capacity['base']
    assert capacity[other] < 1.05 * capacity['base']


def test_engines_that_start_slowly_help_late(tmp_path):
    """Load doubles at 30 s and a second engine is asked for then: it counts when it serves, not when it is asked for."""
    trace = rows(tmp_path / 'mine.csv', [(i / 2 if i < 60 else 30 + (i - 60) / 4, 12_000, 20) for i in range(300)])
    waits = []
    for start_up_s in (0, 20, 60):
        late = f'[[fault]]\nkind = "late_start"\nrole = "prefill"\ntargets = [1]\nat_s = 30\nstart_up_s = {start_up_s}\n'
        one = run(fleet(tmp_path, 2, 1, late), '--trace', trace)
        assert one['finished'] == 300
        waits.append(one['all']['ttft']['mean_s'])
    assert waits[0] < waits[1] < waits[2]


def test_scaling_down_ends_no_stream(tmp_path):
    """A drain finishes what runs; a loss of the same engine at the same moment makes work again."""
    trace = rows(tmp_path / 'mine.csv', [(i / 4, 2_000, 400) for i in range(200)])
    results = {}
    for kind in ('drain', 'engine'):
        fault = f'[[fault]]\nkind = "{kind}"\nrole = "decode"\ntargets = [1]\nat_s = 20\n'
        results[kind] = run(fleet(tmp_path, 2, 2, fault), '--trace', trace)
    assert results['drain']['finished'] == results['engine']['finished'] == 200
    assert results['drain']['outcomes']['passes_repeated'] == 0
    assert results['engine']['outcomes']['passes_repeated'] > 0


def conversations(path, shared):
    """Mooncake's form: 40 conversations of 5 turns, whose prompts begin with `shared` of the turn before."""
    lines = []
    for turn in range(5):
        for talk in range(40):
            blocks = [(talk if shared else talk + 40 * turn) * 100 + i for i in range(12 + turn)]
            lines.append(json.dumps({'timestamp': (turn * 40 + talk) * 3000, 'input_length': 512 * len(blocks), 'output_length': 8,
                                     'hash_ids': blocks}))
    path.write_text('\n'.join(lines) + '\n')
    return path


def test_prefixes_that_hit_are_not_computed_again(tmp_path):
    """Predictions that leave prefixes out are 4 to 6 times too late here."""
    hits, misses = conversations(tmp_path / 'shared.jsonl', True), conversations(tmp_path / 'apart.jsonl', False)
    place, bare = fleet(tmp_path, 2, 1), fleet(tmp_path, 2, 1, '[simulation]\npool = false\n')
    with_pool, without, apart = run(place, '--trace', hits), run(bare, '--trace', hits), run(place, '--trace', misses)
    assert with_pool['hit_tokens'] / with_pool['matched_tokens'] > 0.7
    assert without['hit_tokens'] == apart['hit_tokens'] == 0
    assert without['all']['ttft']['p50_s'] > 3 * with_pool['all']['ttft']['p50_s']
    assert without['all']['ttft']['p50_s'] == pytest.approx(apart['all']['ttft']['p50_s'], rel=0.02)


def test_a_capacity_does_not_swing_with_the_sample(tmp_path):
    """Eight draws of the same load differ by what 500 requests leave to chance, not by factors."""
    rng = random.Random(5)
    trace = rows(tmp_path / 'mine.csv', [(i / 3, rng.randint(500, 8_000), rng.randint(20, 300)) for i in range(500)])
    place = fleet(tmp_path, 2, 2)
    rates = [run(place, '--trace', trace, '--capacity', '--resample', seed)['rate'] for seed in range(8)]
    assert max(rates) < 1.25 * min(rates)


@pytest.mark.skipif(not (DATA / 'traces/mooncake_conversation.jsonl').is_file(), reason='TRIMTAB_DATA names no folder of traces')
def test_mooncakes_trace_is_one_command():
    one = run('--trace', DATA / 'traces/mooncake_conversation.jsonl')
    assert one['finished'] == 12_031 and one['failed'] == one['unfinished'] == 0
