"""CPU time of planning on one thread, medians, beside vLLM's planner and DeepInfer's on the same loads."""
import statistics
import time

import numpy

from benchmarks.experts_plans import EXPERTS, SETTINGS, loads_of
from benchmarks.report import result
from trimtab import experts


def median_cpu_ms(function, repeats):
    """Median thread CPU time in milliseconds, after one call to warm up, and the last value."""
    value, times = function(), []
    for _ in range(repeats):
        start = time.thread_time()
        value = function()
        times.append(time.thread_time() - start)
    return 1e3 * statistics.median(times), value


def peer_ms(peers, algorithm, loads, slots, ranks, repeats):
    """(milliseconds or None, maps or None)."""
    if not peers.has(algorithm):
        return None, None
    plan = peers.plan(algorithm, loads.astype(numpy.float32), slots, ranks, repeats=repeats + 1)
    return 1e3 * statistics.median(plan['cpu_s'][1:]), plan['physical_to_logical']


def skipped(peers):
    return [result(f'{peer}: skipped, {why}', None, '') for peer, why in peers.missing.items()]


def _row(what, ours, theirs, layers, limit, peer, **more):
    """Milliseconds a layer; the goal is a part of what the peer took in this run."""
    theirs = None if theirs is None else theirs / layers
    goal = None if limit is None or theirs is None else theirs * limit
    return result(what, ours / layers, 'ms/layer', goal=goal, peer=peer, peer_value=theirs, **more)


def planning_time(scale, peers, say):
    results, layers = skipped(peers), scale.layers(58)
    repeats = 1 if scale.quick else 5
    for steps, drift in ((100, 0.002), (1000, 0.0004)):
        for name in ('EP4+16', 'EP8+32', 'EP64+64'):
            ranks, redundant = SETTINGS[name]
            say(f'planning time, {steps} steps, {name}')
            slots, count = EXPERTS + redundant, repeats if steps == 100 else min(repeats, 3)
            loads = loads_of(ranks, 2 * steps if steps == 100 else steps, layers, 'lognormal', 100, drift)
            window = loads[-steps:]
            vllm, _ = peer_ms(peers, 'vllm', window, slots, ranks, count)
            deepinfer, maps = peer_ms(peers, 'deepinfer', window, slots, ranks, 1 if steps == 1000 else count)
            what = f'planning, {steps} steps, {layers} layers, {name}'
            planner = experts.Planner(ranks, slots, threads=1)
            theirs = None if maps is None else planner.balance(maps, window)[:, 0].mean()
            fresh, plans = median_cpu_ms(lambda: planner.plan(window), count)
            quality = {'balance': plan_balance(planner, plans, window), 'deepinfer_balance': theirs}
            results.append(_row(f'{what}: fresh', fresh, vllm, layers, 1 if steps == 100 else 2, 'vLLM', **quality))
            results.append(_row(f'{what}: fresh', fresh, deepinfer, layers, None, 'DeepInfer (meant for a GPU)'))
            if steps == 100:
                # As in service: the map in force is a replan of 5 steps ago.
                service = experts.Planner(ranks, slots, threads=1, recency_steps=15, period_steps=5)
                current = service.plan(loads[steps - 20:-20]).physical_to_logical
                for ago in (15, 10, 5):
                    current = service.replan(loads[steps - ago:-ago], current).physical_to_logical
                replan, _ = median_cpu_ms(lambda: service.replan(window, current), count)
                results.append(_row(f'{what}: replan', replan, vllm, layers, 0.5, 'vLLM'))
            else:
                best = experts.Planner(ranks, slots, threads=1, effort='quality')
                slow, plans = median_cpu_ms(lambda: best.plan(window), 1)
                results.append(_row(f'{what}: quality', slow, deepinfer, layers, 1 / 12, 'DeepInfer (meant for a GPU)',
                                    balance=plan_balance(best, plans, window), deepinfer_balance=theirs))
            results.append(result(f'{what}: balance of the fresh plan on its window', quality['balance'], 'balance', places=4,
                                  peer='DeepInfer' if theirs else None, peer_value=theirs))
    return results + large_model(scale, peers, say)


def plan_balance(planner, plans, window):
    return planner.balance(plans.physical_to_logical, window)[:, 0].mean()


def large_model(scale, peers, say):
    """61 layers of 256 experts, 1,000 steps, EP32+32."""
    layers, ranks, slots = scale.layers(61), 32, 288
    say('planning time, 61 x 256 x 1,000, EP32+32')
    loads = experts.synthetic_loads(1000, layers, 256, 8, 256 * ranks, drift=0.0004, seed=100)
    planner = experts.Planner(ranks, slots, threads=1)
    ours, plans = median_cpu_ms(lambda: planner.plan(loads), 1 if scale.quick else 3)
    vllm, _ = peer_ms(peers, 'vllm', loads, slots, ranks, 3)
    maps = peers.plan('deepinfer', loads.astype(numpy.float32), slots, ranks)['physical_to_logical'] if peers.has('deepinfer') else None
    theirs = None if maps is None else planner.balance(maps, loads)[:, 0].mean()
    what = f'planning, 1000 steps, {layers} layers of 256 experts, EP32+32'
    return [_row(f'{what}: fresh (stretch)', ours, vllm, layers, 1, 'vLLM'),
            result(f'{what}: balance on its window (stretch)', plan_balance(planner, plans, loads), 'balance', goal=theirs, places=4,
                   peer='DeepInfer' if theirs else None, peer_value=theirs)]


def repair_time(scale, _peers, _say):
    """One call of the repairer for one layer, every step, from the estimate of weighted dispatch."""
    results = []
    for name, goal in (('EP8+32', None), ('EP64+64', 0.3)):
        ranks, redundant = SETTINGS[name]
        loads = loads_of(ranks, 300 if not scale.quick else 130, 1, 'lognormal', 100)[:, 0]
        current = experts.Planner(ranks, EXPERTS + redundant).plan(loads[:100, None]).physical_to_logical[0]
        estimator, repairer, times = experts.LoadEstimator(EXPERTS), experts.Repairer(EXPERTS, ranks), []
        for step, tokens in enumerate(loads):
            if step >= 100:
                estimate = estimator.estimate
                start = time.thread_time()
                current = repairer.repair(estimate, current).map
                times.append(1e3 * (time.thread_time() - start))
            estimator.observe(tokens)
        results += [result(f'repair of one layer, every step, {name}: mean', statistics.mean(times), 'ms', goal=goal),
                    result(f'repair of one layer, every step, {name}: p99', float(numpy.quantile(times, 0.99)), 'ms')]
    return results
