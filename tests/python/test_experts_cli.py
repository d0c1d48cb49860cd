"""`trimtab experts` as a newcomer and as an engine's operator type it."""
import json
import os
import pathlib

import numpy as np
import pytest
from expert_dumps import BINARY, balance, check_map, run, run_json, skewed, torch_save

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
SHAPE = ('--ep-size', 4, '--num-redundant-experts', 4)


@pytest.fixture(scope='module')
def loads(tmp_path_factory):
    path = tmp_path_factory.mktemp('experts') / 'loads.npz'
    np.savez_compressed(path, logical_count=skewed())
    return path


@pytest.fixture(scope='module')
def plan(loads):
    path = loads.parent / 'plan.npz'
    run('plan', loads, *SHAPE, '--output', path)
    return path


def test_the_readme_runs_without_any_file(tmp_path):
    out = tmp_path / 'loads.npz'
    run('synthesize', '--experts', 64, '--layers', 2, '--steps', 60, '--ep-size', 8, '--output', out)
    counts = np.load(out)['logical_count']
    assert counts.shape == (60, 2, 64) and counts.sum() > 0
    advice = run('advise', out, '--ep-size', 8).stdout
    assert 'trimtab experts plan' in advice or 'Not worth it' in advice
    text = run('plan', out, '--ep-size', 8, '--num-redundant-experts', 8, '--output', tmp_path / 'plan.npz').stdout
    assert 'rank 7' in text and '█' in text and 'wrote' in text
    same = run('synthesize', '--experts', 64, '--layers', 2, '--steps', 60, '--ep-size', 8, '--output', tmp_path / 'again.npz')
    assert same.returncode == 0 and (tmp_path / 'again.npz').read_bytes() == out.read_bytes()


def test_plan_is_legal_and_its_balance_is_the_definition(loads, plan):
    answer = run_json('plan', loads, *SHAPE)
    maps = np.asarray(answer['physical_to_logical_map'])
    assert maps.shape == (2, 20) and (answer['ep_size'], answer['num_physical_experts']) == (4, 20)
    check_map(maps, 16, 4)
    assert answer['balance'] == pytest.approx(balance(maps, skewed(), 4), rel=1e-6)
    by_number = np.tile(np.concatenate([np.arange(16), np.arange(4)]), (2, 1))
    assert answer['balance_before'] == pytest.approx(balance(by_number, skewed(), 4), rel=1e-6)
    assert 1 <= answer['balance'] < answer['balance_before']
    assert all(layer['duplicate_copies'] == 0 for layer in answer['layers'])
    assert np.array_equal(np.load(plan)['physical_to_logical'], maps)


def test_tables_of_an_engine(plan):
    tables = np.load(plan)
    p2l, l2p, count = (tables[name] for name in ('physical_to_logical', 'logical_to_physical', 'logical_count'))
    assert int(tables['ep_size'][0]) == 4
    for layer in range(2):
        for expert in range(16):
            slots = [slot for slot in l2p[layer, expert] if slot >= 0]
            assert sorted(slots) == list(np.flatnonzero(p2l[layer] == expert)) and len(slots) == count[layer, expert]


