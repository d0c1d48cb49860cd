"""Dispatch that prefers copies near a token: on its rank, or on its node."""
import numpy

from trimtab._core import experts as _core
from trimtab.experts import _arrays

_NEAR = {'node': _core.Near.node, 'rank': _core.Near.rank}


class LocalShares:
    """Shares that depend on where a token comes from: copies that are near first, as far as the busiest rank allows.

    near: 'node' or 'rank' (one row of shares for each). slack: the busiest rank may carry (1 + slack) x the least possible peak.
    """

    def __init__(self, physical_to_logical, experts, ranks, nodes, *, near='node', slack=0.0, parts=64):
        maps = _arrays.integers(physical_to_logical, 'physical_to_logical', '[slots]')
        shape = _core.Shape(_arrays.whole(experts, 'experts'), len(maps), _arrays.whole(ranks, 'ranks'), _arrays.whole(nodes, 'nodes'))
        self._shares = _core.LocalShares.make(shape, maps, _arrays.choice(near, 'near', _NEAR), float(slack), _arrays.whole(parts, 'parts'))

    def solve(self, tokens):
        """tokens: [experts], or [sources, experts]. Returns optimum_tokens, peak_tokens, on_rank_tokens, on_node_tokens, the last two
        without regard to where tokens come from (on_rank_blind, on_node_blind), total_tokens."""
        shape = '[sources, experts]' if numpy.ndim(tokens) == 2 else '[experts]'
        return self._shares.solve(_arrays.counts(tokens, 'tokens', shape).astype(numpy.float64))

    def table(self, source):
        """uint16 [experts, copies]: what the ranks of this source split their tokens by."""
        return self._shares.table(_arrays.whole(source, 'source'))

    @property
    def sources(self):
        return self._shares.sources


def count_nodes(slots, source_rank, ranks, slots_per_rank, nodes):
    """(nodes that a token visits, of them not its own: each costs one send between nodes), means. slots: [tokens, top_k], where each
    choice went; source_rank: [tokens]."""
    slots = _arrays.integers(slots, 'slots', '[tokens, top_k]')
    ranks, width = _arrays.whole(ranks, 'ranks', 1), _arrays.whole(slots_per_rank, 'slots_per_rank', 1)
    source = _arrays.integers(source_rank, 'source_rank', '[tokens]')
    for name, array, limit in (('slots', slots, ranks * width), ('source_rank', source, ranks)):
        if array.size > 0 and not (0 <= array.min() and array.max() < limit):
            raise ValueError(f'{name} holds {array.min()} to {array.max()}: they are 0 to {limit - 1}')
    if len(source) != len(slots):
        raise ValueError(f'source_rank has {len(source)} tokens, slots {len(slots)}')
    return _core.count_nodes(_core.Shape(ranks * width, ranks * width, ranks, _arrays.whole(nodes, 'nodes', 1)), slots, source)
