"""trimtab.experts: the rules that every plan keeps, and the errors for what no plan can be made from."""
import subprocess
import sys

import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402

from experts_reference import assert_legal, balance, received  # noqa: E402
from trimtab import experts  # noqa: E402


@st.composite
def layouts(draw, experts_max=20, ranks_max=6):
    """(experts, ranks, slots) of which some plan exists."""
    ranks, count = draw(st.integers(1, ranks_max)), draw(st.integers(1, experts_max))
    per_rank = draw(st.integers(-(-count // ranks), count))
    return count, ranks, per_rank * ranks


@st.composite
def load_arrays(draw, count, layers=2):
    """Ordinary, hostile and degenerate loads, [steps, layers, experts]."""
    steps, kind = draw(st.integers(1, 20)), draw(st.sampled_from(['poisson', 'zero', 'equal', 'hot', 'huge', 'spikes']))
    random = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    loads = random.poisson(random.lognormal(3, 1, (1, layers, count)), (steps, layers, count)).astype(numpy.int64)
    if kind == 'zero':
        loads[:, 0] = 0
    elif kind == 'equal':
        loads[:] = 10**6
    elif kind == 'hot':
        loads[:] = 0
        loads[:, :, random.integers(count)] = 10**6
    elif kind == 'huge':
        loads *= 3 * 10**9
    elif kind == 'spikes':
        loads *= random.random(loads.shape) < 0.1
    return loads


@st.composite
def problems(draw):
    count, ranks, slots = draw(layouts())
    return count, ranks, slots, draw(load_arrays(count))


@settings(max_examples=300, deadline=None)
@given(problem=problems(), effort=st.sampled_from(['fast', 'default', 'quality']))
def test_fresh_plans_keep_the_rules_and_their_promise(problem, effort):
    count, ranks, slots, loads = problem
    planner = experts.Planner(ranks, slots, effort=effort)
    plans = planner.plan(loads)
    assert plans.physical_to_logical.dtype == numpy.int32 and plans.physical_to_logical.shape == (loads.shape[1], slots)
    assert_legal(plans.physical_to_logical, count, ranks)
    true = balance(plans.physical_to_logical, loads, ranks)
    assert [reason.balance for reason in plans.reasons] == pytest.approx(true, rel=1e-5)
    assert planner.balance(plans.physical_to_logical, loads)[:, 0] == pytest.approx(true, rel=1e-5)
    again = experts.Planner(ranks, slots, effort=effort, threads=2).plan(loads)
    assert again.physical_to_logical.tobytes() == plans.physical_to_logical.tobytes(), 'the number of threads changed the plan'


@settings(max_examples=200, deadline=None)
@given(problem=problems(), cap=st.none() | st.integers(0, 5), price=st.sampled_from([None, 0.0, 0.01, 1e6]),
       period=st.sampled_from([None, 5, 100]))
def test_replans_move_no_more_than_they_may_and_say_so(problem, cap, price, period):
    count, ranks, slots, loads = problem
    planner = experts.Planner(ranks, slots, moves_max=cap, move_price=price, period_steps=period)
    current = planner.initial(count, loads.shape[1])
    plans = planner.replan(loads, current)
    assert_legal(plans.physical_to_logical, count, ranks)
    moved = [received(a, b, ranks) for a, b in zip(current, plans.physical_to_logical)]
    assert [reason.received for reason in plans.reasons] == moved == list(planner.received(current, plans.physical_to_logical, count))
    for reasons, maps in (('balance_before', current), ('balance', plans.physical_to_logical)):
        assert [getattr(reason, reasons) for reason in plans.reasons] == pytest.approx(balance(maps, loads, ranks), rel=1e-5)
    if cap is not None:
        assert max(moved) <= cap
    if price == 1e6:
        assert sum(moved) == 0, 'nothing is worth a million times the sum of peaks'


@settings(max_examples=100, deadline=None)
@given(problem=problems(), seed=st.integers(0, 2**32 - 1))
def test_relabelling_never_moves_more(problem, seed):
    count, ranks, slots, loads = problem
    planner = experts.Planner(ranks, slots)
    blind = planner.plan(loads)
    shuffled = numpy.random.default_rng(seed).permutation(ranks)
    current = blind.physical_to_logical.reshape(loads.shape[1], ranks, -1)[:, shuffled].reshape(loads.shape[1], slots)
    near = planner.plan(loads, numpy.ascontiguousarray(current))
    assert_legal(near.physical_to_logical, count, ranks)
    assert near.received == 0, 'the same plan with its ranks renamed needs no copy'


@settings(max_examples=100, deadline=None)
@given(data=st.data(), nodes=st.integers(1, 3), groups_per_node=st.integers(1, 3), width=st.integers(1, 4),
       ranks_per_node=st.integers(1, 3))
def test_hierarchical_plans_keep_groups_on_their_node(data, nodes, groups_per_node, width, ranks_per_node):
    groups, ranks = nodes * groups_per_node, nodes * ranks_per_node
    count, on_node = groups * width, groups_per_node * width
    per_rank = data.draw(st.integers(-(-on_node // ranks_per_node), on_node))
    loads = data.draw(load_arrays(count))
    planner = experts.Planner(ranks, per_rank * ranks, nodes=nodes, groups=groups, scope='hierarchical')
    maps = planner.plan(loads).physical_to_logical
    assert_legal(maps, count, ranks)
    for row in maps:
        node_of_group = {}
        for node, held in enumerate(row.reshape(nodes, -1)):
            for group in {expert // width for expert in held}:
                assert node_of_group.setdefault(group, node) == node, f'group {group} is on two nodes'


@settings(max_examples=100, deadline=None)
@given(problem=problems(), data=st.data())
def test_lost_and_gained_ranks_leave_no_expert_without_a_copy(problem, data):
    count, ranks, slots, loads = problem
    before = experts.Planner(ranks, slots).plan(loads).physical_to_logical
    kept = data.draw(st.lists(st.integers(0, ranks - 1), unique=True, max_size=ranks))
    survivors = kept + [-1] * data.draw(st.integers(0 if kept else 1, 2))
    per_rank = data.draw(st.integers(-(-count // len(survivors)), count))
    planner = experts.Planner(len(survivors), per_rank * len(survivors))
    plans = planner.replan_ranks(loads, before, ranks, survivors)
    assert_legal(plans.physical_to_logical, count, len(survivors))


@pytest.mark.parametrize('load', [0, 1, 100, 10**6, 3 * 10**9])
@pytest.mark.parametrize('effort', ['fast', 'default', 'quality'])
def test_ties_spread_copies_evenly(load, effort):
    maps = experts.Planner(4, 24, effort=effort).plan(numpy.full((2, 1, 16), load)).physical_to_logical
    copies = numpy.bincount(maps[0])
    assert (copies.min(), copies.max()) == (1, 2), f'8 spare slots over 16 equal experts: {copies}'
    assert load == 0 or balance(maps, numpy.ones((1, 1, 16)), 4)[0] <= 1.17  # 6 slots a rank; the best levels them


def test_published_signatures():
    random = numpy.random.default_rng(1)
    weight = random.poisson(50, (3, 32))
    maps, slots, copies = experts.rebalance_experts(weight, 48, 8, 4, 8)
    assert maps.dtype == slots.dtype == copies.dtype == numpy.int64
    assert maps.shape == (3, 48) and copies.shape == (3, 32) and slots.shape == (3, 32, copies.max())
    assert_legal(maps, 32, 8)
    loads = random.poisson(50, (10, 3, 32))
    wide_maps, wide_slots, wide_copies = experts.rebalance_experts_global(loads, 48, 6)
    assert wide_maps.dtype == wide_slots.dtype == wide_copies.dtype == numpy.int32
    assert wide_maps.shape == (3, 48) and wide_slots.shape == (3, 32, 17) and wide_copies.shape == (3, 32)
    for physical, logical, count in ((maps, slots, copies), (wide_maps, wide_slots, wide_copies)):
        for layer in range(3):
            for expert in range(32):
                held = numpy.flatnonzero(physical[layer] == expert)
                assert list(logical[layer, expert, :count[layer, expert]]) == list(held)
                assert (logical[layer, expert, count[layer, expert]:] == -1).all()


TORCH_PROGRAM = '''
import numpy, torch
from trimtab import experts
weight = numpy.random.default_rng(1).poisson(50, (3, 32))
for dtype in (torch.int32, torch.int64, torch.float32, torch.float64, torch.bfloat16):
    tables = experts.rebalance_experts(torch.from_numpy(weight).to(dtype), 48, 8, 4, 8)
    assert all(isinstance(t, torch.Tensor) and t.dtype == torch.int64 for t in tables), dtype
    if dtype != torch.bfloat16:
        assert all((t.numpy() == n).all() for t, n in zip(tables, experts.rebalance_experts(weight, 48, 8, 4, 8)))
loads = torch.from_numpy(numpy.random.default_rng(2).poisson(50, (3, 10, 32))).transpose(0, 1)   # not contiguous
tables = experts.rebalance_experts_global(loads, 48, 6)
assert all(isinstance(t, torch.Tensor) and t.dtype == torch.int32 for t in tables)
assert all((t.numpy() == n).all() for t, n in zip(tables, experts.rebalance_experts_global(loads.numpy(), 48, 6)))
'''


def test_torch_tensors_in_and_out():
    import pathlib
    import trimtab
    for python in (sys.executable, '/usr/bin/python3'):
        probe = f'import sys, torch, numpy; sys.exit(sys.version_info[:2] != {tuple(sys.version_info[:2])})'
        if pathlib.Path(python).exists() and subprocess.run([python, '-c', probe], capture_output=True).returncode == 0:
            break
    else:
        pytest.skip('no Python of this version has torch (tools/setup --peers installs one)')
    package = pathlib.Path(trimtab.__file__).parent.parent
    done = subprocess.run([python, '-c', TORCH_PROGRAM], capture_output=True, text=True, env={'PYTHONPATH': str(package)})
    assert done.returncode == 0, done.stderr


def test_layout_and_type_of_the_array_do_not_matter():
    loads = numpy.random.default_rng(3).poisson(30, (12, 2, 16))
    planner = experts.Planner(4, 20)
    expected = planner.plan(loads).physical_to_logical
    for same in (loads.astype(numpy.uint16), loads.astype(numpy.float32), loads.astype(numpy.float16), loads.astype('>i4'), loads.tolist(),
                 numpy.asfortranarray(loads), loads.repeat(2, axis=2)[:, :, ::2], loads.astype(numpy.longdouble)):
        assert (planner.plan(same).physical_to_logical == expected).all()


GOOD = numpy.ones((3, 2, 16))


def with_value(value):
    loads = GOOD.copy()
    loads[1, 1, 5] = value
    return loads


@pytest.mark.parametrize('call, said', [
    (lambda: experts.Planner(4, 20).plan(with_value(float('nan'))), 'layer 1.*expert 5 in step 1 is nan'),
    (lambda: experts.Planner(4, 20).plan(with_value(float('inf'))), 'expert 5 in step 1 is inf'),
    (lambda: experts.Planner(4, 20).plan(with_value(-2.5)), 'expert 5 in step 1 is -2.5, which is negative'),
    (lambda: experts.Planner(4, 20).plan(with_value(1e30)), 'more than 1e15'),
    (lambda: experts.Planner(4, 20).plan(GOOD[:0]), 'empty: record at least one step'),
    (lambda: experts.Planner(4, 20).plan(GOOD[:, :0]), 'at least one'),
    (lambda: experts.Planner(4, 20).plan(GOOD[:, :, :0]), '0 experts'),
    (lambda: experts.Planner(4, 20).plan(GOOD[0]), r'shape \(2, 16\): pass \[steps, layers, experts\]'),
    (lambda: experts.Planner(4, 20).plan(GOOD > 0), 'dtype bool.*int32'),
    (lambda: experts.Planner(4, 20).plan(GOOD * 1j), 'dtype complex128'),
    (lambda: experts.Planner(4, 20).plan('loads'), 'loads has dtype'),
    (lambda: experts.Planner(4, 21).plan(GOOD), '21 physical slots do not divide evenly over 4 ranks: use 24'),
    (lambda: experts.Planner(4, 12).plan(GOOD), '12 physical slots cannot hold 16 experts'),
    (lambda: experts.Planner(4, 68).plan(GOOD), 'use at most 64'),
    (lambda: experts.Planner(1, 17).plan(GOOD), 'use at most 16'),
    (lambda: experts.Planner(0, 20), 'ranks = 0'),
    (lambda: experts.Planner(4, 20.5), r'slots = 20.5 is not a whole number'),
    (lambda: experts.Planner(4, 2**40), 'does not fit 32 bits'),
    (lambda: experts.Planner(4, 20, groups=0), 'groups = 0'),
    (lambda: experts.Planner(4, 20, groups=3).plan(GOOD), '16 experts do not divide evenly into 3 groups'),
    (lambda: experts.Planner(4, 20, nodes=3).plan(GOOD), '4 ranks do not divide evenly over 3 nodes'),
    (lambda: experts.Planner(4, 20, scope='nodes'), "scope = 'nodes': use 'global' or 'hierarchical'"),
    (lambda: experts.Planner(4, 20, effort='best'), "effort = 'best'"),
    (lambda: experts.Planner(4, 20, move_price=-1), 'move_price = -1'),
    (lambda: experts.Planner(4, 20, move_price=float('nan')), 'move_price = nan'),
    (lambda: experts.Planner(4, 20, seed=-1), 'seed = -1'),
    (lambda: experts.Planner(4, 20, threads=-1), 'threads = -1'),
    (lambda: experts.Planner(4, 20, recency_steps=-3), 'recency_steps = -3'),
    (lambda: experts.Planner(4, 20, period_steps=0), 'period_steps = 0'),
    (lambda: experts.Planner(4, 20, nodes=4, groups=2, scope='hierarchical').plan(GOOD), 'global'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.zeros((2, 20), int)), 'layer 0.*has no slot'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.full((2, 20), 99)), 'expert 99'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.full((2, 20), -1)), 'expert -1'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.zeros((1, 20), int)), '1 layers, the loads 2'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.tile(numpy.arange(16), (2, 1))), '16'),
    (lambda: experts.Planner(4, 20).replan(GOOD, numpy.zeros((2, 20))), 'dtype float64'),
    (lambda: experts.Planner(4, 20).balance(numpy.zeros((2, 20), int), GOOD), 'has no slot'),
    (lambda: experts.duplicates(numpy.full((1, 20), 2**40), 16, 4), 'does not fit'),
    (lambda: experts.rebalance_experts(GOOD[0], 20, 0, 1, 4), 'num_groups = 0'),
    (lambda: experts.rebalance_experts(GOOD[0], 20, 4, 3, 4), "num_nodes = 3 does not divide num_groups = 4.*scope='global'"),
    (lambda: experts.rebalance_experts(GOOD, 20, 1, 1, 4), r'weight has shape \(3, 2, 16\)'),
    (lambda: experts.rebalance_experts_global(GOOD, 20, 3), 'num_local_physical_experts = 3 does not divide'),
    (lambda: experts.rebalance_experts_global(GOOD, 20, 0), 'num_local_physical_experts = 0'),
])
def test_errors_name_the_value_and_the_fix(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_the_global_mode_is_had_by_asking():
    weight = numpy.random.default_rng(4).poisson(50, (1, 16))
    maps, _, _ = experts.rebalance_experts(weight, 24, 4, 3, 6, scope='global')
    assert_legal(maps, 16, 6)


def test_planning_lets_other_threads_run():
    """The interpreter's lock is free while C++ plans: a counter in another thread goes on."""
    import threading
    loads = experts.synthetic_loads(400, 8, seed=5, tokens=16384)
    counted, stop = [0], threading.Event()

    def count():
        while not stop.is_set():
            counted[0] += 1
            stop.wait(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    during = []
    # A busy machine may keep the thread from a processor: one plan that it counts through is enough. At the ends it may count one each.
    while len(during) < 50 and max(during, default=0) < 3:
        before = counted[0]
        experts.Planner(64, 448, threads=1).plan(loads)
        during.append(counted[0] - before)
    stop.set()
    thread.join()
    assert during[-1] >= 3, during
