"""Plans: which experts get copies, and which rank holds each copy."""
import dataclasses

import numpy

from trimtab._core import experts as _core
from trimtab.experts import _arrays

_SCOPES = {'global': _core.Scope.global_, 'hierarchical': _core.Scope.hierarchical}
_EFFORTS = {'fast': _core.Effort.fast, 'default': _core.Effort.default, 'quality': _core.Effort.quality}


@dataclasses.dataclass
class Plans:
    """The plans of all layers.

    physical_to_logical: int32 [layers, slots], the expert that each physical slot holds; rank r owns the slots
        [r * slots / ranks, (r + 1) * slots / ranks).
    reasons: one for each layer: balance_before, balance (the promise: sum over the window's steps of the busiest rank over the sum of
        the mean rank), received (copies that ranks must receive), swaps, replacements, walk_steps. str() of one is a sentence.
    """
    physical_to_logical: numpy.ndarray
    reasons: list

    @property
    def received(self):
        """Copies that ranks must receive, of all layers."""
        return sum(reason.received for reason in self.reasons)

    def describe(self):
        """One line for each layer."""
        return '\n'.join(f'layer {layer}: {reason}' for layer, reason in enumerate(self.reasons))


class Planner:
    """Plans expert placement for one EP group; layers in parallel; the same inputs give the same bytes on every machine.

    ranks: EP ranks. slots: physical slots of one layer, of all ranks together (a multiple of ranks, at least the experts).
    scope: 'global' puts copies anywhere; 'hierarchical' packs expert groups on nodes, which they never leave (needs nodes that divide
        groups and ranks).
    effort: 'fast', 'default' or 'quality': how long the search may go on.
    move_price: for replan, the part of the mean rank's load by which one received copy must lower the expected peak to be worth it
        (None: 5e-4, from 32 ranks up 1.2e-3; with periods above 20 steps 2e-4 and 2.7e-3). moves_max: copies that a replan may move, for
        each layer (None: no cap).
    period_steps: for replan, steps until the next plan (None: 5 with windows below 64 steps, else the window's length).
    recency_steps: for plan, a step that is `age` steps old weighs exp(-age / recency_steps); 0: all alike. A replan forecasts instead.
    threads: 0 takes all cores; the plan does not depend on it.

    Every plan keeps these rules: each expert has a slot, no rank holds two copies of an expert, slots are equal over ranks.
    ValueError names the offending value and the fix. Method, sources, cost and figures: docs/policies/experts.md.
    """

    def __init__(self, ranks, slots, *, nodes=1, groups=1, scope='global', effort='default', move_price=None, moves_max=None,
                 period_steps=None, recency_steps=0.0, seed=1, threads=0):
        self.ranks, self.slots = _arrays.whole(ranks, 'ranks', 1), _arrays.whole(slots, 'slots', 1)
        self.nodes, self.groups = _arrays.whole(nodes, 'nodes', 1), _arrays.whole(groups, 'groups', 1)
        self.threads = _arrays.whole(threads, 'threads', 0)
        self._options = dict(scope=_arrays.choice(scope, 'scope', _SCOPES), effort=_arrays.choice(effort, 'effort', _EFFORTS),
                             move_price=-1.0 if move_price is None else _price(move_price),
                             moves_max=-1 if moves_max is None else _arrays.whole(moves_max, 'moves_max', 0),
                             period_steps=0 if period_steps is None else _arrays.whole(period_steps, 'period_steps', 1),
                             recency_steps=_steps(recency_steps), seed=_seed(seed))

    def shape(self, experts):
        """The checked shape of a layer with so many logical experts."""
        return _core.Shape(experts, self.slots, self.ranks, self.nodes, self.groups)

    def initial(self, experts, layers=1):
        """How engines start: experts 0, 1, 2 ..., then copies of 0, 1, 2 ...; int32 [layers, slots]."""
        return numpy.tile(_core.initial_map(self.shape(experts)), (_arrays.whole(layers, 'layers', 1), 1))

    def plan(self, loads, current=None):
        """Fresh plans. loads: [steps, layers, experts], tokens. current: [layers, slots], the maps in force: ranks and slots are then
        named so that few copies move (slots may differ from the new plan's)."""
        loads = _loads(loads)
        return self._run(loads, _core.Start.fresh, None if current is None else _maps(current, loads.shape[1], 'current'))

    def replan(self, loads, current):
        """Plans from the maps in force, moving only copies that pay their price (see move_price, moves_max)."""
        loads = _loads(loads)
        return self._run(loads, _core.Start.incremental, _maps(current, loads.shape[1], 'current'))

    def replan_ranks(self, loads, before, old_ranks, survivors, *, old_nodes=1):
        """Ranks were lost or gained; this planner has the new ranks and slots. before: [layers, old slots]; survivors: [ranks], the
        old rank that is rank r now, or -1 for a new one. No expert is left without a copy."""
        loads = _loads(loads)
        before = _maps(before, loads.shape[1], 'before')
        old = _core.Shape(loads.shape[2], before.shape[1], _arrays.whole(old_ranks, 'old_ranks', 1),
                          _arrays.whole(old_nodes, 'old_nodes', 1), self.groups)
        survivors = _arrays.integers(survivors, 'survivors', '[ranks]')
        return Plans(*_core.replan_ranks(old, before, self.shape(loads.shape[2]), survivors, loads, self._made(_core.Start.incremental)))

    def balance(self, maps, loads):
        """float64 [layers, 2]: sum of the steps' busiest rank over sum of the mean rank, and the mean of the steps' ratios, of
        physical_to_logical [layers, slots] on loads [steps, layers, experts], copies sharing a load evenly. 1 is perfect."""
        loads = _loads(loads)
        return _core.balance(self.shape(loads.shape[2]), _maps(maps, loads.shape[1], 'maps'), loads)

    def received(self, before, after, experts):
        """Copies that ranks must receive to come from one map to the other, for each layer."""
        shape = self.shape(experts)
        before, after = _arrays.integers(before, 'before', '[layers, slots]'), _arrays.integers(after, 'after', '[layers, slots]')
        return numpy.array([_core.received_copies(shape, a, b) for a, b in zip(before, after, strict=True)])

    def _made(self, start):
        options = _core.PlanOptions()
        options.start = start
        for name, value in self._options.items():
            setattr(options, name, value)
        return options

    def _run(self, loads, start, current):
        current = numpy.empty((0, 0), numpy.int32) if current is None else current
        return Plans(*_core.plan_layers(self.shape(loads.shape[2]), loads, current, self._made(start), self.threads))


