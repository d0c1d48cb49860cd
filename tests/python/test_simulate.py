"""`trimtab simulate` as a capacity planner runs it."""
import csv
import json
import os
import subprocess
import zipfile

import pytest
from workload import trace_csv

BIN = os.environ.get('TRIMTAB_BIN', 'build/release/bin/trimtab')
FLEET = """
[model]
profile = "v3-like"
[prefill]
engines = 2
ranks = 2
[decode]
groups = 1
ranks = 8
"""


def simulate(*arguments):
    return subprocess.run([BIN, 'simulate', *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=os.environ | {'COLUMNS': '120'})


@pytest.fixture(scope='module')
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp('simulate')
    trace = folder / 'mine.csv'
    trace.write_text(trace_csv(seed=3, requests=300))
    fleet = folder / 'fleet.toml'
    fleet.write_text(FLEET)
    return fleet, trace


def test_a_trace_of_ones_own_gives_percentiles_per_tier(files):
    out = simulate(*files[:1], '--trace', files[1])
    assert out.returncode == 0, out.stderr
    assert '300 requests' in out.stdout and 'TTFT' in out.stdout and '< 16384' in out.stdout


def test_rates_and_policies_compare_and_every_request_ends(files):
    out = simulate(files[0], '--trace', files[1], '--rate', 1, 3, '--decode-policy', 'waterline', 'round_robin', '--json')
    assert out.returncode == 0, out.stderr
    runs = json.loads(out.stdout)['runs']
    assert [(run['decode_policy'], run['rate']) for run in runs] == [
        ('waterline', 1), ('waterline', 3), ('round_robin', 1), ('round_robin', 3)]
    for run in runs:
        assert run['finished'] == 300 and run['failed'] == run['unfinished'] == 0
        parts = run['decode_steps']
        assert abs(sum(parts.values()) - 1) < 1e-6
    assert runs[1]['all']['ttft']['p99_s'] > runs[0]['all']['ttft']['p99_s']
    assert runs[0]['decode_steps']['share_of_ideal'] >= runs[2]['decode_steps']['share_of_ideal']


def test_capacity_is_the_same_twice_and_pulling_is_ahead_of_pushing_at_random(files):
    def found():
        out = simulate(files[0], '--trace', files[1], '--capacity', '--prefill-assignment', 'random', 'pull', '--json')
        assert out.returncode == 0, out.stderr
        return {run['prefill'].split()[0]: run['rate'] for run in json.loads(out.stdout)['runs']}
    rates = found()
    assert rates == found()
    assert rates['pull'] > rates['random'] > 0
    table = simulate(files[0], '--trace', files[1], '--capacity', '--one-queue')
    assert '90 % of every tier' in table.stdout and 'one queue' in table.stdout, table.stderr


def test_exact_and_fast_agree_and_a_run_twice_is_the_same(files):
    def run(*extra):
        return json.loads(simulate(files[0], '--trace', files[1], '--json', *extra).stdout)['runs'][0]
    fast, again, exact = run(), run(), run('--exact')
    assert fast['event_hash'] == again['event_hash']
    assert exact['events'] > 2 * fast['events']
    assert fast['all']['ttft']['mean_s'] == pytest.approx(exact['all']['ttft']['mean_s'], rel=0.01)
    assert fast['all']['tpot']['mean_s'] == pytest.approx(exact['all']['tpot']['mean_s'], rel=0.01)


@pytest.mark.parametrize('arguments, said', [
    (['--rate', '0'], 'a rate of 0'),
    (['--rate', 'nan'], 'a rate of nan'),
    (['--decode-policy', 'waterlin'], 'did you mean "waterline"'),
    (['--csv-prompt', 'prompt_token'], "did you mean 'prompt_tokens'"),
    (['--trace-format', 'mooncak'], "did you mean 'mooncake'"),
])
def test_bad_input_names_the_value_and_the_fix(files, arguments, said):
    out = simulate(files[0], '--trace', files[1], *arguments)
    assert out.returncode == 1
    assert said in out.stderr


@pytest.mark.parametrize('arguments', [['--share', '--rate', '2'], ['--share', '--capacity'], ['--capacity', '--rate', '2'],
                                       ['--no-capacity'], ['--seeds', '5'], ['--timeline-from', '5']])
def test_flags_that_would_do_nothing_are_refused(files, arguments):
    out = simulate(files[0], '--trace', files[1], *arguments)
    assert out.returncode != 0 and out.stdout == '', out.stdout


def test_a_trace_from_a_pipe_is_the_same_trace(files):
    out = subprocess.run([BIN, 'simulate', files[0], '--trace', '/dev/stdin', '--json'], text=True, capture_output=True,
                         stdin=subprocess.Popen(['cat', files[1]], stdout=subprocess.PIPE).stdout, check=False)
    assert out.returncode == 0, out.stderr
    assert json.loads(out.stdout)['runs'][0]['event_hash'] == one_run(files[0], '--trace', files[1])['event_hash']


def test_a_capacity_that_nothing_bounds_or_reaches_says_so(files, tmp_path):
    trace = tmp_path / 'one.csv'
    trace.write_text('arrival_s,prompt_tokens,output_tokens\n0,100,5\n')
    out = simulate(files[0], '--trace', trace, '--capacity')
    assert out.returncode == 0 and 'every rate holds' in out.stderr
    trace.write_text('arrival_s,prompt_tokens,output_tokens\n0,99000000,5\n')
    out = simulate(files[0], '--trace', trace, '--capacity')
    assert 'no rate serves the trace well' in out.stderr
    assert 'leaves no room for an answer' in out.stderr, 'and why'


def test_traces_of_one_request_and_of_none(files, tmp_path):
    one = tmp_path / 'one.csv'
    one.write_text('arrival_s,prompt_tokens,output_tokens\n0,100,5\n')
    assert '1 request ' in simulate(files[0], '--trace', one).stdout
    none = tmp_path / 'none.csv'
    none.write_text('arrival_s,prompt_tokens,output_tokens\n')
    out = simulate(files[0], '--trace', none)
    assert out.returncode == 1 and 'has no request' in out.stderr


def test_an_unknown_key_of_a_scenario_names_the_nearest(files, tmp_path):
    scenario = tmp_path / 'bad.toml'
    scenario.write_text('[simulation]\nspede = "fast"\n')
    out = simulate(scenario, '--trace', files[1])
    assert out.returncode == 1 and 'speed' in out.stderr


def one_run(*arguments):
    out = simulate(*arguments, '--json')
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)['runs'][0]


