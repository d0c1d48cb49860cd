"""`trimtab cost fit`: step logs to a cost table, and what it refuses."""
import json
import os
import pathlib
import random
import subprocess
import tomllib

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))
FIXED_MS, TOKEN_US, PAIR_NS = 20.0, 80.0, 1.2

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason='TRIMTAB_BIN names no built command')


def fit(steps, output, *more):
    return subprocess.run([BINARY, 'cost', 'fit', str(steps), '--output', str(output), *more], capture_output=True,
                          text=True, timeout=120)


def cost_ms(tokens, computed):
    return TOKEN_US * tokens / 1e3 + PAIR_NS * tokens * (computed + tokens / 2) / 1e6


def steps(count=200, noise=0.01, seed=1):
    generator = random.Random(seed)
    made = []
    for _ in range(count):
        chunks = [{'tokens': generator.randrange(1, 4000), 'computed': generator.randrange(0, 60000)}
                  for _ in range(generator.randrange(1, 4))]
        time = FIXED_MS + sum(cost_ms(**chunk) for chunk in chunks)
        made.append({'chunks': chunks, 'actual_ms': time * generator.uniform(1 - noise, 1 + noise)})
    return made


def write_lines(path, made):
    path.write_text(''.join(json.dumps(step) + '\n' for step in made))
    return path


def check(table):
    assert table['form'] == 'quadratic'
    assert table['fixed_ns'] == pytest.approx(FIXED_MS * 1e6, rel=0.03)
    assert table['token_ps'] == pytest.approx(TOKEN_US * 1e6, rel=0.03)
    assert table['pair_ps'] == pytest.approx(PAIR_NS * 1e3, rel=0.03)


def test_json_lines_with_outliers(tmp_path):
    made = steps()
    for step in made[3::7]:
        step['actual_ms'] *= 5
    result = fit(write_lines(tmp_path / 'steps.jsonl', made), tmp_path / 'profile.toml', '--machine', 'test bed')
    assert result.returncode == 0, result.stderr
    assert '29 outliers left out' in result.stdout
    assert 'steps held out' in result.stdout
    written = tomllib.loads((tmp_path / 'profile.toml').read_text())
    check(written['cost'])
    assert written['calibration']['machine'] == 'test bed'
    assert written['calibration']['samples'] == 200
    assert written['calibration']['error_ratio_mean'] < 0.01


def test_csv_to_standard_output(tmp_path):
    rows = ['step,tokens,computed,actual_ms']
    for number, step in enumerate(steps()):
        rows += [f"{number},{chunk['tokens']},{chunk['computed']},{step['actual_ms']}" for chunk in step['chunks']]
    (tmp_path / 'steps.csv').write_text('\n'.join(rows) + '\n')
    result = fit(tmp_path / 'steps.csv', '-')
    assert result.returncode == 0, result.stderr
    check(tomllib.loads(result.stdout)['cost'])
    assert 'held out' in result.stderr


def test_a_torn_last_line_is_said_and_left_out(tmp_path):
    path = write_lines(tmp_path / 'steps.jsonl', steps())
    path.write_text(path.read_text()[:-20])
    result = fit(path, '-')
    assert result.returncode == 0, result.stderr
    assert 'cut short' in result.stderr


@pytest.mark.parametrize('made, message', [
    (steps(20), '20 steps; a calibration needs at least 30'),
    ([{'tokens': 100, 'computed': 10 * i, 'actual_ms': 30} for i in range(50)], 'hardly varies on its own'),
    ([{'tokens': 100, 'computed': 0, 'actual_ms': 30}] * 50, 'only 1 distinct shapes'),
    (steps(200, noise=0.6), 'steps it had not seen (at most 10.0 %)'),
])
def test_refuses_what_production_should_not_trust(tmp_path, made, message):
    result = fit(write_lines(tmp_path / 'steps.jsonl', made), tmp_path / 'profile.toml')
    assert result.returncode == 1
    assert message in result.stderr
    assert not (tmp_path / 'profile.toml').exists()


def test_bad_input_is_named(tmp_path):
    path = tmp_path / 'steps.jsonl'
    path.write_text('{"tokens": 1, "computed": 0, "actual_ms": 1}\n{"tokens": -4, "computed": 0, "actual_ms": 1}\n')
    result = fit(path, '-')
    assert result.returncode == 1 and 'steps.jsonl:2: tokens is -4' in result.stderr
    result = fit(tmp_path / 'nothing.jsonl', '-')
    assert result.returncode == 1 and 'nothing.jsonl' in result.stderr
    result = fit(write_lines(path, steps()), tmp_path / 'no' / 'folder.toml')
    assert result.returncode == 1 and 'cannot write' in result.stderr


def test_the_limits_can_be_set_and_help_teaches_the_forms(tmp_path):
    path = write_lines(tmp_path / 'steps.jsonl', steps(200, noise=0.3))
    assert fit(path, '-').returncode == 1
    assert fit(path, '-', '--error-max', '30').returncode == 0
    text = subprocess.run([BINARY, 'cost', 'fit', '--help'], capture_output=True, text=True, timeout=120).stdout
    for word in ('steps.jsonl', 'decisions', 'computed', 'held out'):
        assert word in text