def forms(directory):
    counts = skewed()
    rows = ['step,layer,expert,count'] + [f'{s},{layer + 3},{e},{counts[s, layer, e]}' for s, layer, e in np.ndindex(counts.shape)]
    wide = ['step,layer,' + ','.join(f'e{e}' for e in range(16))]
    wide += [f'{s},{layer},' + ','.join(map(str, counts[s, layer])) for s, layer in np.ndindex(counts.shape[:2])]
    writers = {
        'c.npy': lambda path: np.save(path, counts.astype(np.int32)), 'f.npy': lambda path: np.save(path, np.asfortranarray(counts)),
        'f32.npy': lambda path: np.save(path, counts.astype(np.float32)), 'u16.npy': lambda path: np.save(path, counts.astype(np.uint16)),
        'big.npy': lambda path: np.save(path, counts.astype('>i8')),
        'stored.npz': lambda path: np.savez(path, counts=counts, names=np.array(['x'])),
        'long.csv': lambda path: path.write_text('\n'.join(rows) + '\n'), 'wide.csv': lambda path: path.write_text('\n'.join(wide) + '\n'),
        'a.json': lambda path: path.write_text(json.dumps({'logical_count': counts.tolist()})),
        'sglang.pt': lambda path: torch_save(path, {'rank': 0, 'logical_count': counts.astype(np.int32),
                                                    'average_utilization_rate_over_window': None}),
        'tensor.pt': lambda path: torch_save(path, counts.astype(np.float64)),
    }
    for name, write in writers.items():
        write(directory / name)
        yield name


def test_every_form_of_the_same_counts_gives_the_same_plan(tmp_path, loads):
    expected = run_json('plan', loads, *SHAPE)
    for name in forms(tmp_path):
        assert run_json('plan', tmp_path / name, *SHAPE) == expected, name


def test_sglang_passes_of_two_ranks(tmp_path):
    counts = skewed()
    location = np.tile(np.concatenate([np.arange(16), np.arange(4)]), (2, 1))
    halves = []
    for rank in range(2):
        records = []
        for step, logical in enumerate(counts):
            physical = np.zeros((2, 20), np.int32)
            for layer in range(2):
                for slot, expert in enumerate(location[layer]):
                    copies = int((location[layer] == expert).sum())
                    total = int(logical[layer, expert])
                    part = total // copies + (slot < 16) * (total % copies)
                    physical[layer, slot] = part // 2 + (rank == 0) * (part % 2)
            records.append({'forward_pass_id': 40 + step, 'rank': rank, 'gatherer_key': 'primary', 'input_ids': [1, 2, 70000],
                            'global_physical_count': physical, 'misc_objects': [{'num_tokens_per_expert': [3, 4]}]})
        halves.append(torch_save(tmp_path / f'r{rank}.pt', {'records': records, 'last_physical_to_logical_map': location}))
    np.save(tmp_path / 'same.npy', counts)
    assert run_json('plan', *halves, *SHAPE) == run_json('plan', tmp_path / 'same.npy', *SHAPE)


def test_vllm_window_is_folded(tmp_path):
    location = np.tile(np.concatenate([np.arange(16), np.arange(4)]), (2, 1))
    physical = np.random.default_rng(1).integers(0, 99, (30, 2, 20))
    logical = physical[..., :16].copy()
    logical[..., :4] += physical[..., 16:]
    np.save(tmp_path / 'logical.npy', logical)
    torch_save(tmp_path / 'vllm.pt', {'expert_load_window': physical.astype(np.int32), 'physical_to_logical_map': location})
    np.save(tmp_path / 'physical.npy', physical)
    (tmp_path / 'map.json').write_text(json.dumps({'physical_to_logical_map': location.tolist()}))
    expected = run_json('plan', tmp_path / 'logical.npy', *SHAPE)
    assert run_json('plan', tmp_path / 'vllm.pt', *SHAPE) == expected
    assert run_json('plan', tmp_path / 'physical.npy', '--physical-map', tmp_path / 'map.json', *SHAPE) == expected