def client_models(folder, rates):
    """A directory as ServeGen publishes it: clients of ten minutes that send one image each."""
    folder.mkdir()
    for number, rate in enumerate(rates):
        (folder / f'chunk-{number}-trace.csv').write_text(f'0,{rate},2.0,Gamma,0.25,1\n600,{rate},0.7,Weibull,1.5,1\n')
        (folder / f'chunk-{number}-dataset.json').write_text(json.dumps({'0': {
            'text_tokens': '{100: 0.5, 300: 0.5}', 'image_tokens': '{1000: 1.0}', 'image_count': '{0: 0.5, 1: 0.5}',
            'output_tokens': '{20: 1.0}'}}))
    return folder


def test_client_models_are_drawn_with_their_rates(files, tmp_path):
    models = client_models(tmp_path / 'models', [1.0, 0.5])
    whole = one_run(files[0], '--trace', models)
    assert whole['finished'] == pytest.approx(1800, rel=0.15)
    assert whole['event_hash'] == one_run(files[0], '--trace', models)['event_hash']
    assert whole['event_hash'] != one_run(files[0], '--trace', models, '--trace-seed', 2)['event_hash']
    busiest = one_run(files[0], '--trace', models, '--clients', 1, '--from-s', 600, '--for-s', 300)
    assert busiest['finished'] == pytest.approx(300, rel=0.25)
    out = simulate(files[0], '--trace', models, '--from-s', 9999)
    assert out.returncode == 1 and 'the models cover 0 to 1200 s' in out.stderr


