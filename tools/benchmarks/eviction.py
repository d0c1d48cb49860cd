"""Which blocks leave a full store: time of an operation, hit rates and memory on recorded traces (folder: TRIMTAB_DATA)."""
import concurrent.futures
import os
import sys

from benchmarks.report import google_benchmark, pick, result

POLICIES = ('lru', 'fifo', 's3_fifo', 'hit_density')
TRACES = {'mooncake_conversation': 'conversation', 'agentic': 'agentic'}
TOLD = {'at_once_no_answers': 'without the ends of answers',
        'served': 'as a serving pool is told',
        'served_no_answers': 'as a serving pool, without the ends of answers',
        'served_blocks_only': 'as a serving pool, blocks by themselves'}
GOAL_SHARE = 0.4  # of the gap from LRU to the clairvoyant optimum, at 2 and 5 %


def operations():
    _, counters = google_benchmark('policy_eviction_bench', 'operation/', repetitions=3)
    lru = pick(counters, 'operation/lru')
    results = []
    for policy in POLICIES:
        mine = pick(counters, f'operation/{policy}')
        results.append(result(f'stored, used or gone: {policy}', mine['per_operation'] * 1e9, 'ns', peer='lru',
                              peer_value=lru['per_operation'] * 1e9))
    return results


def hit_rates():
    # A replay is the same however busy the machine is: two at once, each about half of the minute and a half.
    counters = {}
    with concurrent.futures.ThreadPoolExecutor(2) as both:
        for _, half in both.map(lambda names: google_benchmark('policy_eviction_bench', f'hit_rate/.*/({names})/', repetitions=1),
                                ('lru|hit_density', 's3_fifo|clairvoyant')):
            counters.update(half)
    results = []
    for trace, title in TRACES.items():
        for percent in (2, 5, 10):
            rate = {policy: pick(counters, f'hit_rate/{trace}/{policy}/percent/{percent}/')['hit_rate']
                    for policy in ('lru', 's3_fifo', 'hit_density', 'clairvoyant')}
            if percent == 2:
                results += [result(f'{title}, room for 2 %: memory a block, {policy}',
                                   pick(counters, f'hit_rate/{trace}/{policy}/percent/2/')['bytes_per_block'], 'bytes')
                            for policy in ('lru', 's3_fifo', 'hit_density')]
            gap = rate['clairvoyant'] - rate['lru']
            for policy in ('lru', 's3_fifo', 'hit_density', 'clairvoyant'):
                mine = policy == 'hit_density'
                goal = None if not mine else rate['lru'] + (GOAL_SHARE * gap if percent < 10 else 0)
                more = {'gap_closed': (rate[policy] - rate['lru']) / gap} if mine and gap > 0 else {}
                results.append(result(f'{title}, room for {percent} %: {policy}', rate[policy], 'of blocks hit', goal=goal,
                                      lower_is_better=False, peer=None if policy == 'lru' else 'lru', peer_value=rate['lru'], places=3,
                                      **more))
    return results


def told():
    """What knowing is worth: the conversation trace, with less told (the agentic one takes ten minutes more)."""
    _, counters = google_benchmark('policy_eviction_bench', 'told/mooncake_conversation/', repetitions=1)
    results = []
    for how, title in TOLD.items():
        for percent in (2, 5, 10):
            rate = {policy: pick(counters, f'told/mooncake_conversation/{of}/{policy}/percent/{percent}/')['hit_rate']
                    for policy, of in (('lru', 'served'), ('hit_density', how))}
            served = how != 'at_once_no_answers'
            results.append(result(f'conversation, room for {percent} %: {title}', rate['hit_density'], 'of blocks hit',
                                  goal=rate['lru'] if served else None, lower_is_better=False,
                                  peer='lru, served' if served else None, peer_value=rate['lru'] if served else None, places=3))
    return results


def run(_arguments):
    results = operations()
    if os.environ.get('TRIMTAB_DATA'):
        return results + hit_rates() + told()
    print('without hit rates: TRIMTAB_DATA names no folder with traces/mooncake_conversation.jsonl and agentic.jsonl', file=sys.stderr)
    return results
