"""The KV pool behind a served system: over directories and other processes, restarted, damaged, and asked for what is gone."""
import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import pool_system
from pool_system import loader_of, loader_socket, pool, replace_loader, reusable, wait_durable
from served import BINARY, MODEL, NAME, Served, free_port, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

PROMPT = 'Tell me about the history of the sea, one age after another. ' * 50


def complete(system, prompt=PROMPT, tokens=24):
    return pool_system.complete(system, prompt, tokens)


def same_answer(first, second):
    assert second['tokens'] == first['tokens']
    assert second['checksums'] == first['checksums'] and len(second['checksums']) == len(second['tokens']) > 0


def wait_whole(system):
    """Until every block that was given to the pool has all of its shards where they belong."""
    system.wait_idle()
    wait_durable(system)

    def report():
        asked = [BINARY, 'pool', 'status', '--json', '--loader', loader_socket(system)]
        done = subprocess.run(asked, capture_output=True, text=True, timeout=120)
        return json.loads(done.stdout) if done.stdout else {'blocks': 0}
    until(lambda: (seen := report())['blocks'] == seen.get('whole') and seen['blocks'] > 0 and seen['repairs_waiting'] == 0, report, 120)


def read_again(system, first):
    """The same request until all of its hit is read: engines dial a pool that was away again after a moment, and compute until then."""
    def ask():
        record = complete(system)
        same_answer(first, record)
        if record['hit']['outcome'] == 'hit':
            read = record['hit']['read_tokens']
            assert record['summary']['hit_tokens'] == read == record['hit']['promised_tokens'] > 0
            assert record['summary']['computed_tokens'] == record['summary']['prompt_tokens'] - read
            # A loader that has just started promises what its targets have told it so far, perhaps a part.
            return record if read == reusable(first) else None
        return None
    return until(ask, 'the pool is never read again', 120)


def children_of(pid):
    """All processes below `pid`, with the command each was started by."""
    found = {}
    for child in pathlib.Path(f'/proc/{pid}/task/{pid}/children').read_text().split():
        with contextlib.suppress(OSError):
            found[int(child)] = pathlib.Path(f'/proc/{child}/cmdline').read_text().replace('\0', ' ')
            found |= children_of(int(child))
    return found


def metric(system, name):
    for line in system.get('/metrics').splitlines():
        if line.startswith((name + ' ', name + '{')):
            return float(line.rsplit(' ', 1)[1])
    return None


def files_below(directory):
    return [path for path in sorted(pathlib.Path(directory).rglob('*')) if path.is_file()]


def wipe(directory):
    for path in files_below(directory):
        path.unlink()


def flip_bits(directory):
    """A bit in every 4 KiB that holds something, in every extent file."""
    flipped = 0
    for path in files_below(directory):
        if path.stat().st_size < 1 << 20:
            continue  # the log: its damage is another test's
        with open(path, 'r+b') as file:
            end = path.stat().st_size
            for at in range(0, end, 4096):
                file.seek(at)
                page = file.read(4096)
                if not any(page):
                    continue
                file.seek(at + 100)
                file.write(bytes([page[100] ^ 0x10]))
                flipped += 1
    return flipped


def test_a_hit_is_computed_from_while_its_layers_come(tmp_path):
    """The second answer begins over layers that are still being copied, is the same for it, and says so everywhere."""
    prompt = 'Tell me about the history of the sea, one age after another. ' * 106  # eleven blocks, and a step to hide their copy behind
    with Served(tmp_path, tmp_path / 'state') as system:
        first = complete(system, prompt, tokens=8)
        assert first['swap_in'] is None and system.status()['swap_in']['requests'] == 0, 'nothing to be had from the pool'
        assert first['summary']['prompt_tokens'] - reusable(first) >= 64
        system.wait_idle()

        def ask():
            """A rank that was kept from the processor looks when all is there: then there is nothing to wait for."""
            record = complete(system, prompt, tokens=8)
            same_answer(first, record)
            assert record['summary']['hit_tokens'] == reusable(first)
            return record if record['swap_in'] else None
        second = until(ask, 'no hit was ever computed from before all of it had come', 120)
        swap = second['swap_in']
        assert swap['step_ms'] >= swap['stalled_ms'] >= 0 and swap['step_ms'] > 0, swap
        status = system.status()['swap_in']
        assert status['requests'] == 1 and 0 <= status['overlap'] <= 1, status
        assert status['step_ms'] == pytest.approx(swap['step_ms'], abs=0.01) and status['thrown_tokens'] == swap['thrown_tokens']
        assert metric(system, 'trimtab_swap_in_requests_total') == 1
        assert metric(system, 'trimtab_swap_in_step_seconds_total') == pytest.approx(status['step_ms'] / 1e3, abs=1e-5)
        assert metric(system, 'trimtab_swap_in_stalled_seconds_total') == pytest.approx(status['stalled_ms'] / 1e3, abs=1e-5)
        assert metric(system, 'trimtab_swap_in_thrown_tokens_total') == status['thrown_tokens']
        assert 'swap-in: computing began before all of the hit had come' in system.command('explain', second['name'])
        assert 'swap-in' not in system.command('explain', first['name'])
        system.wait_idle()


