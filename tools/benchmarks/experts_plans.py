"""Scores of single plans: on the window they were made from, on later windows, and on the handbook's loads."""
import concurrent.futures
import dataclasses
import hashlib
import os

import numpy

from benchmarks.report import result
from trimtab import experts

# name: ranks, redundant slots
SETTINGS = {'EP4+16': (4, 16), 'EP4+32': (4, 32), 'EP8+8': (8, 8), 'EP8+32': (8, 32), 'EP64+64': (64, 64)}
POPULARITY = {'lognormal': {'sigma': 0.8}, 'Zipf': {'zipf': 0.7}}
EXPERTS, TOKENS_PER_RANK = 384, 256
DEEPINFER = "DeepInfer's rule"


@dataclasses.dataclass
class Scale:
    """How much is drawn: --quick shows that everything runs, its figures are noise."""
    quick: bool

    def seeds(self, full):
        return range(100, 100 + (2 if self.quick else full))

    def layers(self, full):
        return 1 if self.quick else full


def loads_of(ranks, steps, layers, popularity, seed, drift=0.002, draw=0):
    return experts.synthetic_loads(steps, layers, EXPERTS, 6, TOKENS_PER_RANK * ranks, drift=drift, seed=seed, draw=draw,
                                   **POPULARITY[popularity])


def each(function, items):
    """function(item) of all items, on all cores: the work is C++ that leaves the interpreter free."""
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(function, items))


def mean(values):
    return float(numpy.mean(values))


def standard_error(values):
    return float(numpy.std(values, ddof=1) / numpy.sqrt(len(values))) if len(values) > 1 else None


def held_out(scale, _peers, _say):
    """Ours goes on from its plan of the window before; DeepInfer's plans anew; both are scored on the window after."""
    results = []
    for name, bound in (('EP4+16', 0.02), ('EP4+32', 0.02), ('EP8+8', 0.02), ('EP8+32', 0.02), ('EP64+64', 0.08)):
        ranks, redundant = SETTINGS[name]
        planner = experts.Planner(ranks, EXPERTS + redundant, threads=1)
        for popularity in POPULARITY:
            def scored(seed):
                loads = loads_of(ranks, 300, scale.layers(2), popularity, seed)
                return (experts.held_out(loads, planner, 'incremental', window_steps=100),
                        experts.held_out(loads, planner, 'deepinfer', window_steps=100))

            pairs = each(scored, scale.seeds(24))
            paired = experts.evaluation.paired([a.of_sums for a, _ in pairs], [b.of_sums for _, b in pairs])
            what = f'held-out, {name} {popularity}'
            results += [
                result(f'{what}: ours - DeepInfer, upper 95 %', paired.upper95, 'balance', goal=bound, places=4, mean=paired.mean,
                       standard_error=paired.standard_error),
                result(f'{what}: ours', mean([a.of_sums for a, _ in pairs]), 'balance', places=4, peer=DEEPINFER,
                       peer_value=mean([b.of_sums for _, b in pairs])),
                result(f'{what}: slots moved', 100 * mean([a.slots_moved_ratio for a, _ in pairs]), '%', goal=10, peer=DEEPINFER,
                       peer_value=100 * mean([b.slots_moved_ratio for _, b in pairs])),
            ]
    return results


def in_window(scale, _peers, say):
    """Fresh plans on their own window, and on a second Poisson draw of the same rates: what of a gain is fit to noise."""
    goals = {100: {4: 0.50, 8: 0.60, 64: 0.80}, 1000: {4: 0.85, 8: 0.82, 64: 0.93}}
    results = []
    for steps, effort, drift, seeds in ((100, 'default', 0.002, 8), (1000, 'quality', 0.0004, 3)):
        for name, (ranks, redundant) in SETTINGS.items():
            planner = experts.Planner(ranks, EXPERTS + redundant, effort=effort, threads=1)
            say(f'in-window {steps} steps, {name}')
            for popularity in POPULARITY:
                def scored(seed):
                    loads, again = (loads_of(ranks, steps, scale.layers(2), popularity, seed, drift, draw) for draw in (0, 1))
                    return [experts.in_window(loads, planner, rule, window_steps=steps, scored=on).of_sums - 1
                            for rule in ('fresh', 'deepinfer') for on in (loads, again)]

                ours, ours_again, theirs, theirs_again = numpy.array(each(scored, scale.seeds(seeds))).T
                what = f'in-window {steps} steps ({effort}), {name} {popularity}'
                results += [
                    result(f'{what}: excess over DeepInfer\'s', ours.mean() / theirs.mean(), 'x', goal=goals[steps][ranks],
                           standard_error=standard_error(ours / theirs)),
                    result(f'{what}: excess', ours.mean(), '', peer=DEEPINFER, peer_value=theirs.mean(), places=4),
                    result(f'{what}: excess on a second draw', ours_again.mean(), '', peer=DEEPINFER, peer_value=theirs_again.mean(),
                           places=4),
                ]
    return results


