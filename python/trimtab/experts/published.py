"""The two published functions, with our planner inside: signatures, shapes, types and order of results are theirs."""
import numpy

from trimtab.experts import _arrays, dispatch
from trimtab.experts.planning import Planner


def rebalance_experts(weight, num_replicas, num_groups, num_nodes, num_gpus, *, scope=None, effort='quality', threads=0):
    """In place of `rebalance_experts` of DeepSeek's eplb.py.

    weight: [layers, experts], tokens of each expert; a torch tensor or anything NumPy takes.
    num_replicas: physical slots, a multiple of num_gpus. num_groups, num_nodes: expert groups, server nodes; num_gpus: ranks.
    Returns int64 (torch tensors for a torch tensor, else NumPy arrays):
        physical_to_logical_map [layers, num_replicas]: the expert of each slot,
        logical_to_physical_map [layers, experts, X]: the slots of each expert, padded with -1; X is the most copies,
        expert_count [layers, experts]: copies of each expert.

    With several nodes, groups are packed on nodes, which must divide them. Where they do not, eplb.py ignores nodes without a word; here
    that is an error, unless scope='global' asks for it. ValueError also for a weight that is NaN, infinite or negative, for
    num_groups = 0, and for slots that do not fit the ranks or experts.
    """
    totals = _arrays.counts(weight, 'weight', '[layers, experts]')
    nodes = _arrays.whole(num_nodes, 'num_nodes', 1)
    groups = _arrays.whole(num_groups, 'num_groups')
    if groups < 1:
        raise ValueError(f'num_groups = {groups}: a model without expert groups has 1')
    if scope is None:
        scope = 'hierarchical' if nodes > 1 else 'global'
        if groups % nodes != 0:
            raise ValueError(f'num_nodes = {nodes} does not divide num_groups = {groups}, so groups cannot be packed on nodes: '
                             "pass scope='global' to place copies anywhere, or a number of nodes that divides the groups")
    ranks = _arrays.whole(num_gpus, 'num_gpus', 1)
    planner = Planner(ranks, _arrays.whole(num_replicas, 'num_replicas', 1), nodes=nodes, groups=groups, scope=scope, effort=effort,
                      threads=threads)
    maps = planner.plan(totals[None]).physical_to_logical
    return _as_published(maps, totals.shape[1], ranks, 'tightest', numpy.int64, weight)


def rebalance_experts_global(tokens_per_expert, num_physical_experts, num_local_physical_experts, *, effort='default', threads=0):
    """In place of `rebalance_experts_global` of DeepInfer's planner.

    tokens_per_expert: [steps, layers, experts], tokens. num_physical_experts: slots of all ranks; num_local_physical_experts: of one.
    Returns int32 (torch tensors for a torch tensor, else NumPy arrays): physical_to_logical_map [layers, slots],
    logical_to_physical_map [layers, experts, redundant + 1] padded with -1, logical_count [layers, experts].
    """
    loads = _arrays.counts(tokens_per_expert, 'tokens_per_expert', '[steps, layers, experts]')
    slots = _arrays.whole(num_physical_experts, 'num_physical_experts', 1)
    local = _arrays.whole(num_local_physical_experts, 'num_local_physical_experts', 1)
    if slots % local != 0:
        raise ValueError(f'num_local_physical_experts = {local} does not divide num_physical_experts = {slots}: '
                         f'use {-(-slots // local) * local} slots')
    maps = Planner(slots // local, slots, effort=effort, threads=threads).plan(loads).physical_to_logical
    return _as_published(maps, loads.shape[2], slots // local, 'engine', numpy.int32, tokens_per_expert)


def _as_published(maps, experts, ranks, width, dtype, example):
    tables = dispatch.tables(maps, experts, ranks, width=width)
    return tuple(_arrays.like(table.astype(dtype), example) for table in tables)