@pytest.mark.parametrize('how', ['SIGTERM', 'SIGKILL'])
def test_hits_survive_a_restart_of_every_process(tmp_path, how):
    """Memory and files, as configured by default: all processes end, in order or at once, and the next start hits."""
    with Served(tmp_path, tmp_path / 'state') as system:
        first = complete(system, tokens=150)  # long enough that decode fills a block too
        assert first['summary']['hit_tokens'] == 0
        system.wait_idle()
        assert pool(system)['puts_stored'] >= reusable(first) // 128 + 1
        wait_durable(system)
        if how == 'SIGKILL':
            os.kill(system.process.pid, signal.SIGSTOP)  # it must not start again what is killed now
            for pid in children_of(system.process.pid):
                os.kill(pid, signal.SIGKILL)
            system.process.kill()
            system.process.wait()
    with Served(tmp_path, tmp_path / 'state') as system:
        assert pool(system)['recovered_entries'] >= reusable(first) // 128 + 1
        again = complete(system, tokens=150)
        assert again['summary']['hit_tokens'] == reusable(first) > 0
        assert again['summary']['computed_tokens'] == again['summary']['prompt_tokens'] - reusable(first)
        assert pool(system)['gets_file'] > 0
        same_answer(first, again)
        system.wait_idle()


def test_directories_are_lost_and_damaged_and_no_answer_changes(tmp_path):
    """Thirteen directories; two are emptied, the loader is killed, then bits of two others are flipped."""
    places = [tmp_path / f'disk{i}' for i in range(13)]
    with Served(tmp_path, tmp_path / 'state', {'prefill': {'ranks': 1}, 'pool': {'targets': [str(place) for place in places]}}) as system:
        first = complete(system)
        wait_whole(system)
        assert pool(system)['targets'] == 13 and pool(system)['targets_dead'] == 0
        for place in places[:2]:
            wipe(place)
        same_answer(first, complete(system))
        replace_loader(system)
        read_again(system, first)
        # Whether a read comes before the mending, and is a degraded one, is chance.
        until(lambda: pool(system)['shards_repaired'] > 0, lambda: f'nothing was written again: {pool(system)}')
        wait_whole(system)  # a block may lose two shards, not four
        assert sum(flip_bits(place) for place in places[3:5]) > 0
        replace_loader(system)
        read_again(system, first)
        until(lambda: pool(system)['shards_bad'] > 0 and pool(system)['shards_repaired'] > 0, lambda: f'no bad shard seen: {pool(system)}')
        until(lambda: (metric(system, 'trimtab_pool_shards_bad') or 0) > 0, 'the metrics do not show the bad shards')
        assert metric(system, 'trimtab_pool_targets') == 13
        system.wait_idle()