def test_export_and_back(tmp_path, plan):
    expected = np.load(plan)['physical_to_logical']
    text = run('export', plan, '--output', tmp_path / 'map.json').stdout
    assert '--init-expert-location' in text and '--ep-num-redundant-experts 4' in text
    sglang = json.loads((tmp_path / 'map.json').read_text())
    assert list(sglang) == ['physical_to_logical_map'] and np.array_equal(sglang['physical_to_logical_map'], expected)
    assert 'expert_map_path' in run('export', plan, '--output', tmp_path / 'expert_map.json').stdout
    ascend = json.loads((tmp_path / 'expert_map.json').read_text())
    assert ascend['moe_layer_count'] == 2 and ascend['layer_list'][1]['device_count'] == 4
    held = [[device['device_expert'] for device in layer['device_list']] for layer in ascend['layer_list']]
    assert np.array_equal(np.asarray(held).reshape(2, 20), expected)
    for source in ('map.json', 'expert_map.json'):
        run('export', tmp_path / source, '--ep-size', 4, '--format', 'npz', '--output', tmp_path / 'back.npz')
        assert np.array_equal(np.load(tmp_path / 'back.npz')['physical_to_logical'], expected)
    run('export', plan, '--skip-layers', 1, '--output', tmp_path / 'moe_expert_map.json')
    assert json.loads((tmp_path / 'moe_expert_map.json').read_text())['moe_layer_count'] == 1


def test_incremental_moves_few_and_evaluate_agrees(tmp_path, loads, plan):
    later = tmp_path / 'later.npy'
    np.save(later, skewed(seed=5))
    next_plan = tmp_path / 'next.npz'
    answer = run_json('plan', later, '--current', plan, '--num-redundant-experts', 4, '--moves-max', 3, '--output', next_plan)
    assert all(0 < layer['copies_received'] <= 3 for layer in answer['layers'])
    assert answer['balance'] < answer['balance_before']
    score = run_json('evaluate', later, '--map', plan, '--against', next_plan)
    assert score['balance'] == pytest.approx(answer['balance_before'])
    assert score['against']['balance'] == pytest.approx(answer['balance'])
    assert score['against']['copies_received'] == answer['copies_received']
    moves = run_json('moves', '--before', plan, '--after', next_plan, '--expert-bytes', '10MB', '--link-bandwidth', '1GB',
                     '--stall-budget', '5ms')
    assert sum(moves['bytes_received']) == sum(moves['bytes_sent']) == answer['copies_received'] * 10_000_000
    assert moves['stall_ns'] <= 5_000_000 and moves['time_ns'] >= 10_000_000
    assert moves['slices'] > 1, 'a copy takes 10 ms, so it is cut into slices'
    assert 'busiest receiver' in run('moves', '--before', plan, '--after', next_plan).stdout


def test_rolling_and_heldout(loads):
    rolled = run_json('evaluate', loads, *SHAPE, '--rolling', '--window', 10, '--every', 5)
    own = [row for row in rolled if 'trimtab' in row['rule']]
    assert len(rolled) == 3 and own[0]['balance'] < rolled[0]['balance'] and own[0]['duplicates'] == 0
    held = run_json('evaluate', loads, *SHAPE, '--heldout')
    assert len(held) == 4 and all(row['balance'] >= 1 for row in held)


def test_advise_reproduces_the_published_memory(tmp_path):
    out = tmp_path / 'loads.npz'
    run('synthesize', '--experts', 256, '--layers', 1, '--steps', 60, '--top-k', 8, '--ep-size', 32, '--output', out)
    answer = run_json('advise', out, '--ep-size', 32, '--redundant-per-rank', '0,1', '--model-layers', 58, '--expert-bytes', '44MB',
                      '--every', 5)
    row = answer['rows'][1]
    assert (row['num_redundant_experts'], row['memory_bytes'], row['memory_bytes_per_rank']) == (32, 32 * 58 * 44_000_000, 58 * 44_000_000)
    text = run('advise', out, '--ep-size', 32, '--redundant-per-rank', '0,1', '--model-layers', 58, '--every', 5).stdout
    assert '81.7 GB' in text and '2.55 GB' in text
    assert answer['rows'][0]['memory_bytes'] == 0 and row['balance'] < row['balance_none']


def test_same_plan_at_every_number_of_threads(loads):
    assert run_json('plan', loads, *SHAPE, '--threads', 1) == run_json('plan', loads, *SHAPE, '--threads', 4)


