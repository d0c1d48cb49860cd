"""A pool whose targets change while a loader serves it: `trimtab pool expand | drain | give-up | replace`, over real processes."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import time

import pytest
from kv_fleet import BINARY, ROOT, Fleet, Target
from served import free_port, toml

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
BLOCKS = 24
PROFILE = 'smollm2-135m'


class Loader:
    """`trimtab kv-loader` alone, over the given places."""

    def __init__(self, directory):
        self.directory, self.process = directory, None
        self.socket = directory / 'kv.sock'
        self.config = directory / 'cluster.toml'
        self.log = directory / 'loader.log'

    def start(self, places):
        """True: it serves. False: it refused, and `said` has why."""
        pool = {'memory_bytes': 64 << 20, 'file_bytes': 64 << 20, 'targets': places}
        self.config.write_text(toml({'model': {'profile': PROFILE}, 'gateway': {'port': free_port()}, 'pool': pool}))
        self.socket.unlink(missing_ok=True)
        with open(self.log, 'wb') as log:
            self.process = subprocess.Popen([BINARY, 'kv-loader', '--config', str(self.config), '--socket', str(self.socket),
                                             '--state-dir', str(self.directory / 'state')], cwd=ROOT, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while not self.socket.exists() and self.process.poll() is None:
            assert time.monotonic() < end, self.said
            time.sleep(0.02)
        return self.process.poll() is None

    @property
    def said(self):
        return self.log.read_text()

    def stop(self, how=signal.SIGTERM):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(120)

    def run(self, command, *more):
        return subprocess.run([BINARY, 'pool', command, *more, '--loader', str(self.socket)], cwd=ROOT, capture_output=True, text=True,
                              timeout=120)

    def change(self, command, *more):
        done = self.run(command, *more)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return done.stdout

    def refused(self, command, *more):
        done = self.run(command, *more)
        assert done.returncode == 1 and done.stderr.startswith('trimtab: '), (done.stdout, done.stderr)
        return done.stderr

    def status(self):
        done = self.run('status', '--json')
        assert done.returncode in (0, 2, 3), done.stderr
        return json.loads(done.stdout)

    def until(self, holds, what, seconds=180):
        end = time.monotonic() + seconds
        while not holds(status := self.status()):
            assert time.monotonic() < end, (what, status)
            time.sleep(0.1)
        return status

    def settled(self, **expected):
        """Until nothing moves, and every block is whole."""
        return self.until(lambda s: s['map_settled'] and not s['moving'] and s['repairs_waiting'] == 0 and s['whole'] == s['blocks'] and
                          all(s[name] == value for name, value in expected.items()), f'never settled {expected}')


class Pool:
    def __init__(self, directory, count):
        self.directory, self.loader = directory, Loader(directory)
        self.targets = [Target(directory / f'target{i}', capacity='96M') for i in range(count)]

    def add(self):
        self.targets.append(Target(self.directory / f'target{len(self.targets)}', capacity='96M'))
        return self.targets[-1]

    @property
    def places(self):
        return [target.place for target in self.targets]

    def exercise(self, *more, places=None):
        done = subprocess.run([BINARY, 'pool', 'exercise', '--json', '--profile', PROFILE, '--blocks', str(BLOCKS), *more, '--targets',
                               *(places or self.places)], cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def read_all(self, **keywords):
        seen = self.exercise('--only-read', **keywords)
        assert (seen['read'], seen['wrong'], seen['missing']) == (BLOCKS, 0, 0)

    def close(self):
        self.loader.stop(signal.SIGKILL)
        for target in self.targets:
            if target.process.poll() is None:
                target.kill()


@pytest.fixture
def pool(tmp_path, request):
    running = Pool(tmp_path, getattr(request, 'param', 13))
    try:
        running.exercise('--keep')
        assert running.loader.start(running.places), running.loader.said
        running.loader.settled(blocks=BLOCKS)
        yield running
    finally:
        running.close()


def shards(status):
    return [target['shards'] for target in status['targets']]


@pytest.mark.parametrize('pool', [12], indirect=True)
def test_a_target_that_is_added_to_the_list_joins_at_the_restart_with_few_moves(pool):
    before = shards(pool.loader.status())
    assert before == [BLOCKS] * 12
    pool.loader.stop()
    fresh = pool.add()
    # The list's order does not matter any more: targets know their numbers.
    assert pool.loader.start([fresh.place, *reversed(pool.places[:-1])]), pool.loader.said
    assert fresh.place in pool.loader.said and 'joined' in pool.loader.said
    after = pool.loader.until(lambda s: not s['moving'] and s['map_settled'] and s['old_copies'] == 0, 'old copies stay')
    assert [t['target'] for t in after['targets']] == pool.places, 'by number'
    assert (after['blocks'], after['whole']) == (BLOCKS, BLOCKS)
    assert sum(shards(after)) == 12 * BLOCKS
    moved = sum(max(0, b - a) for b, a in zip(before, shards(after)))
    assert 0 < moved == shards(after)[12] < 2 * BLOCKS, 'what the new one holds, and nothing else'
    pool.read_all()


def test_a_running_pool_is_expanded_by_command_and_keeps_its_map(pool):
    fresh = pool.add()
    version = pool.loader.status()['map_version']
    said = pool.loader.change('expand', fresh.place)
    assert '[pool] targets' in said and 'pool status' in said
    after = pool.loader.settled(blocks=BLOCKS)
    assert after['map_version'] == version + 1 and shards(after)[13] > 0
    assert 'already' in pool.loader.refused('expand', fresh.place)
    pool.read_all()
    pool.loader.stop(signal.SIGKILL)
    # The old list lacks what the map counts on: that is refused with the cure, whoever starts.
    assert not pool.loader.start(pool.places[:-1])
    assert fresh.place in pool.loader.said and 'put it back' in pool.loader.said
    assert pool.loader.start(pool.places), pool.loader.said
    again = pool.loader.settled(blocks=BLOCKS)
    assert again['map_version'] == version + 1 and [t['target'] for t in again['targets']] == pool.places
    assert shards(again) == shards(after)


def test_a_drain_is_followed_and_then_the_target_may_go(pool):
    leaving = pool.targets[4]
    pool.loader.change('drain', leaving.place)
    assert 'already' in pool.loader.refused('drain', '4')
    shown = pool.loader.run('status')
    assert 'leaving' in shown.stdout or 'gone' in shown.stdout, shown.stdout
    done = pool.loader.until(lambda s: s['targets'][4]['state'] == 'gone', 'the drain does not end')
    assert (done['blocks'], done['whole']) == (BLOCKS, BLOCKS)
    pool.loader.stop()
    leaving.kill()
    rest = [place for place in pool.places if place != leaving.place]
    assert pool.loader.start(rest), pool.loader.said
    after = pool.loader.settled(blocks=BLOCKS)
    assert after['targets'][4]['state'] == 'gone' and shards(after)[4] == 0 and sum(shards(after)) == 12 * BLOCKS
    pool.read_all(places=rest)
    # Twelve are left, and no fewer would keep the promise.
    refused = pool.loader.refused('drain', rest[0])
    assert rest[0] in refused and 'add one first' in refused


def test_a_target_that_is_taken_out_of_the_list_too_early_is_refused_with_the_cure(pool):
    pool.loader.stop()
    gone = pool.places[6]
    assert not pool.loader.start([place for place in pool.places if place != gone])
    assert gone in pool.loader.said and 'put it back' in pool.loader.said
    assert pool.loader.start(pool.places), pool.loader.said
    pool.read_all()


def test_a_dead_target_is_given_up_and_its_shards_come_back_elsewhere(pool):
    dead = pool.targets[2]
    answers = pool.loader.refused('give-up', dead.place)
    assert dead.place in answers and f'trimtab pool drain {dead.place}' in answers
    dead.kill()
    pool.loader.until(lambda s: s['targets'][2]['state'] == 'dead' and s['degraded'] > 0, 'its death does not show')
    said = pool.loader.change('give-up', dead.place)
    assert 'given up' in said
    after = pool.loader.settled(blocks=BLOCKS)
    assert after['targets'][2]['state'] == 'gone' and sum(shards(after)) == 12 * BLOCKS
    pool.loader.stop()
    rest = [place for place in pool.places if place != dead.place]
    assert pool.loader.start(rest), pool.loader.said
    assert pool.loader.settled(blocks=BLOCKS)['map_version'] == after['map_version']
    pool.read_all(places=rest)


def test_an_empty_target_replaces_one(pool):
    lost = pool.targets[9]
    lost.kill()
    pool.loader.until(lambda s: s['targets'][9]['state'] == 'dead', 'its death does not show')
    assert pool.places[3] in pool.loader.refused('replace', lost.place, pool.places[3])
    before = lost.place
    fresh = Target(pool.directory / 'fresh', capacity='96M')
    pool.targets[9] = fresh
    pool.loader.change('replace', before, fresh.place)
    after = pool.loader.settled(blocks=BLOCKS)
    assert after['targets'][9]['target'] == fresh.place and shards(after)[9] > 0
    pool.loader.stop()
    assert pool.loader.start(pool.places), pool.loader.said
    pool.loader.settled(blocks=BLOCKS)
    pool.read_all()


def test_mistakes_name_the_target_and_the_cure(pool, tmp_path):
    unknown = pool.loader.refused('drain', 'tcp://10.9.9.9:1')
    assert 'tcp://10.9.9.9:1' in unknown and pool.places[0] in unknown, 'says which there are'
    down = pool.loader.refused('expand', 'tcp://127.0.0.1:9')
    assert 'tcp://127.0.0.1:9' in down and 'start it' in down
    nowhere = str(tmp_path / 'none.sock')
    other = subprocess.run([BINARY, 'pool', 'drain', '3', '--loader', nowhere], capture_output=True, text=True, timeout=120)
    assert other.returncode == 1 and 'none.sock' in other.stderr and 'kv-loader' in other.stderr
    none = subprocess.run([BINARY, 'pool', 'drain', '3'], capture_output=True, text=True, timeout=120)
    assert none.returncode == 1 and '--config' in none.stderr and '--loader' in none.stderr
    assert pool.loader.status()['map_version'] == 1, 'nothing was changed'


def test_help_teaches():
    for command in ('give-up', 'drain', 'expand', 'replace'):
        said = subprocess.run([BINARY, 'pool', command, '--help'], capture_output=True, text=True, timeout=120).stdout
        assert f'trimtab pool {command} ' in said and '[pool] targets' in said or command == 'give-up' and 'replace' in said


def test_a_pool_in_directories_is_asked_through_its_loader(tmp_path):
    loader = Loader(tmp_path)
    try:
        assert loader.start([str(tmp_path / f'disk{i}') for i in range(12)]), loader.said
        assert 'one file system' in loader.said, 'told, and no error'
        status = loader.settled(blocks=0)
        assert len(status['targets']) == 12 and status['may_lose'] == 2
        loader.change('expand', str(tmp_path / 'disk12'))
        assert len(loader.settled(blocks=0)['targets']) == 13
        second = Loader(tmp_path / 'second')
        second.directory.mkdir()
        assert not second.start([str(tmp_path / 'disk3')])
        assert str(tmp_path / 'disk3') in second.said and 'in use' in second.said
    finally:
        loader.stop()


def test_a_loader_alone_is_found_by_its_configuration(tmp_path):
    """As its help says: no --socket, and no `serve` that made the directory where sockets lie."""
    port = free_port()
    place = pathlib.Path(f'/tmp/trimtab-{os.getuid()}-{port}')
    assert not place.exists()
    config = tmp_path / 'cluster.toml'
    pool = {'memory_bytes': 64 << 20, 'file_bytes': 64 << 20, 'directory': str(tmp_path / 'pool')}
    config.write_text(toml({'model': {'profile': PROFILE}, 'gateway': {'port': port}, 'pool': pool}))
    log = tmp_path / 'loader.log'
    with open(log, 'wb') as out:
        loader = subprocess.Popen([BINARY, 'kv-loader', '--config', str(config), '--state-dir', str(tmp_path / 'state')], cwd=ROOT,
                                  stdout=out, stderr=out)
    try:
        end = time.monotonic() + 120
        while not (place / 'kv.sock').exists():
            assert loader.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.02)
        asked = subprocess.run([BINARY, 'pool', 'status', '--config', str(config), '--json'], cwd=ROOT, capture_output=True, text=True,
                               timeout=120)
        assert asked.returncode == 0 and json.loads(asked.stdout)['blocks'] == 0, asked.stderr
        assert place.stat().st_mode & 0o777 == 0o700, 'nobody else may reach the socket'
    finally:
        loader.terminate()
        loader.wait(120)
        shutil.rmtree(place, ignore_errors=True)
