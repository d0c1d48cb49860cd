"""Weighted dispatch: the optimum against linear programming, whole tokens split without talk, the tables that engines read."""
import itertools

import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402

from trimtab import experts  # noqa: E402

optimize = pytest.importorskip('scipy.optimize', reason='tools/setup --test installs scipy')


@st.composite
def layers(draw, ranks_max=7):
    """(experts, ranks, map, tokens): legal maps, heavy-tailed loads, some of them zero."""
    ranks, count = draw(st.integers(1, ranks_max)), draw(st.integers(1, 16))
    per_rank = draw(st.integers(-(-count // ranks), count))
    random = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    tokens = numpy.floor(random.lognormal(4, draw(st.sampled_from([0.3, 1.0, 2.0])), count) * (random.random(count) < 0.9))
    # A plan for other loads than the ones that come, so that the shares have something to do.
    maps = experts.Planner(ranks, per_rank * ranks).plan(random.poisson(20, (1, 1, count))).physical_to_logical[0]
    return count, ranks, maps, tokens


def least_peak_by_highs(count, ranks, maps, tokens):
    """min t: every expert's shares add up to 1, no rank carries more than t."""
    slots = len(maps)
    rank = numpy.arange(slots) // (slots // ranks)
    upper, equal = numpy.zeros((ranks, slots + 1)), numpy.zeros((count, slots + 1))
    upper[rank, numpy.arange(slots)] = tokens[maps]
    upper[:, -1] = -1
    equal[maps, numpy.arange(slots)] = 1
    found = optimize.linprog(numpy.eye(slots + 1)[-1], upper, numpy.zeros(ranks), equal, numpy.ones(count), method='highs')
    assert found.status == 0
    return found.fun


def least_peak_by_enumeration(count, ranks, maps, tokens):
    """The largest load that is trapped inside a set of ranks, over their number (max-flow, min-cut)."""
    hosts = [set(numpy.flatnonzero(maps == expert) // (len(maps) // ranks)) for expert in range(count)]
    return max(sum(t for t, h in zip(tokens, hosts) if h <= set(ranks_in)) / size
               for size in range(1, ranks + 1) for ranks_in in itertools.combinations(range(ranks), size))


def peak_of(shares, ranks, maps, tokens):
    return (shares * tokens[maps]).reshape(ranks, -1).sum(1).max()


@settings(max_examples=300, deadline=None)
@given(layer=layers())
def test_shares_are_the_optimum(layer):
    count, ranks, maps, tokens = layer
    shares = experts.Shares(maps, count, ranks)
    result = shares.solve(tokens)
    fractions = shares.shares
    assert (fractions >= 0).all()
    assert numpy.bincount(maps, fractions, count) == pytest.approx(numpy.ones(count), abs=1e-12)
    peak, total = peak_of(fractions, ranks, maps, tokens), max(tokens.sum(), 1)
    for optimum in (least_peak_by_enumeration(count, ranks, maps, tokens), least_peak_by_highs(count, ranks, maps, tokens)):
        assert abs(peak - optimum) <= 1e-9 * total and abs(result.peak_tokens - optimum) <= 1e-9 * total
        assert abs(result.bound_tokens - optimum) <= 1e-9 * total
    tight = shares.tight_ranks
    if tight:
        inside = [t for expert, t in enumerate(tokens) if set(numpy.flatnonzero(maps == expert) // (len(maps) // ranks)) <= set(tight)]
        assert sum(inside) / len(tight) == pytest.approx(peak, rel=1e-9), 'the set of ranks does not prove the peak'


@pytest.mark.parametrize('ranks, redundant', [(4, 16), (8, 32), (64, 64)])
def test_shares_are_the_optimum_at_full_size(ranks, redundant):
    loads = experts.synthetic_loads(120, 1, tokens=256 * ranks, seed=7, drift=0.01)
    maps = experts.Planner(ranks, 384 + redundant).plan(loads[:40]).physical_to_logical[0]
    shares = experts.Shares(maps, 384, ranks)
    for step in (50, 80, 119):
        tokens = loads[step, 0].astype(float)
        result = shares.solve(tokens)
        assert result.peak_tokens == pytest.approx(least_peak_by_highs(384, ranks, maps, tokens), rel=1e-9)
        assert peak_of(shares.shares, ranks, maps, tokens) == pytest.approx(result.peak_tokens, rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(layer=layers(), parts=st.sampled_from([2, 16, 64, 256]), data=st.data())
def test_every_rank_splits_its_tokens_alone_and_loses_none(layer, parts, data):
    count, ranks, maps, tokens = layer
    shares = experts.Shares(maps, count, ranks, parts=parts)
    shares.solve(tokens)
    table = shares.table.astype(int)
    tight = experts.tables(maps[None], count, ranks, width='tightest')
    assert table.shape == tight.logical_to_physical.shape[1:]
    assert (table.sum(1) == parts).all() and (table[tight.logical_to_physical[0] < 0] == 0).all()
    exact = shares.shares[numpy.maximum(tight.logical_to_physical[0], 0)] * (tight.logical_to_physical[0] >= 0) * parts
    assert (abs(table - exact) < 1 + 1e-6).all(), 'a part is off by one or more'
    expert, rank, own = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, ranks - 1)), data.draw(st.integers(0, 5000))
    split = shares.split(expert, rank, own)
    assert split.sum() == own and (abs(split - own * table[expert] / parts) < 1 + 1e-9).all()


@settings(max_examples=100, deadline=None)
@given(layer=layers(), seed=st.integers(0, 2**32 - 1), batch=st.integers(0, 40))
def test_routing_follows_the_split(layer, seed, batch):
    count, ranks, maps, tokens = layer
    shares = experts.Shares(maps, count, ranks)
    shares.solve(tokens)
    random = numpy.random.default_rng(seed)
    choices = random.integers(count, size=(batch, min(2, count)))
    slots = shares.route(ranks - 1, choices)
    assert slots.shape == choices.shape and (maps[slots] == choices).all(), 'a token went to a slot of another expert'
    columns = experts.tables(maps[None], count, ranks, width='tightest').logical_to_physical[0]
    for expert in range(count):
        asked = int((choices == expert).sum())
        sent = [int((slots[choices == expert] == slot).sum()) for slot in columns[expert]]
        assert sent == list(shares.split(expert, ranks - 1, asked))


def test_the_published_replica_rule():
    assert [experts.replica_of(3, token, 5) for token in range(50)] == [(3 + token * 23333) % 5 for token in range(50)]
    assert experts.replica_of(63, 2**31 - 1, 7) == (63 + (2**31 - 1) * 23333) % 7


@settings(max_examples=100, deadline=None)
@given(layer=layers())
def test_tables_are_each_others_inverse(layer):
    count, ranks, maps, _ = layer
    tables = experts.tables(numpy.stack([maps, maps[::-1]]), count, ranks)
    assert tables.logical_to_physical.shape == (2, count, len(maps) - count + 1)
    for physical, logical, copies in zip(*tables):
        for expert in range(count):
            held = logical[expert, :copies[expert]]
            assert (physical[held] == expert).all() and list(held) == sorted(set(held)) and (logical[expert, copies[expert]:] == -1).all()
        assert copies.sum() == len(maps)


@settings(max_examples=150, deadline=None)
@given(layer=layers())
def test_repair_never_raises_what_shares_can_reach(layer):
    from experts_reference import assert_legal, received
    count, ranks, maps, tokens = layer
    repaired = experts.Repairer(count, ranks, moves_max=3).repair(tokens, maps)
    assert_legal(repaired.map[None], count, ranks)
    assert received(maps, repaired.map, ranks) <= repaired.received <= 3
    if tokens.sum() > 0:
        for value, of in ((repaired.value_before, maps), (repaired.value, repaired.map)):
            assert value == pytest.approx(least_peak_by_enumeration(count, ranks, of, tokens) / tokens.sum() * ranks, rel=1e-9)
        assert repaired.value <= repaired.value_before + 1e-12
        if repaired.value_before <= 1.01 * (1 - 1e-9):
            assert repaired.received == 0, 'there was nothing to repair'


def test_the_estimate_follows_a_jump_at_once_and_noise_not():
    random, estimator = numpy.random.default_rng(1), experts.LoadEstimator(2)
    for _ in range(50):
        estimator.observe(random.poisson(100, 2))
    assert estimator.estimate == pytest.approx([100, 100], abs=15)
    estimator.observe([1000, 100])
    assert estimator.estimate[0] == 1000 and estimator.estimate[1] == pytest.approx(100, abs=15)
    last = experts.LoadEstimator(2, 'last')
    last.observe([5, 7])
    assert list(last.estimate) == [5, 7]


MAP = numpy.array([0, 1, 2, 0])


@pytest.mark.parametrize('call, said', [
    (lambda: experts.Shares(MAP, 3, 2).solve([1, float('nan'), 2]), 'expert 1.*nan'),
    (lambda: experts.Shares(MAP, 3, 2).solve([1, -4, 2]), 'expert 1.*-4'),
    (lambda: experts.Shares(MAP, 3, 2).solve([1, 2]), '2'),
    (lambda: experts.Shares(MAP, 3, 2, parts=48), '48'),
    (lambda: experts.Shares(MAP, 4, 2), 'expert 3 has no slot'),
    (lambda: experts.Shares(MAP, 3, 3), '3 ranks'),
    (lambda: experts.Shares(MAP, 3, 2).split(3, 0, 5), 'expert 3'),
    (lambda: experts.Shares(MAP, 3, 2).split(0, 2, 5), 'rank 2'),
    (lambda: experts.Shares(MAP, 3, 2).split(0, 0, -5), '-5 tokens'),
    (lambda: experts.Shares(MAP, 3, 2).route(0, [[0, 9]]), 'expert 9'),
    (lambda: experts.tables([[0, 1, 1, 1]], 3, 2), 'layer 0.*expert 2'),
    (lambda: experts.tables([[0, 1, 2, 0]], 3, 2, width=4), 'width = 4'),
    (lambda: experts.replica_of(0, 0, 0), 'copies = 0'),
    (lambda: experts.LoadEstimator(2, 'median'), "kind = 'median'"),
    (lambda: experts.LoadEstimator(2).observe([1, -1]), 'expert 1 are -1'),
    (lambda: experts.LoadEstimator(2).observe([1, 2, 3]), '3 experts, the estimator 2'),
    (lambda: experts.Repairer(3, 2).repair([1, 2, float('inf')], MAP), 'inf'),
    (lambda: experts.Repairer(3, 2).repair([1, 2, 3], [0, 0, 1, 2]), 'twice'),
])
def test_errors_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()
