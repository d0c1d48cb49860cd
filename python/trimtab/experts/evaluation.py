"""What plans are judged by: synthetic loads, the published rules, and rolling, held-out and in-window scores (all in C++)."""
import numpy

from trimtab._core import experts as _core
from trimtab.experts import _arrays
from trimtab.experts.dispatch import _ESTIMATES

_PLANNERS = {'keep': _core.RollingPlanner.keep, 'published': _core.RollingPlanner.published,
             'incremental': _core.RollingPlanner.incremental, 'repair': _core.RollingPlanner.repair}


def synthetic_loads(steps, layers=1, experts=384, top_k=6, tokens=2048, *, sigma=0.8, zipf=None, drift=0.002, seed=0, draw=0, **bursts):
    """int32 [steps, layers, experts]: tokens of each expert. Popularity is lognormal(sigma) or Zipf(zipf), drifts (Ornstein-Uhlenbeck)
    and bursts by domain (burst_probability, burst_mean_steps, burst_amplitude, burst_share); counts are Poisson.

    tokens: of the whole group, for each step. draw: another draw of the counts from the very same rates.
    """
    return _generate(steps, layers, experts, top_k, tokens, sigma=sigma, zipf=zipf, drift=drift, seed=seed, draw=draw, **bursts).counts()


def _generate(steps, layers, experts, top_k, tokens, **options):
    config = _core.SyntheticConfig()
    sizes = dict(steps=steps, layers=layers, experts=experts, top_k=top_k, tokens=tokens)
    for name, value in sizes.items():
        setattr(config, name, _arrays.whole(value, name))
    for name, value in options.items():
        if not hasattr(config, name):
            raise ValueError(f'synthetic loads know no {name}; they know {", ".join(n for n in dir(config) if not n.startswith("_"))}')
        try:
            setattr(config, name, value if value is None or name in ('seed', 'draw') else float(value))
        except TypeError:
            raise ValueError(f'{name} = {value!r} is not a number that fits') from None
    return _core.Loads.generate(config)


def deepinfer_plan(loads, num_physical, num_ranks):
    """int32 [layers, slots]: DeepInfer's rule, written from its description; loads [steps, layers, experts]."""
    loads = _arrays.counts(loads, 'loads', '[steps, layers, experts]')
    slots, ranks = _arrays.whole(num_physical, 'num_physical'), _arrays.whole(num_ranks, 'num_ranks')
    return _core.deepinfer_plan(_core.Shape(loads.shape[2], slots, ranks), loads)


def deepseek_plan(weight, num_replicas, num_groups, num_nodes, num_gpus):
    """int32 [layers, slots]: DeepSeek's published greedy; weight [layers, experts]. Hierarchical where nodes divide groups, else global."""
    totals = _arrays.counts(weight, 'weight', '[layers, experts]').astype(numpy.float64)
    shape = _core.Shape(totals.shape[1], _arrays.whole(num_replicas, 'num_replicas'), _arrays.whole(num_gpus, 'num_gpus'),
                        _arrays.whole(num_nodes, 'num_nodes'), _arrays.whole(num_groups, 'num_groups'))
    return _core.deepseek_plan(shape, totals)


def nodes_per_token(physical_to_logical, routing, experts, ranks, nodes):
    """Mean number of nodes that a token visits under one layer's map; routing [tokens, top_k]: each token's experts."""
    maps = _arrays.integers(physical_to_logical, 'physical_to_logical', '[slots]')
    shape = _core.Shape(_arrays.whole(experts, 'experts'), len(maps), _arrays.whole(ranks, 'ranks'), _arrays.whole(nodes, 'nodes'))
    return _core.nodes_per_token(shape, maps, _arrays.integers(routing, 'routing', '[tokens, top_k]'))


def seed_routing():
    """int32 [20000, 8]: the experts of each token in the handbook's simulation (system facts, section 6), highest score first."""
    return _core.seed_routing()


def paired(a, b):
    """Mean of a - b over seeds, its standard error, and upper95, the upper end of the two-sided 95 % interval (Student)."""
    return _core.paired([float(value) for value in a], [float(value) for value in b])