def test_traces_mix_by_shares_and_become_stationary_by_a_seed(files, tmp_path):
    other = tmp_path / 'other.csv'
    other.write_text('arrival_s,prompt_tokens,output_tokens\n' + ''.join(f'{i},500,5\n' for i in range(100)))
    mixed = one_run(files[0], '--trace', files[1], '--trace', other, '--mix', 0.75, 0.25)
    assert mixed['finished'] == pytest.approx(400, abs=3) and mixed['failed'] == 0
    seeds = [one_run(files[0], '--trace', files[1], '--resample', seed) for seed in (1, 1, 2)]
    assert [run['finished'] for run in seeds] == [300] * 3
    assert seeds[0]['event_hash'] == seeds[1]['event_hash'] != seeds[2]['event_hash']


@pytest.mark.parametrize('rows, said', [
    ('0,-5,1', 'mine.csv:2: a prompt of -5 tokens'),
    ('0,0,1', 'mine.csv:2: a prompt of 0 tokens'),
    ('0,5,-1', 'mine.csv:2: an output of -1 tokens'),
    ('0,5,1e12', 'mine.csv:2: an output of 1000000000000 tokens'),
    ('0,5.5,1', "mine.csv:2: '5.5' is no whole number"),
    ('nan,5,1', "mine.csv:2: 'nan' is no time"),
    ('1e300,5,1\n0,5,1', 'mine.csv'),
])
def test_rows_that_no_request_has_are_refused_with_their_line(files, tmp_path, rows, said):
    trace = tmp_path / 'mine.csv'
    trace.write_text(f'arrival_s,prompt_tokens,output_tokens\n{rows}\n')
    out = simulate(files[0], '--trace', trace)
    assert out.returncode == 1 and said in out.stderr


@pytest.mark.parametrize('arguments, said', [
    (['--mix', '0.7', '0.3'], '2 shares for 1 traces'),
    (['--mix', '0'], 'a share of 0'),
    (['--start-span-s', 'nan'], 'cannot start over nan s'),
    (['--from-s', '1e9'], 'no request arrives in the slice'),
    (['--clients', '3'], 'only client models have them'),
])
def test_what_cannot_be_asked_of_a_trace(files, arguments, said):
    out = simulate(files[0], '--trace', files[1], *arguments)
    assert out.returncode == 1 and said in out.stderr, out.stderr


def test_expert_policies_and_verification_compare(files, tmp_path):
    out = simulate(files[0], '--trace', files[1], '--expert-policy', 'off', 'repair', '--verify', 'fixed', 'group', '--json',
                   '--csv', tmp_path / 'csv')
    assert out.returncode == 0, out.stderr
    runs = json.loads(out.stdout)['runs']
    assert [(run['expert_policy'], run['verify']) for run in runs] == [
        ('off', 'fixed'), ('off', 'group'), ('repair', 'fixed'), ('repair', 'group')]
    assert len({run['event_hash'] for run in runs}) == 4
    for run in runs:
        parts = run['decode_steps']
        assert run['finished'] == 300 and abs(sum(parts.values()) - 1) < 1e-6
        assert (parts['expert_copies'] > 0) == (run['expert_policy'] == 'repair')
    uneven = [run['decode_steps']['expert_imbalance'] + run['decode_steps']['expert_drift'] for run in runs]
    assert uneven[2] < uneven[0] and uneven[3] < uneven[1]
    table = list(csv.reader((tmp_path / 'csv/runs.csv').read_text().splitlines()))
    assert table[0][:5] == ['decode_policy', 'prefill', 'expert_policy', 'verify', 'rate']
    assert [row[2:4] for row in table[1:]] == [[run['expert_policy'], run['verify']] for run in runs]
    shown = simulate(files[0], '--trace', files[1], '--expert-policy', 'off', 'deepinfer').stdout
    assert 'experts off, waterline' in shown and 'decode, deepinfer, waterline' in shown


