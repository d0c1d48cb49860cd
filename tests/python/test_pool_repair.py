"""`trimtab pool status | scrub | rebuild | exercise` over real kv-target processes."""
import json
import os
import resource
import signal
import subprocess
import time

import pytest
from kv_fleet import BINARY, Fleet, Target

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
BLOCKS = 150


@pytest.fixture
def fleet(tmp_path):
    with Fleet(tmp_path) as running:
        yield running


@pytest.fixture
def filled(fleet):
    made = fleet.json('exercise', '--blocks', str(BLOCKS), '--keep')
    assert made['written'] == BLOCKS and made['wrong'] == made['missing'] == 0
    return fleet


def read_all(fleet, **keywords):
    """Every block is there and right."""
    seen = fleet.json('exercise', '--blocks', str(BLOCKS), '--only-read', **keywords)
    assert (seen['read'], seen['wrong'], seen['missing']) == (BLOCKS, 0, 0)
    return seen


def test_status_tells_blocks_shards_and_who_is_dead(filled):
    well = filled.json('status')
    assert (well['blocks'], well['whole'], well['degraded'], well['unreadable']) == (BLOCKS, BLOCKS, 0, 0)
    assert sum(t['shards'] for t in well['targets']) == 12 * BLOCKS
    assert all(t['state'] == 'alive' and t['used_bytes'] > 0 for t in well['targets'])
    lost = well['targets'][3]['shards']
    filled.targets[3].kill()
    ill = filled.json('status', code=2)
    assert ill['targets'][3]['state'] == 'dead' and ill['targets'][3]['trouble']
    assert (ill['blocks'], ill['degraded'], ill['unreadable']) == (BLOCKS, lost, 0)
    filled.targets[5].kill()
    read_all(filled)
    filled.targets[7].kill()
    worst = filled.json('status', code=3)
    assert 0 < worst['unreadable'] < BLOCKS, 'blocks with a shard at each of the three'


def test_targets_that_do_not_answer_are_no_whole_pool_also_when_it_holds_nothing(fleet):
    assert fleet.json('status')['blocks'] == 0
    for dead, code in ((2, 2), (4, 2), (6, 3)):
        fleet.targets[dead].kill()
        fleet.json('status', code=code)
        if dead == 2:
            assert '1 of them do not answer, 1 more may be lost' in fleet.run('status').stdout
    assert '3 of them do not answer, more than may be lost' in fleet.run('status').stdout


def test_commands_for_another_model_touch_nothing(filled):
    shards = sum(t['shards'] for t in filled.json('status')['targets'])
    for command in ('status', 'scrub', 'rebuild'):
        done = subprocess.run([BINARY, 'pool', command, '--layer-bytes', '8192,8192', '--targets', *(t.place for t in filled.targets)],
                              capture_output=True, text=True, timeout=120)
        assert done.returncode == 1 and f'{BLOCKS} blocks of another model' in done.stderr, done
    assert sum(t['shards'] for t in filled.json('status')['targets']) == shards
    read_all(filled)


@pytest.mark.parametrize('option, value', (('--bytes-per-second', '-5'), ('--directory-bytes', '-1G'), ('--directory-bytes', '0')))
def test_sizes_that_are_none_are_refused(fleet, option, value):
    done = fleet.run('scrub', f'{option}={value}')
    assert done.returncode != 0 and f'{value}: give a size above 0' in done.stderr, done.stderr


def test_a_target_without_room_does_not_start(tmp_path):
    for capacity in ('-5', '0'):
        done = subprocess.run([BINARY, 'kv-target', '--memory', '--listen', '127.0.0.1:0', f'--capacity={capacity}'], capture_output=True,
                              text=True, timeout=120)
        assert done.returncode != 0 and f'{capacity}: give a size above 0' in done.stderr, done


def test_what_is_exercised_without_keep_is_erased(fleet):
    done = fleet.json('exercise', '--blocks', '40', '--reads', '100')
    assert (done['written'], done['read'], done['wrong'], done['missing']) == (40, 100, 0, 0)
    assert fleet.json('status')['blocks'] == 0
    missing = fleet.json('exercise', '--blocks', '40', '--only-read', code=3)
    assert missing['missing'] == 40