def one_expert_a_rank(scale, _peers, _say):
    """EP320, as DeepSeek decodes: 256 experts on 320 slots, one a rank; only the copies can be chosen."""
    layers = scale.layers(61)
    results = []
    for popularity in POPULARITY:
        loads = experts.synthetic_loads(100, layers, 256, 8, TOKENS_PER_RANK * 320, seed=100, **POPULARITY[popularity])
        planner = experts.Planner(320, 320)
        ours = planner.balance(planner.plan(loads).physical_to_logical, loads)[:, 0]
        theirs = planner.balance(experts.deepinfer_plan(loads, 320, 320), loads)[:, 0]
        results.append(result(f'EP320, 320 slots, {layers} layers, {popularity}: balance over DeepInfer\'s', ours.mean() / theirs.mean(),
                              'x', goal=1.001, places=4, peer=DEEPINFER, peer_value=1.0, ours=ours.mean(), theirs=theirs.mean()))
    return results


def handbook_loads():
    """The routing of the handbook's simulation (system facts, section 6): totals [256] and the experts of the first 2,000 tokens."""
    routing = experts.evaluation.seed_routing()
    return numpy.bincount(routing.ravel(), minlength=256), routing[:2000]


def seed_table(_scale, _peers, _say):
    totals, first = handbook_loads()
    results = []
    for nodes, ranks, slots, printed, goals in ((4, 32, 288, (2.87, 1.03, 1.09), (1.006, 1.05)),
                                                (8, 64, 320, (3.97, 1.17, 1.79), (1.016, 1.62))):
        judge = experts.Planner(ranks, slots)

        def figures(maps):
            per_rank = experts.Planner(ranks, maps.shape[1])
            return per_rank.balance(maps, totals[None, None])[0, 0], experts.nodes_per_token(maps[0], first, 256, ranks, nodes)

        by_number = experts.Planner(ranks, 256).initial(256)
        published = {'global': experts.deepseek_plan(totals[None], slots, 1, 1, ranks),
                     'hierarchical': experts.deepseek_plan(totals[None], slots, 8, nodes, ranks)}
        own = {'global': experts.rebalance_experts(totals[None], slots, 8, nodes, ranks, scope='global')[0],
               'hierarchical': experts.rebalance_experts(totals[None], slots, 8, nodes, ranks)[0]}
        where = f'seed table, {nodes} nodes, {ranks} GPUs'
        balance, visited = figures(by_number)
        results.append(result(f'{where}: no balancing', balance, 'balance', places=4, peer='printed', peer_value=printed[0],
                              nodes_per_token=visited))
        for scope, goal, paper in zip(('global', 'hierarchical'), goals, printed[1:]):
            theirs, ours = figures(published[scope]), figures(own[scope])
            assert judge.shape(256).slots == own[scope].shape[1]
            results += [
                result(f'{where}: published greedy, {scope}', theirs[0], 'balance', places=4, peer='printed', peer_value=paper),
                result(f'{where}: ours, {scope}', ours[0], 'balance', goal=goal, places=4, peer='published greedy', peer_value=theirs[0]),
                result(f'{where}: ours, {scope}: nodes per token', ours[1], '', peer='published greedy', peer_value=theirs[1]),
            ]
    return results


def hostile_loads():
    """name: loads [steps, layers, experts], slots, ranks; on these the published planners waste slots (docs/policies/experts.md)."""
    hot = numpy.ones((4, 2, 16))
    hot[:, :, 0] = 10**6
    return {'equal loads of 1e6': (numpy.full((2, 1, 16), 10**6), 24, 4), 'one hot expert': (hot, 32, 4),
            'no load': (numpy.zeros((4, 1, 16)), 20, 4), 'counts of 3e9': (numpy.full((2, 1, 16), 3 * 10**9), 24, 4)}


def rules(scale, peers, _say):
    """Second copies of an expert on a rank, and one digest over many plans: the same on every machine and for every thread count."""
    results, digest, same = [], hashlib.sha256(), True
    for name, (ranks, redundant) in SETTINGS.items():
        loads = loads_of(ranks, 100, scale.layers(4), 'lognormal', 100)
        plans = [experts.Planner(ranks, EXPERTS + redundant, threads=threads).plan(loads).physical_to_logical for threads in (1, 2, 3)]
        same &= all((plans[0] == other).all() for other in plans)
        digest.update(plans[0].tobytes())
        wasted = {peer: experts.duplicates(peers.plan(peer, loads, EXPERTS + redundant, ranks)['physical_to_logical'], EXPERTS, ranks)
                  for peer in ('deepinfer', 'vllm', 'sglang_vec') if peers.has(peer)}
        results.append(result(f'second copies on a rank, {name}, {loads.shape[1]} layers', experts.duplicates(plans[0], EXPERTS, ranks),
                              'slots', goal=0, peer='DeepInfer' if wasted else None, peer_value=wasted.get('deepinfer'), peers=wasted))
    for name, (loads, slots, ranks) in hostile_loads().items():
        maps = experts.Planner(ranks, slots).plan(loads).physical_to_logical
        digest.update(maps.tobytes())
        wasted = {peer: experts.duplicates(peers.plan(peer, loads.astype(numpy.float32), slots, ranks)['physical_to_logical'], 16, ranks)
                  for peer in ('deepinfer', 'vllm', 'sglang_vec') if peers.has(peer)}
        results.append(result(f'second copies on a rank, {name}', experts.duplicates(maps, 16, ranks), 'slots', goal=0,
                              peer='DeepInfer' if wasted else None, peer_value=wasted.get('deepinfer'), peers=wasted))
    results.append(result('plans that differ between 1, 2 and 3 threads', 0 if same else 1, '', goal=0))
    results.append(result(f'digest of the plans above: {digest.hexdigest()[:16]}', None, ''))
    return results