def test_hierarchical_keeps_groups_on_nodes(loads):
    answer = run_json('plan', loads, *SHAPE, '--num-nodes', 2, '--num-groups', 4, '--scope', 'hierarchical')
    for row in np.asarray(answer['physical_to_logical_map']).reshape(2, 2, 10):
        groups = [set(node // 4) for node in row]
        assert len(groups[0]) == len(groups[1]) == 2 and not groups[0] & groups[1]
    check_map(answer['physical_to_logical_map'], 16, 4)


def test_terminals(loads):
    ascii_text = run('plan', loads, *SHAPE, LANG='C', LC_ALL='C', COLUMNS='60').stdout
    table = ascii_text[ascii_text.index('layer '):]
    assert ascii_text.isascii() and '#' in table
    bars = [line for line in table.splitlines() if line.startswith('rank ')]
    assert len(bars) == 4 and all(len(line) <= 60 for line in bars)
    assert '\x1b' not in run('plan', loads, *SHAPE).stdout, 'no colours outside a terminal'


def test_defined_results(tmp_path):
    def planned(counts, *shape):
        np.save(tmp_path / 'c.npy', counts)
        answer = run_json('plan', tmp_path / 'c.npy', *shape)
        return np.asarray(answer['physical_to_logical_map']), answer

    zero = np.zeros((5, 1, 16), np.int64)
    maps, answer = planned(zero, *SHAPE)
    check_map(maps, 16, 4)
    assert answer['balance'] == 1 and np.bincount(maps[0]).max() == 2, 'all-zero layers are spread evenly'
    equal, _ = planned(np.full((2, 1, 16), 1_000_000), '--ep-size', 4, '--num-redundant-experts', 8)
    assert np.bincount(equal[0]).max() == 2, 'ties spread'
    hot = zero.copy()
    hot[:, :, 5] = 1_000
    maps, answer = planned(hot, '--ep-size', 4, '--num-redundant-experts', 16)
    check_map(maps, 16, 4)
    assert np.bincount(maps[0])[5] == 4 and answer['balance'] == 1
    big = zero.copy()
    big[:] = 3_000_000_000
    big[:, :, 0] = 9_000_000_000
    maps, answer = planned(big, *SHAPE)
    check_map(maps, 16, 4)
    assert np.bincount(maps[0])[0] >= 2
    _, answer = planned(skewed(), '--ep-size', 1)
    assert answer['balance'] == 1
    maps, _ = planned(skewed(experts=2, layers=1), '--ep-size', 1024, '--num-physical-experts', 2048)
    assert list(np.bincount(maps[0])) == [1024, 1024]


def bad_files(directory):
    counts = skewed().astype(np.float64)
    for name, value in (('nan', np.nan), ('negative', -3), ('infinite', np.inf)):
        broken = counts.copy()
        broken[7, 1, 9] = value
        np.save(directory / f'{name}.npy', broken)
    np.save(directory / 'empty_window.npy', np.zeros((0, 2, 16)))
    np.save(directory / 'objects.npy', np.array([{'a': 1}], dtype=object), allow_pickle=True)
    np.save(directory / 'complex.npy', counts.astype(complex))
    np.save(directory / 'four.npy', np.zeros((1, 1, 1, 1)))
    np.savez(directory / 'two.npz', a=counts, b=counts)
    np.save(directory / 'good.npy', counts)
    whole = (directory / 'good.npy').read_bytes()
    (directory / 'cut.npy').write_bytes(whole[:-100])
    (directory / 'cut.npz').write_bytes((directory / 'two.npz').read_bytes()[:900])
    (directory / 'cut.csv').write_text('step,layer,expert,count\n0,0,0,5\n0,0,1')
    (directory / 'words.csv').write_text('step,layer,expert,count\n0,0,0,five\n')
    (directory / 'twice.csv').write_text('step,layer,expert,count\n0,0,0,5\n0,0,0,5\n')
    (directory / 'cut.json').write_text('{"logical_count": [[1, 2')
    (directory / 'nothing.npy').write_bytes(b'')
    (directory / 'noise.bin').write_bytes(bytes(range(256)))
    (directory / 'map_range.json').write_text(json.dumps({'physical_to_logical_map': [list(range(15)) + [99] + [0] * 4] * 2}))
    (directory / 'map_missing.json').write_text(json.dumps({'physical_to_logical_map': [list(range(15)) + [0] * 5] * 2}))
    (directory / 'map_negative.json').write_text(json.dumps({'physical_to_logical_map': [list(range(15)) + [-1] * 5] * 2}))
    (directory / 'map_layers.json').write_text(json.dumps({'physical_to_logical_map': [list(range(16)) + [0] * 4] * 3}))
    torch_save(directory / 'no_map.pt', {'expert_load_window': counts.astype(np.int32)})


ERRORS = [
    ('nan.npy', SHAPE, ['step 7', 'layer 1', 'expert 9', 'nan']),
    ('negative.npy', SHAPE, ['step 7', 'layer 1', 'expert 9', '-3']),
    ('infinite.npy', SHAPE, ['step 7', 'layer 1', 'expert 9', 'inf']),
    ('empty_window.npy', SHAPE, ['[0, 2, 16]', 'at least one step']),
    ('objects.npy', SHAPE, ['pickles', 'astype']),
    ('complex.npy', SHAPE, ["'<c16'"]),
    ('four.npy', SHAPE, ['[1, 1, 1, 1]', '[steps, layers, experts]']),
    ('two.npz', SHAPE, ['--array', 'a [30, 2, 16]', 'b [30, 2, 16]']),
    ('cut.npy', SHAPE, ['cut short', 'of 960']),
    ('cut.npz', SHAPE, ['cut.npz']),
    ('cut.csv', SHAPE, ['line 3', 'truncated', '3 of 4']),
    ('words.csv', SHAPE, ['line 2', 'five']),
    ('twice.csv', SHAPE, ['line 3', 'repeats']),
    ('cut.json', SHAPE, ['cut.json', 'no JSON']),
    ('nothing.npy', SHAPE, ['empty']),
    ('noise.bin', SHAPE, ['not known', '.npz']),
    ('no_map.pt', SHAPE, ['--physical-map']),
    ('absent.npy', SHAPE, ['absent.npy', 'No such file']),
    ('good.npy', (), ['--ep-size']),
    ('good.npy', ('--ep-size', 0), ['0 ranks', '--ep-size']),
    ('good.npy', ('--ep-size', 'four'), ['--ep-size', 'four']),
    ('good.npy', ('--ep-size', 3, '--num-physical-experts', 17), ['17', '3 ranks', '18']),
    ('good.npy', ('--ep-size', 4, '--num-physical-experts', 12), ['12', '16']),
    ('good.npy', ('--ep-size', 4, '--num-physical-experts', 20, '--num-redundant-experts', 3), ['20', '3']),
    ('good.npy', ('--ep-size', 2, '--num-physical-experts', 34), ['34', 'at most 32']),
    ('good.npy', ('--ep-size', 4, '--num-redundant-experts', -4), ['-4']),
    ('good.npy', ('--ep-size', 4, '--num-groups', 0), ['0 expert groups', '--num-groups']),
    ('good.npy', ('--ep-size', 4, '--num-groups', 3), ['16 experts', '3 groups']),
    ('good.npy', ('--ep-size', 4, '--num-nodes', 3), ['4 ranks', '3 nodes']),
    ('good.npy', ('--ep-size', 4, '--num-nodes', 4, '--num-groups', 2, '--scope', 'hierarchical'), ['4 nodes', '2 groups', 'global']),
    ('good.npy', (*SHAPE, '--mode', 'incremental'), ['--current']),
    ('good.npy', (*SHAPE, '--mode', 'stale'), ['stale']),
    ('good.npy', (*SHAPE, '--window', -1), ['--window -1']),
    ('good.npy', (*SHAPE, '--current', 'map_range.json'), ['map_range.json', '99']),
    ('good.npy', (*SHAPE, '--current', 'map_missing.json'), ['15']),
    ('good.npy', (*SHAPE, '--current', 'map_negative.json'), ['-1', 'slot 15']),
    ('good.npy', (*SHAPE, '--current', 'map_layers.json'), ['3 layers', '2']),
    ('good.npy', (*SHAPE, '--expert-bytes', 'lots'), ['--expert-bytes', 'lots']),
    ('good.npy', (*SHAPE, '--layer', 7), ['--layer 7', '0 to 1']),
    ('good.npy', (*SHAPE, '--output', 'plan.txt'), ['plan.txt', '.npz']),
    ('good.npy', (*SHAPE, '--output', '/nonexistent/plan.npz'), ['/nonexistent']),
    ('good.npy', (*SHAPE, '--threads', -2), ['-2']),
    ('good.npy', (*SHAPE, '--layer', -5), ['--layer -5']),
    ('good.npy', (*SHAPE, '--moves-max', 3), ['--moves-max', '--current']),
    ('good.npy', (*SHAPE, '--moves-max', -9), ['--moves-max -9']),
    ('good.npy', (*SHAPE, '--move-price', 'nan'), ['--move-price nan', '0.0005']),
    ('good.npy', (*SHAPE, '--recency-steps', 'nan'), ['--recency-steps nan']),
    ('good.npy', ('--ep-size', 1_000_000), ['--ep-size 1000000', '65536']),
    ('good.npy', (*SHAPE, '--output', 'map', '--format', 'sglang'), ['--output map', '.json']),
]


@pytest.fixture(scope='module')
def broken(tmp_path_factory):
    directory = tmp_path_factory.mktemp('broken')
    bad_files(directory)
    return directory


@pytest.mark.parametrize('name, arguments, parts', ERRORS, ids=[f'{n}-{i}' for i, (n, _, _) in enumerate(ERRORS)])
def test_errors_name_value_and_fix(broken, name, arguments, parts):
    located = [broken / a if isinstance(a, str) and a.startswith('map_') else a for a in arguments]
    done = run('plan', broken / name, *located, check=False)
    assert done.returncode not in (0, 139, 134, -6, -11), done
    assert done.stderr.startswith('trimtab: ') and done.stdout == ''
    for part in parts:
        assert part in done.stderr, f'{done.stderr!r} lacks {part!r}'


def test_two_dimensions_are_said(tmp_path):
    np.save(tmp_path / 'm.npy', skewed(layers=1)[:, 0])
    assert '--matrix steps' in run('plan', tmp_path / 'm.npy', *SHAPE).stderr
    assert run_json('plan', tmp_path / 'm.npy', '--matrix', 'steps', *SHAPE)['steps'] == 30


def test_help_teaches():
    assert 'synthesize' in run('--help').stdout
    for name in ('plan', 'evaluate', 'moves', 'export', 'advise', 'synthesize'):
        text = run(name, '--help').stdout
        assert 'Example' in text and f'trimtab experts {name}' in text, name


def test_real_counts_of_prompts():
    path = pathlib.Path(os.environ.get('TRIMTAB_DATA', '')) / 'experts/qwen35_35b_expert_selection_counts.csv'
    if not path.exists():
        pytest.skip('TRIMTAB_DATA names no folder with experts/qwen35_35b_expert_selection_counts.csv')
    answer = run_json('plan', path, '--matrix', 'steps', '--ep-size', 8, '--num-redundant-experts', 32)
    check_map(answer['physical_to_logical_map'], 256, 8)
    assert answer['balance'] < 1.02 < answer['balance_before']