def test_an_empty_target_in_a_dead_ones_place_is_filled(filled, tmp_path):
    before = filled.json('status')['targets'][4]['shards']
    filled.targets[4].kill()
    filled.targets[4] = fresh = Target(tmp_path / 'another')
    places = [t.place for t in filled.targets]
    old = [*places[:4], 'tcp://127.0.0.1:9', *places[5:]]
    done = filled.run('rebuild', '--replace', f'4={fresh.place}', places=old)
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert fresh.place in done.stderr, 'says what the list is from now on'
    after = filled.json('status')
    assert after['whole'] == BLOCKS and after['targets'][4]['shards'] == before
    for other in (0, 9):
        filled.targets[other].kill()
    read_all(filled)


def flip_bits(target, shards):
    """Flips a bit in the content of so many of a target's shards, as a disk that rots would."""
    path, flipped = target.directory / 'extents.000000', 0
    with open(path, 'r+b') as extents:
        content = extents.read()
        for at in range(0, len(content), 4096):
            if flipped < shards and content[at:at + 4] == b'TKVS':
                extents.seek(at + 300)
                extents.write(bytes([content[at + 300] ^ 4]))
                flipped += 1
        os.fsync(extents.fileno())
    assert flipped == shards


def test_flipped_bits_are_found_and_healed(filled):
    flip_bits(filled.targets[2], 5)
    flip_bits(filled.targets[8], 3)
    assert filled.json('status')['whole'] == BLOCKS, 'nobody has looked yet'
    found = filled.json('scrub')
    assert (found['blocks'], found['shards_bad'], found['shards_written'], found['unreadable']) == (BLOCKS, 8, 8, 0)
    again = filled.json('scrub')
    assert (again['shards_bad'], again['shards_written'], again['whole_after']) == (0, 0, BLOCKS)
    read_all(filled)


