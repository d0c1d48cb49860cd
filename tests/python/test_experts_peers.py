"""The published planners themselves: our descriptions of their rules give their plans, and what goes wrong there does not here.

Runs where tools/setup --peers has fetched them (./test --peers).
"""
import pathlib
import sys

import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402

from experts_reference import assert_legal, balance  # noqa: E402
from trimtab import experts  # noqa: E402

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / 'tools'))
from benchmarks.peers import Peers  # noqa: E402


@pytest.fixture(scope='module')
def peers():
    with Peers(fetching=False) as found:
        yield found


def need(peers, algorithm):
    if not peers.has(algorithm):
        pytest.skip(peers.reason(algorithm))


SETTINGS = [(4, 400), (8, 416), (64, 448)]


@pytest.mark.parametrize('ranks, slots', SETTINGS)
@pytest.mark.parametrize('popularity', [{'sigma': 0.8}, {'zipf': 0.7}])
def test_deepinfers_rule_is_deepinfers(peers, ranks, slots, popularity):
    need(peers, 'deepinfer')
    loads = experts.synthetic_loads(100, 4, tokens=256 * ranks, seed=17, **popularity)
    theirs = peers.plan('deepinfer', loads, slots, ranks)['physical_to_logical']
    ours = experts.deepinfer_plan(loads, slots, ranks)
    # Single-precision sums are added up in another order there, so a near tie may fall the other way; it never matters.
    assert balance(ours, loads, ranks) == pytest.approx(balance(theirs, loads, ranks), rel=2e-3)
    assert (ours == theirs).mean() > 0.5
    copies = [numpy.array([numpy.bincount(row, minlength=384) for row in maps]) for maps in (ours, theirs)]
    assert (copies[0] == copies[1]).mean() > 0.995


@pytest.mark.parametrize('nodes, groups', [(1, 1), (2, 8), (4, 8)])
def test_the_greedy_is_deepseeks(peers, nodes, groups):
    need(peers, 'deepseek')
    random = numpy.random.default_rng(3)
    weight = random.lognormal(4, 1, (1, 4, 256))  # no ties: their sort is not stable
    tables = peers.plan('deepseek', weight.astype(numpy.float32), 288, 32, groups, nodes)
    ours, theirs = experts.deepseek_plan(weight[0].astype(numpy.float32), 288, groups, nodes, 32), tables['physical_to_logical']
    # The packed loads are added up in double precision there, in single precision in DeepSeek's own file and here: near ties only.
    assert (ours == theirs).mean() > 0.99
    assert balance(ours, weight, 32) == pytest.approx(balance(theirs, weight, 32), rel=1e-6)


@pytest.mark.parametrize('nodes, groups', [(1, 1), (4, 8)])
def test_shapes_types_and_meaning_of_the_tables_are_theirs(peers, nodes, groups):
    need(peers, 'deepseek')
    weight = numpy.random.default_rng(4).poisson(50, (1, 3, 64)).astype(numpy.float32)
    names = ('physical_to_logical', 'logical_to_physical', 'logical_count')
    theirs = peers.plan('deepseek', weight, 96, 8, groups, nodes)
    ours = dict(zip(names, experts.rebalance_experts(weight[0], 96, groups, nodes, 8)))
    check_same_form(ours, theirs, names)


def test_deepinfers_tables_have_the_same_form(peers):
    need(peers, 'deepinfer')
    loads = numpy.random.default_rng(4).poisson(50, (10, 3, 64))
    names = ('physical_to_logical', 'logical_to_physical', 'logical_count')
    check_same_form(dict(zip(names, experts.rebalance_experts_global(loads, 96, 12))), peers.plan('deepinfer', loads, 96, 8), names)


def check_same_form(ours, theirs, names):
    for name in names:
        assert ours[name].dtype == theirs[name].dtype and ours[name].ndim == theirs[name].ndim
        assert ours[name].shape[:2] == theirs[name].shape[:2]
    for tables in (ours, theirs):
        for layer in range(3):
            for expert, (slots, count) in enumerate(zip(tables['logical_to_physical'][layer], tables['logical_count'][layer])):
                assert (tables['physical_to_logical'][layer][slots[:count]] == expert).all() and (slots[count:] == -1).all()


def hot():
    loads = numpy.ones((4, 2, 16), numpy.float32)
    loads[:, :, 0] = 1e6
    return loads


# what goes wrong there: algorithms, loads, slots, ranks
DEFECTS = {
    'equal loads give expert 0 every spare copy': (('deepinfer', 'sglang_vec'), numpy.full((2, 1, 16), 1e6, numpy.float32), 24, 4),
    'a hot expert gets more copies than ranks': (('deepseek', 'vllm', 'sglang_vec', 'deepinfer'), hot(), 32, 4),
    'no load puts copies twice on a rank': (('deepseek', 'vllm', 'deepinfer'), numpy.zeros((2, 1, 16), numpy.float32), 20, 4),
}


@pytest.mark.parametrize('defect', DEFECTS)
def test_what_goes_wrong_there_does_not_here(peers, defect):
    algorithms, loads, slots, ranks = DEFECTS[defect]
    maps = experts.Planner(ranks, slots).plan(loads).physical_to_logical
    assert_legal(maps, 16, ranks)
    copies = numpy.array([numpy.bincount(row) for row in maps])
    assert copies.max() <= ranks
    if (loads == loads.flat[0]).all():
        assert copies.max() - copies.min() <= 1, 'ties must spread'
    for algorithm in algorithms:
        need(peers, algorithm)
        wrong = peers.plan(algorithm, loads, slots, ranks)['physical_to_logical']
        assert experts.duplicates(wrong, 16, ranks) > 0, f'{algorithm} has been mended: say so in docs/policies/experts.md'


def test_what_they_take_in_silence_is_refused_here(peers):
    broken = numpy.ones((2, 1, 16), numpy.float32)
    broken[0, 0, 3] = numpy.nan
    for call in (lambda: experts.Planner(4, 20).plan(broken), lambda: experts.rebalance_experts(broken.sum(0), 20, 1, 1, 4)):
        with pytest.raises(ValueError, match='expert 3.*nan'):
            call()
    for algorithm in ('deepseek', 'vllm', 'sglang_vec', 'deepinfer'):
        need(peers, algorithm)
        maps = peers.plan(algorithm, broken, 20, 4)['physical_to_logical']
        assert numpy.bincount(maps[0]).max() == 5, f'{algorithm} no longer gives one expert every spare copy because of a NaN'
    with pytest.raises(RuntimeError, match='ZeroDivisionError'):
        peers.plan('vllm', hot(), 20, 4, num_groups=0)
    with pytest.raises(ValueError, match='num_groups = 0'):
        experts.rebalance_experts(hot().sum(0), 20, 0, 1, 4)


@pytest.mark.parametrize('ranks, slots', SETTINGS)
def test_no_published_plan_is_better_on_its_own_window(peers, ranks, slots):
    loads = experts.synthetic_loads(100, 2, tokens=256 * ranks, seed=18)
    planner = experts.Planner(ranks, slots)
    ours = planner.balance(planner.plan(loads).physical_to_logical, loads)[:, 0]
    for algorithm in ('deepinfer', 'vllm', 'deepseek', 'sglang_vec'):
        need(peers, algorithm)
        theirs = planner.balance(peers.plan(algorithm, loads.astype(numpy.float32), slots, ranks)['physical_to_logical'], loads)[:, 0]
        assert (ours < theirs).all(), algorithm
