"""The measures that expert plans are judged by, written anew in NumPy from their definitions, for tests."""
import numpy


def rank_loads(maps, loads, ranks):
    """Load of each rank, [layers, steps, ranks], copies sharing evenly; maps [layers, slots], loads [steps, layers, experts]."""
    out = []
    for layer, row in enumerate(maps):
        copies = numpy.bincount(row, minlength=loads.shape[2])
        assert (copies > 0).all(), f'layer {layer}: an expert has no slot'
        per_slot = loads[:, layer].astype(numpy.float64)[:, row] / copies[row]
        out.append(per_slot.reshape(len(loads), ranks, -1).sum(2))
    return numpy.stack(out)


def balance(maps, loads, ranks):
    """Sum over steps of the busiest rank over the sum of the mean rank, of each layer; 1 without load."""
    on_ranks = rank_loads(maps, loads, ranks)
    peaks, means = on_ranks.max(2).sum(1), on_ranks.mean(2).sum(1)
    return numpy.where(means > 0, peaks / numpy.where(means > 0, means, 1), 1.0)


def received(before, after, ranks):
    """Copies that ranks must receive, of one layer's maps: an expert that its rank held already is free."""
    old, new = before.reshape(ranks, -1), after.reshape(ranks, -1)
    return sum(len(set(new[r]) - set(old[r])) for r in range(ranks))


def assert_legal(maps, experts, ranks):
    """Every expert placed, none twice on a rank (so none has more copies than ranks), ids in range."""
    for layer, row in enumerate(maps):
        assert set(row) == set(range(experts)), f'layer {layer}: experts without a slot, or slots without an expert'
        for rank, held in enumerate(row.reshape(ranks, -1)):
            assert len(set(held)) == len(held), f'layer {layer}: rank {rank} holds an expert twice: {held}'
