"""Dispatch: the tables that an engine's gate reads, and which copy of an expert a token takes."""
import typing

import numpy

from trimtab._core import experts as _core
from trimtab.experts import _arrays

_WIDTHS = {'tightest': True, 'engine': False}
_ESTIMATES = {'last': _core.Estimate.last, 'mean': _core.Estimate.mean, 'adaptive': _core.Estimate.adaptive}


class Tables(typing.NamedTuple):
    """physical_to_logical [layers, slots], logical_to_physical [layers, experts, copies] padded with -1 (slots ascending), and
    logical_count [layers, experts]; int32."""
    physical_to_logical: numpy.ndarray
    logical_to_physical: numpy.ndarray
    logical_count: numpy.ndarray


def tables(physical_to_logical, experts, ranks, *, width='engine'):
    """Tables for maps [layers, slots]. width: 'engine' for redundant slots + 1 columns, which never changes, or 'tightest'."""
    maps = _arrays.integers(physical_to_logical, 'physical_to_logical', '[layers, slots]')
    shape = _core.Shape(_arrays.whole(experts, 'experts'), maps.shape[1], _arrays.whole(ranks, 'ranks'))
    return Tables(*_core.tables(shape, maps, _arrays.choice(width, 'width', _WIDTHS)))


def replica_of(rank, token, copies):
    """Which copy a token takes when nothing is known of loads: (rank + token * 23333) mod copies; token: its index in its rank's
    batch (system facts, section 6)."""
    return _core.replica_of(_arrays.whole(rank, 'rank', 0), _arrays.whole(token, 'token', 0), _arrays.whole(copies, 'copies', 1))


class Shares:
    """Shares of one layer's experts over their copies that minimise the busiest rank, and how each rank splits its tokens by them.

    physical_to_logical: [slots]. parts: what a whole expert is divided into when quantised (a power of two, 2 to 256).
    """

    def __init__(self, physical_to_logical, experts, ranks, *, parts=64):
        self._map = _arrays.integers(physical_to_logical, 'physical_to_logical', '[slots]')
        self._shape = _core.Shape(_arrays.whole(experts, 'experts'), len(self._map), _arrays.whole(ranks, 'ranks'))
        self._shares = _core.Shares.make(self._shape, self._map, 0, _arrays.whole(parts, 'parts'))

    def solve(self, tokens):
        """tokens: [experts], of the last step or an estimate of the next. Returns peak_tokens (busiest rank), bound_tokens (what no
        shares can beat: equal, up to rounding) and mean_tokens; `shares` and `table` hold the result."""
        result = self._shares.solve(_tokens(tokens))
        self._shares.quantise()
        return result

    @property
    def shares(self):
        """float64 [slots]: the part of its expert's tokens that each slot takes."""
        return self._shares.shares()

    @property
    def table(self):
        """uint16 [experts, copies]: the shares in parts, columns as in logical_to_physical; the rows add up to `parts`."""
        return self._shares.parts()

    @property
    def tight_ranks(self):
        """Ranks whose trapped load proves the peak; empty when all ranks are equal."""
        return self._shares.tight_ranks()

    def split(self, expert, rank, tokens):
        """int64 [copies]: tokens that the rank sends to each copy, from its own count alone."""
        return self._shares.split(_arrays.whole(expert, 'expert'), _arrays.whole(rank, 'rank'), _arrays.whole(tokens, 'tokens'))

    def route(self, rank, choices):
        """int32 [tokens, top_k]: the slot of each choice; choices: [tokens, top_k], the experts that the rank's batch chose."""
        return self._shares.route(_arrays.whole(rank, 'rank'), _arrays.integers(choices, 'choices', '[tokens, top_k]'))


class LoadEstimator:
    """What each expert of one layer will be asked for next: kind 'last', 'mean' (exponential) or 'adaptive' (a running mean that is
    forgotten when the counts contradict it)."""

    def __init__(self, experts, kind='adaptive', memory_steps=8.0):
        if not 1 <= memory_steps < float('inf'):
            raise ValueError(f'memory_steps = {memory_steps!r}: use 1 step or more')
        self._experts = _arrays.whole(experts, 'experts', 1)
        self._estimator = _core.LoadEstimator(self._experts, _arrays.choice(kind, 'kind', _ESTIMATES), float(memory_steps))

    def observe(self, tokens):
        """tokens: [experts] of one step, finite and not negative."""
        tokens = _tokens(tokens)
        if len(tokens) != self._experts:
            raise ValueError(f'tokens has {len(tokens)} experts, the estimator {self._experts}')
        if not (numpy.isfinite(tokens).all() and (tokens >= 0).all()):
            worst = int(numpy.argmin(numpy.isfinite(tokens) & (tokens >= 0)))
            raise ValueError(f'tokens of expert {worst} are {tokens[worst]}: counts are finite and not negative')
        self._estimator.observe(tokens)

    @property
    def estimate(self):
        """float64 [experts]; zero before the first step."""
        return self._estimator.estimate()


class Repairer:
    """The plan for an engine that dispatches by weight: moves copies only where no shares could level the ranks.

    tolerance: ranks are asked to carry at most (1 + tolerance) x the mean; what is above is overload. gain_min: part of the mean by which
    each moved copy must lower the overload, summed over ranks. moves_max: copies a call.
    """

    def __init__(self, experts, ranks, *, tolerance=0.01, gain_min=0.02, moves_max=8):
        self._experts, self._ranks = _arrays.whole(experts, 'experts', 1), _arrays.whole(ranks, 'ranks', 1)
        self._repairer = _core.Repairer(float(tolerance), float(gain_min), _arrays.whole(moves_max, 'moves_max', 0))

    def repair(self, tokens, current):
        """tokens: [experts], an estimate; current: [slots]. Returns map int32 [slots], value_before and value (least possible peak over
        mean), overload_before and overload (parts of the mean), received and trials."""
        current = _arrays.integers(current, 'current', '[slots]')
        shape = _core.Shape(self._experts, len(current), self._ranks)
        return self._repairer.repair(shape, _arrays.counts(tokens, 'tokens', '[experts]').astype(numpy.float64), current)


def _tokens(tokens):
    array = _arrays.counts(tokens, 'tokens', '[experts]')
    return array.astype(numpy.float64 if array.dtype.kind == 'f' else numpy.int64)
