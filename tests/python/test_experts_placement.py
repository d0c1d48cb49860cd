"""Re-placement: what is counted, when a plan is replaced, and how copies move in place without an expert ever being lost."""
import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402

from trimtab import experts  # noqa: E402


@st.composite
def map_pairs(draw):
    """(experts, ranks, map, map): two legal maps of one shape that share little."""
    ranks, count = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    per_rank = draw(st.integers(-(-count // ranks), count))
    random = numpy.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    planner = experts.Planner(ranks, per_rank * ranks)
    return count, ranks, *(planner.plan(random.poisson(random.lognormal(3, 1, (1, 1, count)))).physical_to_logical[0] for _ in range(2))


@settings(max_examples=200, deadline=None)
@given(pair=map_pairs(), staging=st.integers(1, 3))
def test_moves_lead_from_map_to_map_and_lose_no_expert(pair, staging):
    """Carries the batches out on a table of which expert lies where; reads of a batch see what was there before it."""
    count, ranks, before, after = pair
    plan = experts.plan_moves(before, after, count, ranks, staging_slots=staging)
    width = len(before) // ranks
    places = numpy.full((plan.hosts, plan.width + plan.staging), -1)
    places[:, :width] = before.reshape(ranks, width)
    sends = numpy.zeros(ranks, int)
    for index, batch in enumerate(plan.batches):
        for running in (False, True):
            valid = plan.valid_places(index, running)
            assert set(valid.ravel()) - {-1} == set(range(count)), 'an expert cannot be read'
            held = valid >= 0
            assert (places[held] == valid[held]).all(), 'a place is said to hold what it does not'
        written, old = set(), places.copy()
        for kind, expert, source, target in batch:
            assert old[source] == expert and target not in written
            assert not running or plan.valid_places(index, True)[target] == -1, 'a place in use is overwritten'
            places[target], sends[source[0]] = expert, sends[source[0]] + (kind == 'send')
            written.add(target)
            assert (kind == 'local') == (source[0] == target[0])
        for _, _, source, _ in batch:
            assert source not in written, 'a batch reads what it writes'
    assert (places[:, :width].ravel() == after).all()
    new = [len(set(after.reshape(ranks, -1)[r]) - set(before.reshape(ranks, -1)[r])) for r in range(ranks)]
    assert plan.received == sum(new) == sends.sum()
    assert plan.sends_max == sends.max() == plan.sends_max_bound
    assert list(plan.by_host()[:, 1]) == new and str(plan)


def test_a_lost_rank_sends_nothing_and_its_last_copies_are_reloaded():
    before, after = numpy.array([0, 1, 2, 3, 0, 2]), numpy.array([0, 1, 2, 3])
    plan = experts.plan_moves(before, after, 4, 2, ranks_before=3, rank_before=[0, 2], lost=[1])
    assert plan.reloaded == [3]
    kinds = {(kind, expert) for batch in plan.batches for kind, expert, _, _ in batch}
    assert ('reload', 3) in kinds and not any(expert == 3 and kind == 'send' for kind, expert in kinds)


def test_batches_keep_the_stall_budget():
    random = numpy.random.default_rng(3)
    planner = experts.Planner(8, 72)
    before, after = (planner.plan(random.poisson(random.lognormal(3, 1, (1, 1, 64)))).physical_to_logical[0] for _ in range(2))
    copy_bytes, speed = 44_000_000, 50_000_000_000
    free = experts.plan_moves(before, after, 64, 8, bytes_per_copy=copy_bytes, link_bytes_per_s=speed)
    budget = 2_000_000  # ns: two copies
    bound = experts.plan_moves(before, after, 64, 8, bytes_per_copy=copy_bytes, link_bytes_per_s=speed, stall_ns=budget)
    assert bound.stall_ns <= budget < free.stall_ns
    assert bound.received == free.received


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), window=st.integers(1, 6), steps=st.integers(0, 12))
def test_statistics_fold_slots_to_experts_over_the_last_steps(seed, window, steps):
    random, planner = numpy.random.default_rng(seed), experts.Planner(2, 6)
    maps = planner.plan(random.poisson(20, (1, 2, 4))).physical_to_logical
    statistics = experts.Statistics(maps, 4, 2, window_steps=window, interval_steps=8 * window)
    truth = []
    for step in range(steps):
        by_slot, padding = random.integers(5, 100, (2, 6)), random.integers(0, 5, (2, 6))
        for rank in range(2):
            own = slice(3 * rank, 3 * rank + 3)
            statistics.add(rank, by_slot[:, own], padding[:, own])
        assert statistics.end_step() == 'recorded'
        truth.append([numpy.bincount(maps[layer], (by_slot - padding)[layer], 4) for layer in range(2)])
        assert statistics.due() == (step + 1 >= 2 * window), 'the first re-placement comes after a quarter of the interval'
        statistics.add(0, by_slot[:, :3])
        assert statistics.end_step(counts=False) == 'ignored'
    windows = statistics.windows()
    assert windows.shape == (min(steps, window), 2, 4) and windows.dtype == numpy.int64
    assert (windows == numpy.array(truth[-window:]).reshape(windows.shape)).all()


def test_the_published_presets():
    prefill, decode = (experts.Statistics.preset(phase, 384, 64, 3) for phase in ('prefill', 'decode'))
    assert (prefill.config.window_steps, prefill.config.interval_steps, prefill.config.shape.slots) == (100, 1000, 384 + 4 * 64)
    assert (decode.config.window_steps, decode.config.interval_steps, decode.config.shape.slots) == (1000, 10000, 448)
    assert experts.physical_slots(384, 1, 64) == 448


def test_drift_alarms_when_the_promise_is_broken_and_not_before():
    random = numpy.random.default_rng(1)
    detector = experts.DriftDetector(8)
    detector.promise(1.03)
    for _ in range(200):
        assert not detector.observe(1536 * (1.035 + 0.005 * random.random()), 1536).alarm
    verdicts = [detector.observe(1536 * (1.25 + 0.01 * random.random()), 1536) for _ in range(64)]
    assert not verdicts[0].alarm and verdicts[-1].alarm and 'held-out' in str(verdicts[-1])


def test_worth_weighs_gain_against_moves():
    asked = dict(balance_now=1.10, balance_planned=1.04, step_ns=50e6, bytes_busiest_rank=10 * 44e6, bandwidth_bytes_per_s=50e9)
    long, short = experts.worth(steps_until_next=1000, **asked), experts.worth(steps_until_next=2, **asked)
    assert long.pays and not short.pays and long.cost_ns == short.cost_ns == pytest.approx(8.8e6)
    assert long.gain_ns_per_step * long.break_even_steps == pytest.approx(long.cost_ns, rel=0.1)
    assert experts.worth(steps_until_next=1000, **{**asked, 'balance_planned': 1.2}).break_even_steps == -1


GOOD_MAPS = numpy.array([[0, 1, 2, 0]])


@pytest.mark.parametrize('call, said', [
    (lambda: experts.Statistics(GOOD_MAPS, 3, 2, window_steps=-1), '-1'),
    (lambda: experts.Statistics(GOOD_MAPS, 3, 2, window_steps=10, interval_steps=5), '10'),
    (lambda: experts.Statistics.preset('train', 3, 2, 1), "'train'"),
    (lambda: experts.Statistics(GOOD_MAPS, 3, 2, window_steps=4).add(2, [[1, 2]]), '2'),
    (lambda: experts.Statistics(GOOD_MAPS, 3, 2, window_steps=4).add(0, [[1, -2]]), '-2'),
    (lambda: experts.Statistics(GOOD_MAPS, 3, 2, window_steps=4).add(0, [[1, 2]], [[2, 0]]), '2'),
    (lambda: experts.DriftDetector(8, tolerance=-1), '-1'),
    (lambda: experts.DriftDetector(8).observe(1, float('nan')), 'nan'),
    (lambda: experts.plan_moves([0, 1, 2, 0], [0, 1, 1, 0], 3, 2), 'expert 2'),
    (lambda: experts.plan_moves([0, 1, 2, 0], [0, 1, 2, 1], 3, 2, staging_slots=-1), '-1'),
    (lambda: experts.plan_moves([0, 1, 2, 0], [0, 1, 2, 1], 3, 2, stall_ns=5), 'bytes|speed|per'),
])
def test_errors_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()