def _as_loads(loads):
    if isinstance(loads, _core.Loads):
        return loads
    array = _arrays.counts(loads, 'loads', '[steps, layers, experts]')
    if array.dtype.kind == 'f' and not (numpy.mod(array, 1) == 0).all():
        raise ValueError('loads hold fractions of tokens: pass whole counts')
    return _core.Loads.of(_arrays.integers(array.astype(numpy.int64), 'loads', '[steps, layers, experts]'))


def _rule(rule, planner):
    if rule in ('incremental', 'fresh'):
        return _core.Rule.own(rule, planner._made(_core.Start.incremental if rule == 'incremental' else _core.Start.fresh))
    made = {'deepinfer': _core.Rule.deepinfer, 'deepseek': _core.Rule.deepseek, 'none': _core.Rule.none}
    return _arrays.choice(rule, 'rule', {**made, 'incremental': None, 'fresh': None})()


def rolling(loads, planner, rule='incremental', *, window_steps=40, first_window_steps=0, period_steps=5, delay_steps=0,
            first_plan_step=100, end_step=0):
    """Replans each layer every period_steps from its last window_steps steps and scores every step with the map in force.

    loads: [steps, layers, experts], whole tokens. planner: a Planner; rule: 'incremental' or 'fresh' (ours, with the planner's options),
    'deepinfer', 'deepseek', 'none'. delay_steps: a plan serves so many steps after it was made. Returns of_sums (sum of peaks over sum
    of means), mean_ratio, moves (received copies for each layer and step), moves_per_plan, slots_moved_ratio, plans, duplicates.
    """
    loads = _as_loads(loads)
    return _core.roll(loads, planner.shape(loads.experts), _rule(rule, planner), window_steps, first_window_steps, period_steps,
                      delay_steps, first_plan_step, end_step)


def held_out(loads, planner, rule='incremental', *, window_steps=100, stale=False):
    """Plans first on one window, again on the next, and scores on the third; stale keeps the first plan. Needs 3 windows of loads."""
    loads = _as_loads(loads)
    return _core.hold_out(loads, planner.shape(loads.experts), _rule(rule, planner), window_steps, stale)


def in_window(loads, planner, rule='fresh', *, window_steps=100, scored=None):
    """Plans on the first window and scores on it, or on the same steps of `scored` (another draw of the same rates)."""
    loads = _as_loads(loads)
    scored = loads if scored is None else _as_loads(scored)
    return _core.in_window(loads, scored, planner.shape(loads.experts), _rule(rule, planner), window_steps)


def weighted_rolling(loads, ranks, slots, plan='incremental', *, seed=1, **options):
    """Rolling with weighted dispatch: shares from an estimate, whole tokens split by each source rank; all layers of loads.

    plan: 'keep', 'published' (DeepInfer's rule), 'incremental' or 'repair'. options: every_steps, window_steps, recency_steps,
    move_price, repair_tolerance, repair_gain_min, estimate ('last', 'mean', 'adaptive'), memory_steps, delay_steps, first_step, parts.
    Returns busiest over mean with even shares (even), with shares (weighted), in whole tokens (integer), the least that any shares reach
    with counts known (bound), and moves for each layer and step.
    """
    loads = _as_loads(loads)
    made = weighted_options(plan, **options)
    shape, total = _core.Shape(loads.experts, _arrays.whole(slots, 'slots'), _arrays.whole(ranks, 'ranks')), _core.WeightedOutcome()
    for layer in range(loads.layers):
        total.add(_core.weighted_rolling(shape, _core.RankedLoads.spread(loads, layer, ranks, seed), made))
    return total


def weighted_options(plan, **options):
    made = _core.WeightedOptions()
    made.planner = _arrays.choice(plan, 'plan', _PLANNERS)
    for name, value in options.items():
        if not hasattr(made, name):
            raise ValueError(f'weighted rolling knows no option {name}; it knows {", ".join(n for n in dir(made) if not n.startswith("_"))}')
        setattr(made, name, _arrays.choice(value, name, _ESTIMATES) if name == 'estimate' else value)
    return made


__all__ = ['deepinfer_plan', 'deepseek_plan', 'held_out', 'in_window', 'nodes_per_token', 'paired', 'rolling', 'seed_routing',
           'synthetic_loads', 'weighted_options', 'weighted_rolling']
