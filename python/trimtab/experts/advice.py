"""Whether expert balancing is worth it, before it is switched on."""
from trimtab._core import experts as _core
from trimtab.experts.evaluation import _as_loads


def advise(loads, ep_sizes=(8,), redundant_per_rank=(0, 1, 2, 4, 8), **options):
    """Balance against slots, memory, expected gain and break-even for each EP size. loads: [steps, layers, experts], whole tokens.

    options: model_layers, expert_bytes, moe_step_share (part of a step that waits for the busiest rank), step_ns, link_bytes_per_second,
    moves_stall_share, window_steps, period_steps (those tried), recency_steps, move_price, layers_max. Returns (rows, best): rows by EP
    size, then slots, each with ep_size, slots, redundant, period_steps, balance_none, balance_static, balance, memory_bytes,
    memory_bytes_per_rank, step_saved_ratio, step_saved_net_ratio, moves_per_layer_step, break_even_steps, knee; str() tells one.
    """
    made = _core.AdviseOptions()
    for name, value in dict(ep_sizes=ep_sizes, redundant_per_rank=redundant_per_rank, **options).items():
        if not hasattr(made, name):
            raise ValueError(f'advise knows no option {name}; it knows {", ".join(n for n in dir(made) if not n.startswith("_"))}')
        try:
            setattr(made, name, list(value) if isinstance(value, (tuple, range)) else value)
        except (TypeError, ValueError):
            raise ValueError(f'{name} = {value!r} does not fit: give {type(getattr(made, name)).__name__}') from None
    rows, best = _core.advise(_as_loads(loads), made)
    return rows, rows[best]
