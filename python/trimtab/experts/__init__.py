"""Expert balancing: plans, dispatch and re-placement of MoE experts on an EP group; NumPy arrays or torch tensors in and out.

>>> from trimtab import experts
>>> maps, slots, copies = experts.rebalance_experts(weight, 288, 8, 4, 32)        # as DeepSeek's eplb.py
>>> planner = experts.Planner(ranks=8, slots=416)
>>> plans = planner.plan(loads)                                                   # [steps, layers, experts] -> [layers, slots]
>>> plans = planner.replan(next_loads, plans.physical_to_logical)                 # moves only what pays

Method, sources, cost, weakness and the measured table: docs/policies/experts.md.
"""
from trimtab.experts.advice import advise
from trimtab.experts.dispatch import LoadEstimator, Repairer, Shares, Tables, replica_of, tables
from trimtab.experts.evaluation import (deepinfer_plan, deepseek_plan, held_out, in_window, nodes_per_token, rolling, synthetic_loads,
                                        weighted_rolling)
from trimtab.experts.locality import LocalShares, count_nodes
from trimtab.experts.placement import DriftDetector, Statistics, plan_moves, worth
from trimtab.experts.planning import Planner, Plans, duplicates, physical_slots
from trimtab.experts.published import rebalance_experts, rebalance_experts_global

__all__ = [
    # Plans
    'Planner', 'Plans', 'duplicates', 'physical_slots', 'rebalance_experts', 'rebalance_experts_global',
    # Dispatch
    'LoadEstimator', 'LocalShares', 'Repairer', 'Shares', 'Tables', 'count_nodes', 'replica_of', 'tables',
    # Re-placement
    'DriftDetector', 'Statistics', 'plan_moves', 'worth',
    # Evaluation
    'advise', 'deepinfer_plan', 'deepseek_plan', 'held_out', 'in_window', 'nodes_per_token', 'rolling', 'synthetic_loads',
    'weighted_rolling',
]