def test_damage_beyond_repair_shows_in_the_exit_code(filled):
    for target in filled.targets[:3]:
        flip_bits(target, filled.json('status')['targets'][0]['shards'] // 2)
    done = filled.run('scrub', '--json')
    found = json.loads(done.stdout)
    assert done.returncode == (3 if found['unreadable'] else 0)
    assert found['unreadable'] > 0, 'some block had three shards among those'
    assert found['whole_after'] + found['unreadable'] == BLOCKS, 'all others are whole again'


def test_an_interrupted_scrub_goes_on_where_it_was(filled, tmp_path):
    cursor, blocks = tmp_path / 'cursor', 4 * BLOCKS  # so many that the slowest scrub is not over before it is interrupted
    assert filled.json('exercise', '--seed', '2', '--blocks', str(3 * BLOCKS), '--keep')['written'] == 3 * BLOCKS
    flip_bits(filled.targets[6], 10)
    slow = filled.arguments('scrub', '--resume', str(cursor), '--bytes-per-second', '1M')
    process = subprocess.Popen(slow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 60
    while not (cursor.exists() and json.loads(cursor.read_text())['blocks'] > 0):
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 4, errors
    assert 'left' in errors and 'interrupted' in errors
    kept = json.loads(cursor.read_text())
    assert 0 < kept['blocks'] < blocks
    strange = tmp_path / 'strange'
    strange.write_text(json.dumps({**kept, 'targets': [*kept['targets'][:-1], 'tcp://10.0.0.9:7701']}))
    other = filled.run('scrub', '--resume', str(strange))
    assert other.returncode == 1 and 'other targets' in other.stderr
    # In any order: the targets know their numbers.
    done = filled.run('scrub', '--json', '--resume', str(cursor), places=[t.place for t in reversed(filled.targets)])
    assert done.returncode == 0, done.stderr
    assert f'goes on after {kept["blocks"]} blocks' in done.stderr
    found = json.loads(done.stdout)
    assert (found['blocks'], found['shards_bad']) == (blocks, 10), 'each block once, over both runs'
    assert not cursor.exists()


def test_killed_processes_come_back_with_what_they_held(filled):
    for index in (1, 11):
        filled.targets[index].kill()
    # Written while two are dead: ten or eleven shards each, mended by the rebuild.
    assert filled.json('exercise', '--seed', '2', '--blocks', '60', '--keep')['written'] == 60
    for index in (1, 11):
        filled.targets[index].start()
    assert filled.json('status', code=2)['degraded'] > 0
    done = filled.json('rebuild')
    assert done['whole_after'] == BLOCKS + 60 and done['shards_written'] > 0
    for index in (0, 5):
        filled.targets[index].kill()
    read_all(filled)
    assert filled.json('exercise', '--seed', '2', '--blocks', '60', '--only-read')['missing'] == 0


def test_directories_have_one_owner(filled):
    places = [str(t.directory) for t in filled.targets]
    refused = filled.run('status', '--directory-bytes', '416M', places=places)
    assert refused.returncode == 1
    assert 'tcp://' in refused.stderr and str(filled.targets[0].directory) in refused.stderr


@pytest.mark.parametrize('arguments, words', [
    (['status', '--profile', 'deepseek-v4.1-flash'], '--targets'),
    (['status', '--targets', 'tcp://127.0.0.1:9'], '--profile'),
    (['status', '--layer-bytes', '4096', '--targets', 'ftp://x'], 'ftp://x'),
    (['rebuild', '--layer-bytes', '4096', '--targets', 'tcp://127.0.0.1:9', '--replace', '7=tcp://127.0.0.1:9'], "'7=tcp://127.0.0.1:9'"),
    (['scrub', '--layer-bytes', '4096', '--targets', 'tcp://127.0.0.1:9', '--resume', '/proc/none/cursor'], '/proc/none/cursor'),
])
def test_mistakes_are_named(arguments, words):
    done = subprocess.run([BINARY, 'pool', *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and words in done.stderr, done.stderr


@pytest.mark.parametrize('command', (['status'], ['scrub'], ['rebuild'], ['exercise', '--only-read']))
def test_a_mistyped_directory_is_refused_and_not_made(tmp_path, command):
    places = [str(tmp_path / f'disk{i}') for i in range(2)]
    arguments = ['--layer-bytes', '4096', '--directory-bytes', '8M', '--targets']
    done = subprocess.run([BINARY, 'pool', 'exercise', '--blocks', '3', '--keep', *arguments, *places], capture_output=True, text=True,
                          timeout=120)
    assert done.returncode == 0, done.stderr
    typo = str(tmp_path / 'disk9')
    done = subprocess.run([BINARY, 'pool', *command, *arguments, places[0], typo], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and f'{typo}: no such directory' in done.stderr, done
    assert not os.path.exists(typo)


def test_help_teaches():
    for command in ('status', 'scrub', 'rebuild', 'exercise'):
        said = subprocess.run([BINARY, 'pool', command, '--help'], capture_output=True, text=True, timeout=120).stdout
        assert f'trimtab pool {command}' in said and 'Exit code' in said


def test_a_target_whose_disk_takes_no_more_says_so_once(tmp_path):
    """Its clients are told `full` only; a limit on file sizes stands for the disk."""
    log, metrics = tmp_path / 'log', tmp_path / 'metrics'
    with open(log, 'wb') as said:
        target = subprocess.Popen([BINARY, 'kv-target', '--directory', str(tmp_path / 'kv'), '--listen', '127.0.0.1:0', '--capacity', '64M',
                                   '--metrics-file', str(metrics)], stdout=subprocess.PIPE, stderr=said, text=True, restore_signals=False,
                                  preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8 << 20, 8 << 20)))
    try:
        place = 'tcp://' + target.stdout.readline().split()[-1]
        subprocess.run([BINARY, 'pool', 'exercise', '--layer-bytes', '200000', '--blocks', '100', '--targets', place], capture_output=True,
                       timeout=120)
        end = time.monotonic() + 120
        # Each is looked at on its own tick.
        while 'trimtab_kv_target_trouble 1' not in (metrics.read_text() if metrics.exists() else '') or 'refused' not in log.read_text():
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        assert log.read_text().count('writes are refused') == 1, log.read_text()
    finally:
        target.kill()
        target.wait()