class Targets:
    """`trimtab kv-target` processes, each over a directory."""

    def __init__(self, directory, count):
        self.directory, self.ports, self.processes = pathlib.Path(directory), [free_port() for _ in range(count)], [None] * count
        for index in range(count):
            self.start(index)

    def start(self, index):
        self.processes[index] = subprocess.Popen(
            [BINARY, 'kv-target', '--directory', str(self.directory / f'target{index}'), '--capacity', '256M', '--listen',
             f'127.0.0.1:{self.ports[index]}'], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        assert 'ready' in self.processes[index].stdout.readline()

    def kill(self, index):
        self.processes[index].kill()
        self.processes[index].wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(30)
            process.stdout.close()


def test_other_machines_keep_the_blocks_and_two_of_them_die(tmp_path):
    with Targets(tmp_path, 12) as targets:
        specs = [f'tcp://127.0.0.1:{port}' for port in targets.ports]
        with Served(tmp_path, tmp_path / 'state', {'prefill': {'ranks': 1}, 'pool': {'targets': specs}}) as system:
            first = complete(system)
            wait_whole(system)
            for index in (2, 9):
                targets.kill(index)
            replace_loader(system)
            read_again(system, first)
            assert pool(system)['gets_file'] > 0
            until(lambda: pool(system)['targets_dead'] == 2, lambda: f'the dead are not seen: {pool(system)}')
            assert any('2 of the' in alarm and '12 targets' in alarm for alarm in system.status()['alarms'])
            # With a third one dead nothing is readable, and so nothing is promised: a miss at once, not a read that fails.
            targets.kill(5)
            replace_loader(system)
            missed = complete(system)
            assert missed['hit']['outcome'] == 'miss' and missed['hit']['promised_tokens'] == 0
            same_answer(first, missed)
            for index in (2, 5, 9):
                targets.start(index)
            until(lambda: pool(system)['targets_dead'] == 0, lambda: f'they are not taken back: {pool(system)}')
            assert not any('targets' in alarm for alarm in system.status()['alarms'])
            system.wait_idle()


def test_blocks_that_vanish_between_match_and_fetch_are_computed_and_counted_once(tmp_path):
    """The prefill ranks stand still while the pool loses everything that it has just promised."""
    place = tmp_path / 'blocks'
    with Served(tmp_path, tmp_path / 'state', {'pool': {'directory': str(place)}}) as system:
        first = complete(system)
        system.wait_idle()
        before = system.status()['hits']
        pids = [rank['pid'] for rank in system.ranks('prefill')]
        with concurrent.futures.ThreadPoolExecutor(1) as other:
            try:
                # The supervisor first: it ends ranks that stand still for long.
                for pid in (system.process.pid, *pids):
                    os.kill(pid, signal.SIGSTOP)
                answer = other.submit(complete, system)
                until(lambda: system.status()['requests']['prefilling'] == 1, 'the request never reached a rank')
                dead = loader_of(system)
                os.kill(dead, signal.SIGKILL)
                shutil.rmtree(place)
                os.kill(system.process.pid, signal.SIGCONT)
                until(lambda: loader_of(system) not in (None, dead), 'no loader was started anew')
            finally:
                for pid in (system.process.pid, *pids):
                    os.kill(pid, signal.SIGCONT)
            second = answer.result(300)
        same_answer(first, second)
        assert second['summary']['computed_tokens'] == second['summary']['prompt_tokens']
        after = system.status()['hits']
        changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
        assert changed.pop('promised_tokens') == reusable(first)
        assert changed.pop('prompt_tokens') == first['summary']['prompt_tokens']
        assert changed in ({'stale': 1}, {'fallbacks': 1}), changed
        assert second['hit']['promised_tokens'] == reusable(first) and second['hit']['read_tokens'] == 0
        assert second['hit']['outcome'] in ('stale', 'fallback')
        explained = system.command('explain', second['name'])
        assert 'promised' in explained and second['hit']['outcome'] in explained
        read_again(system, first)  # what was not stored while the loader was away is stored anew
        counted = system.status()['hits']['hits']
        third = complete(system)
        assert third['hit']['outcome'] == 'hit' and third['summary']['hit_tokens'] == reusable(first)
        assert system.status()['hits']['hits'] == counted + 1
        until(lambda: pool(system)['pins'] == 0, lambda: f'blocks stay pinned: {pool(system)}')
        same_answer(first, third)
        system.wait_idle()


def test_what_a_dead_decode_rank_wrote_is_hit(tmp_path):
    """Decode gives the pool every block that it fills: when its rank dies, the redone request computes only what was not full."""
    with Served(tmp_path, tmp_path / 'state', {'decode': {'ranks': 1}}) as system:
        seen, name = 0, None
        stream = system.openai().chat.completions.create(model=NAME, messages=[{'role': 'user', 'content': PROMPT}], max_tokens=450,
                                                         temperature=0, stream=True)
        for chunk in stream:
            name = chunk.id
            seen += 1
            if seen == 290:  # far from the end
                blocks = (system.record(name)['summary']['prompt_tokens'] + 250) // 128
                until(lambda: pool(system)['puts_stored'] >= blocks, lambda: f'not all was stored: {pool(system)}')
                system.kill_rank('decode')
        record = system.record(name)
        assert record['summary']['redos'] == 1, record['summary']
        prompt = record['summary']['prompt_tokens']
        hits = [event['hit_tokens'] for event in record['events'] if event['kind'] == 'match']
        # Blocks of prompt and answer together, up to about the token at which the rank died.
        assert hits[-1] >= (prompt + 250) // 128 * 128 > (prompt + 127) // 128 * 128
        system.wait_ready()
        whole = complete(system, tokens=450)
        same_answer(record, whole)
        counted = system.status()['hits']
        assert sum(counted[name] for name in ('skipped', 'misses', 'hits', 'stale', 'fallbacks', 'abandoned')) == 2
        system.wait_idle()
