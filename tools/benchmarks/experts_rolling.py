"""Scores of plans in service: replanned as loads drift, with even and with weighted dispatch, on made loads and on recorded routing."""
import os
import pathlib

import numpy

from benchmarks.experts_plans import DEEPINFER, EXPERTS, POPULARITY, SETTINGS, each, loads_of, mean, standard_error
from benchmarks.report import google_benchmark, result
from trimtab import experts
from trimtab._core import experts as core
from trimtab.experts import evaluation

STEPS = 300  # the first plan is made before step 100; the others are scored
# setting, popularity: difference to DeepInfer's rule every 20 steps, moves for each layer and step
ROLLING_GOALS = {('EP8+32', 'lognormal'): (-0.018, 0.65), ('EP8+32', 'Zipf'): (-0.015, 0.5),
                 ('EP64+64', 'lognormal'): (-0.09, 1.4), ('EP64+64', 'Zipf'): (-0.11, 1.6)}
RECENCY_STEPS = 15


def _paired_rows(what, ours, theirs, goal, goal_moves, peer):
    balance = [score.of_sums for score in ours]
    difference = [a.of_sums - b.of_sums for a, b in zip(ours, theirs)]
    return [
        result(f'{what}: ours - DeepInfer', mean(difference), 'balance', goal=goal, places=4, standard_error=standard_error(difference)),
        result(f'{what}: ours', mean(balance), 'balance', places=4, standard_error=standard_error(balance), peer=peer,
               peer_value=mean([score.of_sums for score in theirs])),
        result(f'{what}: moves for each layer and step', mean([score.moves for score in ours]), 'copies', goal=goal_moves, peer=peer,
               peer_value=mean([score.moves for score in theirs])),
    ]


def rolling(scale, _peers, say):
    """Even dispatch. Every 5 steps is the figure that counts; late: a plan serves 5 steps after it was made; equal period: every 20."""
    results = []
    for name in ('EP4+16', 'EP8+8', 'EP8+32', 'EP64+64'):
        ranks, redundant = SETTINGS[name]
        planners = {period: experts.Planner(ranks, EXPERTS + redundant, recency_steps=RECENCY_STEPS, period_steps=period, threads=1)
                    for period in (5, 20)}
        for popularity in POPULARITY:
            say(f'rolling, {name} {popularity}')

            def scored(seed):
                loads = core.Loads.of(loads_of(ranks, STEPS, scale.layers(2), popularity, seed))
                runs = {'5': ('incremental', 5, 0), '5 late': ('incremental', 5, 5), '20': ('incremental', 20, 0),
                        'peer': ('deepinfer', 20, 0), 'peer late': ('deepinfer', 20, 5)}
                return {key: experts.rolling(loads, planners[period], rule, period_steps=period, delay_steps=delay)
                        for key, (rule, period, delay) in runs.items()}

            runs = each(scored, scale.seeds(16))
            of = {key: [run[key] for run in runs] for key in runs[0]}
            goal, goal_moves = ROLLING_GOALS.get((name, popularity), (None, None))
            what = f'rolling, {name} {popularity}'
            results += _paired_rows(f'{what}, every 5', of['5'], of['peer'], goal, goal_moves, f'{DEEPINFER} every 20')
            results += _paired_rows(f'{what}, every 5, 5 late', of['5 late'], of['peer late'], None, None, f'{DEEPINFER} every 20, 5 late')
            peer_moves = mean([score.moves for score in of['peer']])
            results += _paired_rows(f'{what}, every 20', of['20'], of['peer'], 0, peer_moves / 20, f'{DEEPINFER} every 20')
    return results


# setting: [(plan, options, moves late, {popularity: (balance, moves)})]
WEIGHTED = {
    'EP8+32': [('incremental every 5', {'plan': 'incremental', 'every_steps': 5}, {'lognormal': (1.043, 0.8), 'Zipf': (1.040, 0.65)}),
               ('repair every step', {'plan': 'repair', 'every_steps': 1}, {'lognormal': (1.047, 0.03), 'Zipf': (1.043, 0.01)})],
    'EP64+64': [('incremental every 5', {'plan': 'incremental', 'every_steps': 5}, {'lognormal': (1.175, 2.1), 'Zipf': (1.19, 1.8)}),
                ('repair every step', {'plan': 'repair', 'every_steps': 1}, {'lognormal': (1.13, 1.0), 'Zipf': (1.135, 1.0)}),
                ('repair every step, 5 late', {'plan': 'repair', 'every_steps': 1, 'delay_steps': 5},
                 {'lognormal': (1.205, None), 'Zipf': (1.21, None)})],
}


