"""The Python faces of the decisions: the worked example of the documentation, and clear errors."""
import pytest

trimtab = pytest.importorskip('trimtab', reason='build it with tools/build trimtab_python')
from hypothesis import given, settings, strategies as st  # noqa: E402

QUADRATIC = 'profiles/quadratic-example.toml'


def test_worked_example():
    cost = trimtab.CostModel.from_profile(QUADRATIC)
    assert trimtab.tier_of(100_000) == 2
    assert trimtab.image_patches(QUADRATIC, 1280, 800) == 4000
    attention = cost.cost_ns(q=3104, c=96_896, prompt=100_000)
    assert attention == pytest.approx(3104 * (96_896 + 1552) * 0.5, rel=1e-3)  # 0.5 ns per query-key pair
    assert attention > 60 * cost.cost_ns(q=3104, c=0, prompt=3104)
    tokens, spent, reason = cost.solve(budget_ns=300_000_000, c=96_896, prompt=100_000)
    assert (tokens, spent) == (3104, attention)
    assert reason
    fewer, _, _ = cost.solve(budget_ns=attention // 3, c=96_896, prompt=100_000)
    assert 0 < fewer < 3104


@settings(max_examples=200, deadline=None)
@given(budget=st.integers(0, 10**9), c=st.integers(0, 10**6), rest=st.integers(1, 32_768))
def test_solve_is_the_largest_chunk_within_the_budget(budget, c, rest):
    cost = trimtab.CostModel.from_profile(QUADRATIC)
    tokens, spent, _ = cost.solve(budget_ns=budget, c=c, prompt=c + rest)
    assert 0 <= tokens <= rest and spent <= budget
    if tokens < rest:
        assert cost.cost_ns(q=tokens + 1, c=c, prompt=c + rest) > budget


def test_block_keys_are_a_chain():
    tokens = list(range(400))
    keys = trimtab.block_keys(tokens, model_revision='r1')
    assert len(keys) == 3 and all(len(key) == 32 for key in keys)
    assert keys[:2] == trimtab.block_keys(tokens[:300], model_revision='r1')
    changed = trimtab.block_keys([7] + tokens[1:], model_revision='r1')
    assert not set(keys) & set(changed)
    assert not set(keys) & set(trimtab.block_keys(tokens, model_revision='r1', tenant='t'))
    assert not set(keys) & set(trimtab.block_keys(tokens, model_revision='r2'))


def test_long_request_goes_to_the_least_kv():
    placer = trimtab.DecodePlacer('waterline_hazard')
    for rank in range(3):
        placer.add_rank(engine=0, rank=rank, kv_tokens=1_000_000)
    for request, tokens in enumerate((90_000, 2_000, 2_000, 30_000)):
        assert placer.place(request, tokens)[0] is not None
    rank, reason = placer.place(99, 100_000)
    assert rank is not None and reason


@pytest.mark.parametrize('call, said', [
    (lambda: trimtab.CostModel.from_profile('no-such'), 'no-such'),
    (lambda: trimtab.CostModel.from_profile(QUADRATIC, scope='half'), 'half'),
    (lambda: trimtab.CostModel.from_profile(QUADRATIC).cost_ns(5, 0, 3), 'prompt = 3'),
    (lambda: trimtab.tier_of(1, [5, 5]), '5'),
    (lambda: trimtab.DecodePlacer('watreline'), 'waterline'),
])
def test_errors_name_the_value(call, said):
    with pytest.raises((ValueError, FileNotFoundError), match=said):
        call()
