"""`trimtab pool` as who builds a pool types it: where shards go, how long the SSDs last, how hits reach the device."""
import json
import os
import subprocess

import pytest
from conftest import BINARY

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
SSDS = ('--dwpd', 1, '--device-bytes', '30.72T', '--devices', 20, '--nodes', 64)


def run(*arguments, check=True, cwd=None):
    done = subprocess.run([BINARY, 'pool', *map(str, arguments)], capture_output=True, text=True, timeout=120, cwd=cwd,
                          env={**os.environ, 'LANG': 'C.UTF-8'})
    assert not check or done.returncode == 0, f'{arguments}: {done.stderr}'
    return done


def run_json(*arguments, **options):
    return json.loads(run(*arguments, '--json', **options).stdout)


def refused(*arguments, names):
    """One line that names what is wrong, and nothing on stdout that a program might take for an answer."""
    done = run(*arguments, check=False)
    assert done.returncode != 0 and done.stdout == '', done
    assert names in done.stderr and 'terminate' not in done.stderr, done.stderr


@pytest.fixture
def conversations(tmp_path):
    """40 conversations of three turns, one after another: each turn asks for the blocks of the last and two more."""
    lines = []
    for turn in range(120):
        first, blocks = turn // 3 * 10, 4 + turn % 3 * 2
        lines.append(json.dumps({'timestamp': turn * 10_000, 'input_length': blocks * 512, 'output_length': 10,
                                 'hash_ids': list(range(first, first + blocks))}))
    path = tmp_path / 'conversations.jsonl'
    path.write_text('\n'.join(lines) + '\n')
    return path


def test_layout_of_an_exact_and_of_a_near_design():
    exact, near = run_json('layout', '--nodes', 13, '--nodes', 64)
    assert exact['nodes'] == 13 and exact['rebuild_reads_max_over_mean'] == 1
    assert exact['groups_per_pair'][0] == exact['groups_per_pair'][1]
    assert near['shards_per_node'][0] == near['shards_per_node'][1]
    assert 1 <= near['rebuild_reads_max_over_mean'] <= 1.02
    text = run('layout', '--nodes', 64).stdout
    assert 'shards/node' in text and '64' in text


def test_layout_keeps_racks_and_grows_with_few_moves():
    racks, = run_json('layout', '--nodes', 48, '--racks', 12)
    assert racks['rack_most'] == 1
    grown, = run_json('layout', '--nodes', 60, '--grow', 4)
    shards = grown['groups'] * 12
    assert grown['nodes'] == 64 and 0 < grown['shards_moved'] < shards / 4


def test_layout_refuses_what_cannot_be_laid_out():
    refused('layout', '--nodes', 5, names='5')
    refused('layout', '--nodes', 12, names='12 nodes')
    refused('layout', '--nodes', 100_000, names='100000')
    refused('layout', '--nodes', 'many', names='many')
    refused('layout', names='--nodes')


def test_plan_of_a_rate_is_the_arithmetic():
    plan = run_json('plan', *SSDS, '--write-bytes-per-second', '100G')
    per_device = 100e9 * 1.2 * 86_400 / (20 * 64)
    assert plan['device_written_bytes_per_day'] == pytest.approx(per_device)
    assert plan['device_budget_bytes_per_day'] == pytest.approx(30.72e12)
    assert plan['life_years'] == pytest.approx(5 * 30.72e12 / per_device)
    assert plan['admitted_ratio'] == 1
    over = run_json('plan', *SSDS, '--write-bytes-per-second', '1T', '--write-amplification', 2)
    assert over['admitted_ratio'] == pytest.approx(30.72e12 / (per_device * 20))
    assert over['life_years'] < 5
    text = run('plan', *SSDS, '--write-bytes-per-second', '1T', '--write-amplification', 2).stdout
    assert 'years' in text and 'Over the budget' in text
    idle = run_json('plan', *SSDS, '--write-bytes-per-second', 0)
    assert 'life_years' not in idle and idle['admitted_ratio'] == 1


def test_plan_of_a_trace_counts_what_is_stored(conversations, tmp_path):
    # From another folder: the profiles are found all the same.
    everything = run_json('plan', *SSDS, '--trace', conversations, '--room', 100, cwd=tmp_path)
    assert everything['hit_ratio'] == pytest.approx((4 + 6) / (4 + 6 + 8))
    seconds = 119 * 10
    blocks = everything['write_bytes_per_second'] * seconds / (114_048 * 4)
    assert blocks == pytest.approx(40 * 8), 'every block is written once'
    fast = run_json('plan', *SSDS, '--trace', conversations, '--room', 100, '--rate', 100)
    assert fast['write_bytes_per_second'] == pytest.approx(100 * everything['write_bytes_per_second'])
    none = run_json('plan', *SSDS, '--trace', conversations, '--room', 1, '--policy', 'lru')
    assert none['hit_ratio'] < everything['hit_ratio'] and none['write_bytes_per_second'] > everything['write_bytes_per_second']


def test_plan_refuses_what_it_cannot_plan(conversations, tmp_path):
    rate = ('--write-bytes-per-second', '1G')
    refused('plan', *SSDS, names='--trace')
    refused('plan', *SSDS, *rate, '--trace', conversations, names='give one')
    refused('plan', *SSDS, '--write-bytes-per-second', '1X', names='"1X"')
    refused('plan', *SSDS, '--write-bytes-per-second', '-1', names='--write-bytes-per-second')
    refused('plan', '--dwpd', 0, '--devices', 1, '--nodes', 1, *rate, names='--dwpd')
    refused('plan', '--dwpd', 1, '--devices', 0, '--nodes', 1, *rate, names='--devices')
    refused('plan', *SSDS, *rate, '--write-amplification', 0.5, names='--write-amplification')
    refused('plan', *SSDS, '--trace', conversations, '--policy', 'lur', names='"lru"')
    refused('plan', *SSDS, '--trace', conversations, '--room', 0, names='--room')
    refused('plan', *SSDS, '--trace', conversations, '--room', 0.001, names='--room')
    refused('plan', *SSDS, '--trace', conversations, '--starts-over-hours', -1, names='--starts-over-hours')
    refused('plan', *SSDS, '--trace', conversations, '--profile', 'no-such-model', names='no-such-model')
    refused('plan', *SSDS, '--trace', tmp_path / 'nowhere.jsonl', names='nowhere.jsonl')


def test_swap_in_measures_and_chooses():
    answer = run_json('swap-in', '--blocks', 16, '--pass-ms', 50)
    assert answer['choice']['backend'] and answer['choice']['total_ns'] > 0
    assert 0 <= answer['choice']['hidden_ratio'] <= 1
    assert 'memcpy' in run('swap-in', '--blocks', 16).stdout
    refused('swap-in', '--blocks', 0, names='--blocks')
    refused('swap-in', '--profile', 'no-such-model', names='no-such-model')


@pytest.mark.parametrize('typed, names, meant', [(('pool', 'expnd'), 'expnd', 'expand'), (('stauts',), 'stauts', 'status'),
                                                 (('experts', 'advize'), 'advize', 'advise')])
def test_a_mistyped_command_is_named_with_what_was_meant(typed, names, meant):
    done = subprocess.run([BINARY, *typed], capture_output=True, text=True, timeout=120)
    assert done.returncode != 0 and done.stdout == ''
    assert f'"{names}"' in done.stderr and f'"{meant}"' in done.stderr