def weighted(scale, _peers, say):
    """Shares in 64ths from an estimate of the counts, whole tokens split by each source rank alone; even dispatch is DeepInfer's."""
    results = []
    for name, plans in WEIGHTED.items():
        ranks, redundant = SETTINGS[name]
        for popularity in POPULARITY:
            def scored(seed):
                loads = core.Loads.of(loads_of(ranks, STEPS, scale.layers(2), popularity, seed))
                asked = [{'plan': 'published', 'every_steps': 20}] + [options for _, options, _ in plans]
                return [experts.weighted_rolling(loads, ranks, EXPERTS + redundant, seed=seed, **options) for options in asked]

            say(f'weighted dispatch, {name} {popularity}')
            peer, *ours = zip(*each(scored, scale.seeds(8)))
            peer_even, peer_moves = mean([run.even for run in peer]), mean([run.moves for run in peer])
            results.append(result(f'weighted, {name} {popularity}: {DEEPINFER} every 20 with our dispatch',
                                  mean([run.integer for run in peer]), 'balance', places=4, peer='the same with even dispatch',
                                  peer_value=peer_even))
            for (label, _, goals), runs in zip(plans, ours):
                goal, goal_moves = goals[popularity]
                what, integer = f'weighted, {name} {popularity}, {label}', [run.integer for run in runs]
                results += [
                    result(f'{what}: whole tokens', mean(integer), 'balance', goal=goal, places=4, standard_error=standard_error(integer),
                           peer=f'{DEEPINFER} every 20, even', peer_value=peer_even, even=mean([run.even for run in runs]),
                           fractions=mean([run.weighted for run in runs]), least_possible=mean([run.bound for run in runs])),
                    result(f'{what}: moves for each layer and step', mean([run.moves for run in runs]), 'copies', goal=goal_moves,
                           peer=f'{DEEPINFER} every 20', peer_value=peer_moves),
                ]
    return results


def dispatch_time(_scale, _peers, _say):
    """Shares of one layer for one step and their parts: mean and 99th percentile of single calls on one thread."""
    _, counters = google_benchmark('policy_experts_bench', '^shares/ranks:(8/redundant:32|64/redundant:64)/before:1/after:0')
    results = []
    for ranks, redundant, goal in ((8, 32, 4), (64, 64, 8)):
        table = next(table for name, table in counters.items() if name.startswith(f'shares/ranks:{ranks}/redundant:{redundant}/'))
        results += [result(f'shares and parts, EP{ranks}+{redundant}: mean', table['us_mean'], 'us', goal=goal),
                    result(f'shares and parts, EP{ranks}+{redundant}: p99', table['us_p99'], 'us')]
    return results


ROUTING_PLANS = [
    ('incremental every 5', {'plan': 'incremental', 'every_steps': 5}, (None, None)),
    ('incremental every 5, dear moves', {'plan': 'incremental', 'every_steps': 5, 'move_price': 1e-2}, (1.160, 0.35)),
    ('repair every step', {'plan': 'repair', 'every_steps': 1, 'repair_tolerance': 0.0, 'repair_gain_min': 5e-3}, (1.165, 0.11)),
]


def real_routing(scale, _peers, _say):
    """Decode steps of 256 requests whose text changes every 150 steps, of a real MoE of 64 experts, top-2: EP8+8, all layers."""
    path = pathlib.Path(os.environ.get('TRIMTAB_DATA', '')) / 'experts/derived_moe_routing.npz'
    if not path.is_file():
        return [result('real routing: skipped, TRIMTAB_DATA names no folder with experts/derived_moe_routing.npz', None, '')]
    with numpy.load(path) as recorded:
        texts = [numpy.ascontiguousarray(recorded[name]) for name in ('english', 'python', 'licence', 'cpp')]
    layers, seeds, shape = texts[0].shape[2], scale.seeds(3), core.Shape(64, 72, 8)
    asked = [('peer', {'plan': 'published', 'every_steps': 20}, None)] + ROUTING_PLANS
    made = [evaluation.weighted_options(estimate='mean', memory_steps=8.0, **options) for _, options, _ in asked]

    def scored(seed):
        totals = [core.WeightedOutcome() for _ in made]
        for layer in range(layers):
            loads = core.RankedLoads.serve_mix(texts, layer, 64, 8, 256, 600, 150, seed)
            for total, options in zip(totals, made):
                total.add(core.weighted_rolling(shape, loads, options))
        return totals

    peer, *ours = zip(*each(scored, seeds))
    peer_even, peer_moves = mean([run.even for run in peer]), mean([run.moves for run in peer])
    results = []
    for (label, _, (goal, goal_moves)), runs in zip(ROUTING_PLANS, ours):
        integer = [run.integer for run in runs]
        results += [
            result(f'real routing, EP8+8, {label}: whole tokens', mean(integer), 'balance', goal=goal, places=4,
                   standard_error=standard_error(integer), peer=f'{DEEPINFER} every 20, even', peer_value=peer_even,
                   even=mean([run.even for run in runs]), least_possible=mean([run.bound for run in runs])),
            result(f'real routing, EP8+8, {label}: moves for each layer and step', mean([run.moves for run in runs]), 'copies',
                   goal=goal_moves, peer=f'{DEEPINFER} every 20', peer_value=peer_moves),
        ]
    return results
