"""Dispatch that prefers near copies: only as far as the busiest rank allows, and counted right."""
import pytest

pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
import numpy  # noqa: E402
from hypothesis import given, settings, strategies as st  # noqa: E402

from trimtab import experts  # noqa: E402

pytest.importorskip('scipy.optimize', reason='tools/setup --test installs scipy')
from test_experts_dispatch import layers, least_peak_by_enumeration  # noqa: E402


@settings(max_examples=100, deadline=None)
@given(layer=layers(), slack=st.sampled_from([0.0, 0.05, 1.0]), near=st.sampled_from(['node', 'rank']))
def test_near_copies_are_taken_only_as_far_as_balance_allows(layer, slack, near):
    count, ranks, maps, tokens = layer
    nodes = 2 if ranks % 2 == 0 else 1
    local = experts.LocalShares(maps, count, ranks, nodes, near=near, slack=slack)
    result = local.solve(tokens)
    optimum = least_peak_by_enumeration(count, ranks, maps, tokens)
    assert result.optimum_tokens == pytest.approx(optimum, rel=1e-9, abs=1e-9)
    assert result.peak_tokens <= optimum * (1 + slack) * (1 + 1e-9) + 1e-9
    assert local.sources == (nodes if near == 'node' else ranks)
    assert -1e-9 <= result.on_rank_tokens <= result.on_node_tokens + 1e-9 <= tokens.sum() + 2e-9
    for source in range(local.sources):
        assert (local.table(source).sum(1) == 64).all()


@pytest.mark.parametrize('call, said', [
    (lambda: experts.LocalShares([0, 1, 2, 0], 3, 2, 1, slack=-1), '-1'),
    (lambda: experts.LocalShares([0, 1, 2, 0], 3, 2, 1).table(1), 'source 1'),
])
def test_errors_name_the_value(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_nodes_are_counted():
    slots = [[0, 1], [0, 4], [4, 6]]  # two slots a rank, two ranks a node
    assert experts.count_nodes(slots, [0, 0, 0], ranks=4, slots_per_rank=2, nodes=2) == pytest.approx((4 / 3, 2 / 3))
