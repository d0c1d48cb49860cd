"""What plans are judged by, against NumPy: the loads, the scores, the published rules, and the handbook's table."""
import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402

from experts_reference import assert_legal, balance, received  # noqa: E402
from trimtab import experts  # noqa: E402
from trimtab.experts import evaluation  # noqa: E402


def handbook():
    """The handbook's simulation (system facts, section 6), drawn by NumPy itself: totals [256], experts of each token [20000, 8]."""
    random = numpy.random.default_rng(0)
    bias = random.normal(0, 1, 256)
    scores = random.random((20_000, 256)) + 0.15 * bias
    groups = scores.reshape(-1, 8, 32)
    best_two = numpy.sort(groups, axis=2)[:, :, -2:].sum(2)
    kept = numpy.argsort(-best_two, axis=1)[:, :4]
    masked = numpy.full_like(groups, -numpy.inf)
    numpy.put_along_axis(masked, kept[:, :, None], numpy.take_along_axis(groups, kept[:, :, None], 1), 1)
    chosen = numpy.argsort(-masked.reshape(-1, 256), axis=1)[:, :8]
    return numpy.bincount(chosen.ravel(), minlength=256), chosen


def nodes_per_token(row, chosen, nodes):
    """A copy on a node that the token visits already, else the expert's lowest node."""
    on = [sorted(set(numpy.flatnonzero(row == expert) // (len(row) // nodes))) for expert in range(256)]
    visited = 0
    for token in chosen:
        seen = set()
        for expert in token:
            if not seen & set(on[expert]):
                seen.add(on[expert][0])
        visited += len(seen)
    return visited / len(chosen)


# nodes, ranks, slots: {placement: (busiest over mean, nodes per token)} as the handbook prints them
PRINTED = {(4, 32, 288): {'none': (2.87, 3.18), 'global': (1.03, 3.63), 'hierarchical': (1.09, 3.27)},
           (8, 64, 320): {'none': (3.97, 3.96), 'global': (1.17, 5.21), 'hierarchical': (1.79, 3.96)}}
# What ours must reach.
OURS = {(4, 32, 288): {'global': 1.006, 'hierarchical': 1.05}, (8, 64, 320): {'global': 1.016, 'hierarchical': 1.62}}


def test_the_stored_routing_is_numpys():
    assert (evaluation.seed_routing() == handbook()[1]).all()


@pytest.mark.parametrize('nodes, ranks, slots', PRINTED)
def test_the_baseline_reproduces_the_handbooks_table_and_ours_beats_it(nodes, ranks, slots):
    totals, chosen = handbook()
    by_number = experts.Planner(ranks, 256).initial(256)
    baseline = {'none': by_number, 'global': experts.deepseek_plan(totals[None], slots, 1, 1, ranks),
                'hierarchical': experts.deepseek_plan(totals[None], slots, 8, nodes, ranks)}
    for name, printed in PRINTED[nodes, ranks, slots].items():
        figures = balance(baseline[name], totals[None, None], ranks)[0], nodes_per_token(baseline[name][0], chosen[:2000], nodes)
        assert [round(float(figure), 2) for figure in figures] == list(printed), name
        assert experts.nodes_per_token(baseline[name][0], chosen[:2000], 256, ranks, nodes) == pytest.approx(figures[1])
    for scope, goal in OURS[nodes, ranks, slots].items():
        maps, _, _ = experts.rebalance_experts(totals[None], slots, 8, nodes, ranks, scope=scope)
        assert_legal(maps, 256, ranks)
        assert balance(maps, totals[None, None], ranks)[0] <= goal, scope


def deepinfer_by_hand(loads, slots, ranks):
    """The published rule in plain Python, one layer [steps, experts]; exact ties do not occur in the loads it is given."""
    steps, count = loads.shape
    copies = numpy.ones(count)
    order = list(range(count))
    for _ in range(slots - count):
        worst = [numpy.max(loads / (copies + (numpy.arange(count) == e)), axis=1).sum() for e in range(count)]
        chosen = int(numpy.argmin(worst))
        copies[chosen] += 1
        order.append(chosen)
    order.sort(key=lambda e: -loads[:, e].sum() / copies[e])
    on_ranks, held = numpy.zeros((ranks, steps)), [[] for _ in range(ranks)]
    for expert in order:
        cost = [numpy.inf if len(held[r]) == slots // ranks else
                numpy.maximum(on_ranks.max(0), on_ranks[r] + loads[:, expert] / copies[expert]).sum() for r in range(ranks)]
        rank = int(numpy.argmin(cost))
        held[rank].append(expert)
        on_ranks[rank] += loads[:, expert] / copies[expert]
    return [expert for rank in held for expert in rank]


@pytest.mark.parametrize('ranks, slots', [(4, 20), (8, 24)])
def test_deepinfers_rule_as_described(ranks, slots):
    loads = numpy.random.default_rng(5).integers(1000, 2**20, (6, 1, 16))
    assert list(experts.deepinfer_plan(loads, slots, ranks)[0]) == deepinfer_by_hand(loads[:, 0].astype(float), slots, ranks)


def test_synthetic_loads_have_the_stated_distribution():
    steps, tokens = 400, 2048
    loads = experts.synthetic_loads(steps, 8, 384, 6, tokens, seed=3)
    assert loads.shape == (steps, 8, 384) and loads.dtype == numpy.int32
    assert loads.sum((0, 2)) / steps == pytest.approx(numpy.full(8, tokens * 6), rel=0.01)
    spread = numpy.log(loads[:50].mean(0) + 0.5).std(1)
    assert spread.mean() == pytest.approx(0.8, abs=0.2)  # the base, a little of the drift, and bursts
    still = experts.synthetic_loads(20, 4, 384, 6, tokens, zipf=0.7, drift=0, burst_probability=0, seed=3)
    zipf = numpy.sort(still.mean(0), axis=1)[:, ::-1]
    slope = numpy.polyfit(numpy.log(numpy.arange(1, 201)), numpy.log(zipf[:, :200].mean(0)), 1)[0]
    assert slope == pytest.approx(-0.7, abs=0.03)
    again = experts.synthetic_loads(steps, 8, 384, 6, tokens, seed=3, draw=1)
    assert (again != loads).mean() > 0.5, 'another draw is another count'
    assert (again - loads).mean((0, 1)).std() < 1.0, 'of the same rates'
    assert (experts.synthetic_loads(steps, 8, 384, 6, tokens, seed=3) == loads).all()


@pytest.mark.parametrize('rule', ['incremental', 'fresh', 'deepinfer', 'deepseek'])
def test_rolling_scores_are_what_replanning_by_hand_gives(rule):
    loads, ranks, slots = experts.synthetic_loads(120, 2, 32, 4, 512, seed=4, drift=0.01), 4, 36
    planner = experts.Planner(ranks, slots)
    score = experts.rolling(loads, planner, rule, window_steps=20, period_steps=10, first_plan_step=40)

    def plan(window, current):
        if rule == 'incremental' and current is not None:
            return planner.replan(window, current).physical_to_logical
        if rule in ('incremental', 'fresh'):
            return planner.plan(window, planner.initial(32, 2) if current is None else current).physical_to_logical
        if rule == 'deepinfer':
            return experts.deepinfer_plan(window, slots, ranks)
        return experts.deepseek_plan(window.sum(0), slots, 1, 1, ranks)

    maps = plan(loads[20:40], None)
    peaks = means = moved = 0.0
    from experts_reference import rank_loads
    for step in range(40, 120):
        if step > 40 and step % 10 == 0:
            new = plan(loads[step - 20:step], maps)
            moved += sum(received(a, b, ranks) for a, b in zip(maps, new))
            maps = new
        on_ranks = rank_loads(maps, loads[step:step + 1], ranks)
        peaks, means = peaks + on_ranks.max(2).sum(), means + on_ranks.mean(2).sum()
    assert score.of_sums == pytest.approx(peaks / means, rel=1e-6)
    assert score.moves == pytest.approx(moved / 2 / 80)


def test_held_out_and_in_window_scores():
    loads, planner = experts.synthetic_loads(60, 2, 32, 4, 512, seed=4), experts.Planner(4, 36)
    first = planner.plan(loads[:20]).physical_to_logical
    then = planner.replan(loads[20:40], first).physical_to_logical

    def score(maps, window):
        from experts_reference import rank_loads
        on_ranks = rank_loads(maps, window, 4)
        return on_ranks.max(2).sum() / on_ranks.mean(2).sum()

    assert experts.in_window(loads, planner, 'fresh', window_steps=20).of_sums == pytest.approx(score(first, loads[:20]), rel=1e-6)
    assert experts.held_out(loads, planner, window_steps=20).of_sums == pytest.approx(score(then, loads[40:]), rel=1e-6)
    assert experts.held_out(loads, planner, window_steps=20, stale=True).of_sums == pytest.approx(score(first, loads[40:]), rel=1e-6)


def test_weighted_dispatch_levels_what_even_dispatch_cannot():
    loads = experts.synthetic_loads(200, 2, seed=6)
    outcome = experts.weighted_rolling(loads, 8, 416, 'repair', every_steps=1)
    assert 1 <= outcome.bound <= outcome.weighted < outcome.even and outcome.moves < 0.3
    assert outcome.integer == pytest.approx(outcome.weighted, abs=0.01)


def test_ours_beats_the_published_rule_where_it_counts():
    """Rolling at EP8+32 on fresh seeds: better than DeepInfer's rule every 20 steps at a twentieth of its moves."""
    planner, better, ratio = experts.Planner(8, 416, recency_steps=15), [], []
    for seed in range(200, 204):
        loads = experts.synthetic_loads(300, 2, seed=seed)
        ours, theirs = (experts.rolling(loads, planner, *asked) for asked in (('incremental',), ('deepinfer',)))
        theirs = experts.rolling(loads, planner, 'deepinfer', period_steps=20)
        better.append(ours.of_sums - theirs.of_sums)
        ratio.append(ours.moves / theirs.moves)
        assert ours.duplicates == 0
    assert numpy.mean(better) < -0.005 and max(ratio) < 0.06


def test_advice_has_the_published_memory_and_says_what_is_gained():
    """32 redundant slots x 58 layers x 44 MB = 81.7 GB in all, 2.55 GB for each of 32 ranks (system facts, section 6)."""
    loads = experts.synthetic_loads(120, 2, 256, 8, 256 * 32, seed=8)
    rows, best = experts.advise(loads, ep_sizes=[32], redundant_per_rank=[0, 1, 4], model_layers=58, expert_bytes=44_000_000)
    assert [row.slots for row in rows] == [256, 288, 384]
    assert rows[1].memory_bytes == 81_664_000_000 and rows[1].memory_bytes_per_rank == 2_552_000_000
    assert all(row.balance_none > row.balance >= 1 for row in rows) and best in rows and str(best)


def test_paired_statistics():
    a, b = [1.0, 2.0, 4.0], [0.5, 1.0, 1.0]
    paired = evaluation.paired(a, b)
    difference = numpy.subtract(a, b)
    assert paired.mean == pytest.approx(difference.mean())
    assert paired.standard_error == pytest.approx(difference.std(ddof=1) / 3**0.5)
    assert paired.upper95 == pytest.approx(difference.mean() + 4.303 * paired.standard_error, rel=1e-3)  # Student, 2 degrees


LOADS = numpy.ones((60, 1, 16), int)


@pytest.mark.parametrize('call, said', [
    (lambda: experts.synthetic_loads(0), '0'),
    (lambda: experts.synthetic_loads(10, experts=4, top_k=6), '6'),
    (lambda: experts.synthetic_loads(10, drift=2), '2'),
    (lambda: experts.synthetic_loads(10, burst=2), 'know no burst'),
    (lambda: experts.synthetic_loads(10, seed='x'), 'seed'),
    (lambda: experts.rolling(LOADS, experts.Planner(4, 20), 'greedy', first_plan_step=40), "rule = 'greedy'"),
    (lambda: experts.rolling(LOADS, experts.Planner(4, 20), first_plan_step=10), '10'),
    (lambda: experts.rolling(LOADS, experts.Planner(4, 20), first_plan_step=40, period_steps=0), '0'),
    (lambda: experts.rolling(LOADS * 0.5, experts.Planner(4, 20)), 'fractions of tokens'),
    (lambda: experts.held_out(LOADS, experts.Planner(4, 20), window_steps=30), '30|90'),
    (lambda: experts.weighted_rolling(LOADS, 4, 20, 'never'), "plan = 'never'"),
    (lambda: experts.weighted_rolling(LOADS, 4, 20, evry_steps=5), 'no option evry_steps'),
    (lambda: experts.deepseek_plan(LOADS[0], 20, 4, 2, 3), '3'),
    (lambda: experts.advise(LOADS, ep_size=8), 'no option ep_size'),
    (lambda: experts.advise(LOADS, ep_sizes=[0]), '0'),
    (lambda: experts.advise(LOADS, step_ns='long'), "step_ns = 'long'"),
    (lambda: experts.nodes_per_token(numpy.arange(16), [[0, 99]], 16, 4, 2), 'expert 99'),
])
def test_errors_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()