def duplicates(physical_to_logical, experts, ranks):
    """Slots that hold an expert which their rank holds in an earlier slot already, of all layers [layers, slots]."""
    maps = _arrays.integers(physical_to_logical, 'physical_to_logical', '[layers, slots]')
    shape = _core.Shape(_arrays.whole(experts, 'experts'), maps.shape[1], _arrays.whole(ranks, 'ranks'))
    return sum(_core.duplicate_copies(shape, row) for row in maps)


def physical_slots(experts, redundant, ranks):
    """experts + redundant rounded up to a multiple of ranks."""
    return _core.physical_slots(_arrays.whole(experts, 'experts', 1), _arrays.whole(redundant, 'redundant', 0),
                                _arrays.whole(ranks, 'ranks', 1))


def _loads(loads):
    return _arrays.counts(loads, 'loads', '[steps, layers, experts]')


def _maps(maps, layers, name):
    maps = _arrays.integers(maps, name, '[layers, slots]')
    if maps.shape[0] != layers:
        raise ValueError(f'{name} has {maps.shape[0]} layers, the loads {layers}')
    return maps


def _price(value):
    if not (isinstance(value, (int, float, numpy.number)) and 0 <= value < float('inf')):
        raise ValueError(f"move_price = {value!r}: use a part of the mean rank's load from 0 up, such as 1e-3")
    return float(value)


def _steps(value):
    if not (isinstance(value, (int, float, numpy.number)) and 0 <= value < float('inf')):
        raise ValueError(f'recency_steps = {value!r}: use a number of steps, or 0 to weigh all alike')
    return float(value)


def _seed(value):
    if isinstance(value, bool) or not isinstance(value, (int, numpy.integer)) or not 0 <= value < 2**64:
        raise ValueError(f'seed = {value!r}: use a whole number from 0 to 2**64 - 1')
    return int(value)
