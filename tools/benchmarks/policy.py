"""The decisions' cost: CPU time of one decision at production sizes."""
from benchmarks import gateway
from benchmarks.report import google_benchmark, pick, result


def run(arguments):
    prefill, _ = google_benchmark('policy_prefill_bench', 'prefill_enqueue', arguments.trace)
    decode, _ = google_benchmark('policy_decode_bench', 'decode_choice', arguments.trace)
    cost, _ = google_benchmark('policy_cost_bench', 'chunk_solve')
    keys, _ = google_benchmark('kv_bench', '(hash_chain|raw_sha256)/tokens:65536')
    chain, raw = pick(keys, 'hash_chain/tokens:65536') / 1e6, pick(keys, 'raw_sha256/tokens:65536') / 1e6

    results = [
        result('prefill enqueue + pull, 1,152 GPUs, 100,000 queued', pick(prefill, 'prefill_enqueue_pull/') / 1e3, 'us', goal=1),
        result('the same, earliest deadline first', pick(prefill, 'prefill_enqueue_pull_edf/') / 1e3, 'us'),
        result('chunk solve, quadratic', pick(cost, 'chunk_solve_quadratic'), 'ns', goal=50),
        result('chunk solve, exact V4.1', pick(cost, 'chunk_solve_v41') / 1e3, 'us', goal=1),
        result('hash chain of 65,536 tokens', chain, 'ms', goal=1, peer='raw SHA-256 of the same bytes', peer_value=raw),
    ]
    scan = {ranks: pick(decode, f'decode_choice/policy:total_requests/ranks:{ranks}') for ranks in (320, 4096)}
    for ranks, goal in ((4096, 1000), (320, 200)):
        for policy in ('waterline_hazard', 'waterline', 'dualpath'):
            value = pick(decode, f'decode_choice/policy:{policy}/ranks:{ranks}')
            results.append(result(f'decode choice, {policy}, {ranks:,} ranks', value, 'ns', goal=goal,
                                  peer='least requests, one dimension', peer_value=scan[ranks]))
    return results + gateway.run(arguments)
