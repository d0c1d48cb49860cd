"""`trimtab simulate --faults`: what a capacity planner learns of a cluster that breaks."""
import json
import os
import subprocess
from pathlib import Path

import pytest
from workload import trace_csv

BIN = os.environ.get('TRIMTAB_BIN', 'build/release/bin/trimtab')
SCENARIOS = sorted(Path('tests/scenarios').glob('*.toml'))


def simulate(*arguments):
    return subprocess.run([BIN, 'simulate', *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=os.environ | {'COLUMNS': '120'})


@pytest.fixture(scope='module')
def trace(tmp_path_factory):
    path = tmp_path_factory.mktemp('faults') / 'mine.csv'
    path.write_text(trace_csv(seed=5, requests=250, per_second=2.5))
    return path


def run(*arguments):
    out = simulate(*arguments, '--json')
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)['runs'][0]


@pytest.mark.parametrize('scenario', SCENARIOS, ids=lambda path: path.stem)
def test_every_request_of_every_scenario_ends_or_says_why_and_twice_is_the_same(scenario, trace):
    result, again = run(scenario, '--trace', trace), run(scenario, '--trace', trace)
    assert result['event_hash'] == again['event_hash']
    assert result['submitted'] == 250 == result['finished'] + result['failed'] + result['unfinished']
    assert bool(result['failures']) == (result['failed'] + result['unfinished'] > 0)
    assert 'faults' in result['outcomes']


def test_a_plan_of_its_own_adds_to_a_scenario_and_costs_time(trace, tmp_path):
    fleet = tmp_path / 'fleet.toml'
    fleet.write_text('[model]\nprofile = "v3-like"\n[prefill]\nengines = 2\nranks = 2\n[decode]\ngroups = 2\nranks = 4\n')
    plan = tmp_path / 'plan.toml'
    plan.write_text('[[fault]]\nkind = "engine"\nrole = "prefill"\ntargets = [0]\nat_s = 20\nfor_s = 30\nstart_up_s = 10\n')
    calm, broken = run(fleet, '--trace', trace), run(fleet, '--trace', trace, '--faults', plan)
    assert broken['finished'] == calm['finished'] == 250
    assert broken['outcomes']['faults']['engine_down_s'] == pytest.approx(40)
    assert broken['all']['ttft']['p99_s'] > calm['all']['ttft']['p99_s']
    assert broken['output_tokens'] == calm['output_tokens']
    shown = simulate(fleet, '--trace', trace, '--faults', plan)
    assert '1 engines lost (40.0 s away in all)' in shown.stdout, shown.stderr


@pytest.mark.parametrize('plan, said', [
    ('[[fault]]\nkind = "engin"\nrole = "decode"\nat_s = 1\n', 'engine'),
    ('[[fault]]\nkind = "queue"\nat_s = 1\nfor_ss = 2\n', 'for_s'),
    ('[[fault]]\nkind = "engine"\nrole = "decode"\ntargets = [7]\nat_s = 1\n', 'decode groups'),
    ('[[fault]]\nkind = "storage_node"\nat_s = 1\n', 'simulation.storage.nodes'),
    ('[[fault]]\nkind = "queue"\n', 'at_s'),
])
def test_a_plan_that_cannot_be_names_the_line_and_the_fix(plan, said, trace, tmp_path):
    path = tmp_path / 'plan.toml'
    path.write_text(plan)
    out = simulate('--trace', trace, '--faults', path)
    assert out.returncode == 1
    assert said in out.stderr and 'plan.toml:' in out.stderr