def test_a_policy_that_is_none_names_those_that_are(files):
    out = simulate(files[0], '--trace', files[1], '--expert-policy', 'deepinfr')
    assert out.returncode != 0 and 'deepinfer' in out.stderr
    out = simulate(files[0], '--trace', files[1], '--share', '--verify', 'fixed', 'group')
    assert out.returncode != 0 and 'one --verify' in out.stderr


def test_output_that_cannot_be_written_is_an_error(files):
    for extra in ([], ['--json']):
        with open('/dev/full', 'w') as full:
            out = subprocess.run([BIN, 'simulate', str(files[0]), '--trace', str(files[1]), *extra], stdout=full,
                                 stderr=subprocess.PIPE, text=True, timeout=120)
        assert out.returncode == 1
        assert len(out.stderr.splitlines()) == 1 and out.stderr.startswith('trimtab: standard output: cannot write'), out.stderr


def test_one_request_is_no_plural(files, tmp_path):
    one = tmp_path / 'one.csv'
    one.write_text(trace_csv(seed=3, requests=1))
    out = simulate(files[0], '--trace', one)
    assert out.stdout.startswith('1 request of'), out.stdout + out.stderr


def test_one_seed_has_no_interval(files):
    for seeds, said in [(1, ', 1 seed (no interval).'), (2, ', 2 seeds (± 95 %).')]:
        out = simulate(files[0], '--trace', files[1], '--share', '--no-capacity', '--share-stages', 'decode', '--seeds', seeds)
        assert out.returncode == 0 and said in out.stdout, out.stdout + out.stderr
        assert ('±' in out.stdout.replace(said, '')) == (seeds > 1)


def npz(path, arrays):
    """Arrays of bytes, by name: (shape, values)."""
    with zipfile.ZipFile(path, 'w') as archive:
        for name, (shape, values) in arrays.items():
            header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
            archive.writestr(name + '.npy', b'\x93NUMPY\x01\x00' + len(header).to_bytes(2, 'little') + header + bytes(values))


def test_recorded_routing_is_the_load_of_the_experts(files, tmp_path):
    windows, tokens, layers, experts = 12, 32, 2, 32

    def ids(first):
        """Each window likes a few experts of its text's half."""
        return [(first + (window + token * (layer + 1)) % 4 + 4 * choice) % experts for window in range(windows) for token in range(tokens)
                for layer in range(layers) for choice in range(2)]
    shape = (windows, tokens, layers, 2)
    npz(tmp_path / 'routing.npz', {'prose': (shape, ids(0)), 'code': (shape, ids(24))})
    fleet = tmp_path / 'fleet.toml'
    experts_table = '[simulation.experts]\nrouting = "routing.npz"\nlayers = 2\n'
    fleet.write_text(files[0].read_text() + experts_table)
    out = simulate(fleet, '--trace', files[1], '--expert-policy', 'off', 'repair', '--json')
    assert out.returncode == 0, out.stderr
    off, repair = json.loads(out.stdout)['runs']
    lost = [run['decode_steps']['expert_imbalance'] + run['decode_steps']['expert_drift'] for run in (off, repair)]
    assert lost[0] > 2 * lost[1], 'half of the ranks have nothing to do until experts are re-placed'
    for table, said in [(experts_table.replace('routing.npz', 'none.npz'), 'none.npz'),
                        (experts_table + 'experts = 16\n', 'a model of 16: leave experts out or set it to 32'),
                        (experts_table.replace('layers = 2', 'layers = 4'), 'set layers to 2 or less')]:
        fleet.write_text(files[0].read_text() + table)
        out = simulate(fleet, '--trace', files[1], '--expert-policy', 'off')
        assert out.returncode == 1 and said in out.stderr, out.stderr
    fleet.write_text(files[0].read_text() + experts_table)
    out = simulate(fleet, '--trace', files[1])
    assert out.returncode == 1 and 'no experts are modelled' in out.stderr
