"""Runs the peers' planners, one order (a line of JSON) after another, on one thread; see peers.py, which starts it.

An interpreter of its own: the peers need torch, which trimtab does not, and a peer that crashes must not end a benchmark.
"""
import json
import sys
import time

import numpy
import torch


def deepinfer(loads, order):
    from deepinfer.model_executor.eplb.policy import rebalance_experts_global
    return lambda: rebalance_experts_global(loads, order['num_physical'], order['num_physical'] // order['num_ranks'])


def vllm(loads, order):
    from vllm.distributed.eplb.policy.default import DefaultEplbPolicy
    weight = loads.sum(0)
    return lambda: (DefaultEplbPolicy.rebalance_experts(weight, order['num_physical'], order['num_groups'], order['num_nodes'],
                                                        order['num_ranks']),)


def deepseek(loads, order):
    from sglang.srt.eplb.eplb_algorithms.deepseek import rebalance_experts
    weight = loads.sum(0)
    hierarchical = order['num_groups'] % order['num_nodes'] == 0
    return lambda: rebalance_experts(weight, order['num_physical'], order['num_groups'], order['num_nodes'], order['num_ranks'],
                                     hierarchical)


def sglang_vec(loads, order):
    from sglang.srt.eplb.eplb_algorithms.deepseek_vec import rebalance_experts
    hierarchical = order['num_nodes'] > 1 and order['num_groups'] % order['num_nodes'] == 0
    return lambda: rebalance_experts(loads, order['num_physical'], order['num_physical'] // order['num_ranks'], order['num_groups'],
                                     order['num_nodes'], hierarchical)


PLANNERS = {planner.__name__: planner for planner in (deepinfer, vllm, deepseek, sglang_vec)}


def carry_out(order):
    loads = torch.from_numpy(numpy.load(order['loads']))
    plan, cpu_s = PLANNERS[order['algorithm']](loads, order), []
    for _ in range(order['repeats']):
        start = time.thread_time()
        tables = plan()
        cpu_s.append(time.thread_time() - start)
    names = ('physical_to_logical', 'logical_to_physical', 'logical_count')
    numpy.savez(order['answer'], **{name: table.numpy() for name, table in zip(names, tables)})
    return {'cpu_s': cpu_s}


def accept_int32_indices():
    """Before version 2, torch refuses 32-bit index tensors, which a peer uses; the same elements are meant."""
    def widened(index):
        many = index if isinstance(index, tuple) else (index,)
        many = tuple(i.long() if isinstance(i, torch.Tensor) and i.dtype == torch.int32 else i for i in many)
        return many if isinstance(index, tuple) else many[0]

    get, put = torch.Tensor.__getitem__, torch.Tensor.__setitem__
    torch.Tensor.__getitem__ = lambda self, index: get(self, widened(index))
    torch.Tensor.__setitem__ = lambda self, index, value: put(self, widened(index), value)


def main():
    torch.set_num_threads(1)
    if int(torch.__version__.split('.')[0]) < 2:
        accept_int32_indices()
    for line in sys.stdin:
        try:
            answer = carry_out(json.loads(line))
        except Exception as error:  # a peer's own failure is an answer
            answer = {'error': f'{type(error).__name__}: {error}'}
        print(json.dumps(answer), flush=True)


if __name__ == '__main__':
    main()
