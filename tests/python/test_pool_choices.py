"""What an operator may choose of a pool, in a served system: racks, the time of blocks, how durable they are, what eviction saves."""
import json
import subprocess
import time

import pytest

from kv_fleet import Target
from pool_system import complete, kill_loader, loader_socket, pool, prompt, reusable, store
from served import BINARY, MODEL, ROOT, Served, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

ONE_RANK = {'prefill': {'ranks': 1}, 'decode': {'ranks': 1}}
TWELVE_BLOCKS = 36 << 20  # room for so many of this model, in one directory


def ask_pool(system, *more):
    return subprocess.run([BINARY, 'pool', *more, '--loader', loader_socket(system)], cwd=ROOT, capture_output=True, text=True, timeout=60)


def pool_status(system):
    return json.loads(ask_pool(system, 'status', '--json').stdout)


def hit_whole(system, text, first):
    """The same request until all of its full blocks are read; a loader or an engine that has just come back may need a moment."""
    def ask():
        record = complete(system, text)
        return record if record['summary']['hit_tokens'] == reusable(first) > 0 else None
    return until(ask, 'the pool is never read again')


def test_a_served_pool_with_racks_grows_into_one_of_them_and_may_lose_it(tmp_path):
    """Twelve directories in six racks; a thirteenth joins rack 0, which would be too heavy for a new pool, and then the rack burns."""
    places, racks, text = [str(tmp_path / f'disk{i}') for i in range(12)], [i // 2 for i in range(12)], prompt('sea')
    with Served(tmp_path, tmp_path / 'state', {**ONE_RANK, 'pool': {'targets': places, 'racks': racks}}) as system:
        first = store(system, text)
        more = str(tmp_path / 'disk12')
        refused = ask_pool(system, 'expand', more)
        assert refused.returncode == 1 and 'give one each when the map has racks' in refused.stderr, refused.stderr
        done = ask_pool(system, 'expand', more, '--racks', '0')
        assert done.returncode == 0, done.stderr
        grown = until(lambda: (status := pool_status(system))['map_settled'] and not status['moving'] and status, 'it does not settle')
        assert len(grown['targets']) == 13 and grown['whole'] == grown['blocks'] > 0
    places, racks = [*places, more], [*racks, 0]
    with Served(tmp_path, tmp_path / 'state', {**ONE_RANK, 'pool': {'targets': places, 'racks': racks}}) as system:
        hit_whole(system, text, first)
        for place, rack in zip(places, racks):
            for path in (tmp_path / place).iterdir() if rack == 0 else []:
                path.unlink()
        kill_loader(system)
        hit_whole(system, text, first)
        assert pool(system)['gets_file'] > 0


@pytest.mark.parametrize('ttl_s', [0, 1])
def test_blocks_whose_time_is_over_make_room_before_all_others(tmp_path, ttl_s):
    """Room for two prompts and a part of the third: the first was used again of late, and leaves only if its time is over."""
    choice = {'directory': str(tmp_path / 'pool'), 'file_bytes': TWELVE_BLOCKS, 'eviction': 'lru', 'ttl_s': ttl_s}
    with Served(tmp_path, tmp_path / 'state', {**ONE_RANK, 'pool': choice}) as system:
        store(system, prompt('sea'))
        kept = store(system, prompt('moon'))
        time.sleep(1.1)  # both are older than their time
        complete(system, prompt('sea'))
        assert pool(system)['file_evictions'] == 0
        store(system, prompt('wind'))
        assert 0 < pool(system)['file_evictions'] <= reusable(kept) // 128
        kill_loader(system)  # what memory had is no proof
        promised = complete(system, prompt('moon'))['hit']['promised_tokens']
        assert (promised == reusable(kept)) == (ttl_s > 0), (promised, reusable(kept))


@pytest.mark.parametrize('write', ['ten', 'all'])
def test_with_all_shards_or_none_a_dead_target_refuses_every_write(tmp_path, write):
    targets = [Target(tmp_path / f'target{i}', capacity='96M') for i in range(12)]
    try:
        choice = {'targets': [target.place for target in targets], 'write': write}
        with Served(tmp_path, tmp_path / 'state', {**ONE_RANK, 'pool': choice}) as system:
            store(system, prompt('sea'))
            targets[5].kill()
            until(lambda: pool(system)['targets_dead'] == 1, lambda: f'its death is not seen: {pool(system)}')
            before = pool_status(system)['blocks']
            if write == 'ten':
                record = store(system, prompt('moon'))
                assert pool(system)['file_errors'] == 0 and pool_status(system)['degraded'] > 0
            else:
                record = complete(system, prompt('moon'))
                until(lambda: pool(system)['memory_only'] == 1, lambda: f'a write with eleven shards counts: {pool(system)}')
                assert pool_status(system)['blocks'] == before
                assert any('no working file tier' in alarm for alarm in system.status()['alarms'])
            targets[5].start()
            stored = before + reusable(record) // 128
            until(lambda: (status := pool_status(system))['whole'] == status['blocks'] >= stored,
                  lambda: f'it never becomes whole: {pool_status(system)}')
            until(lambda: pool(system)['memory_only'] == 0, lambda: f'it stays without a file tier: {pool(system)}')
    finally:
        for target in targets:
            if target.process.poll() is None:
                target.kill()


@pytest.mark.parametrize('saves', ['blocks', 'time'])
def test_eviction_that_saves_time_keeps_what_costs_most_to_compute(tmp_path, saves):
    """Room for a long prompt and a short one; a third comes. The end of the long one is the oldest, and costs most."""
    state = tmp_path / 'state'
    state.mkdir()
    # Attention is all of the cost: a block far behind costs many times what the first one does.
    (state / 'calibration.toml').write_text('[cost]\nform = "quadratic"\nfixed_ns = 1000000\ntoken_ps = 1000000\npair_ps = 1000000\n')
    choice = {'directory': str(tmp_path / 'pool'), 'file_bytes': TWELVE_BLOCKS, 'eviction_saves': saves}
    with Served(tmp_path, state, {**ONE_RANK, 'pool': choice}) as system:
        long = store(system, prompt('sea', 60))
        assert reusable(long) >= 6 * 128
        store(system, prompt('moon', 24))
        store(system, prompt('wind', 24))
        assert pool(system)['file_evictions'] > 0
        kill_loader(system)
        promised = complete(system, prompt('sea', 60))['hit']['promised_tokens']
        assert (promised == reusable(long)) == (saves == 'time'), (promised, reusable(long))
