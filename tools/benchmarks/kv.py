"""Block keys, prefix matches, and the pool beside copying and checksumming the same bytes."""
from benchmarks.report import google_benchmark, pick, result


def run(_arguments):
    keys, _ = google_benchmark('kv_bench')
    pool, _ = google_benchmark('kv_pool_bench')
    raw = pick(keys, 'raw_sha256/tokens:65536') / 1e6
    results = [
        result('hash chain of 65,536 tokens', pick(keys, 'hash_chain/tokens:65536') / 1e6, 'ms', goal=1,
               peer='raw SHA-256 of the same bytes', peer_value=raw),
        result('prefix match among 1,048,576 entries', pick(keys, 'prefix_match/entries:1048576') / 1e3, 'us'),
        result('pool match of 64 keys, another process', pick(pool, 'match/keys:64'), 'ns'),
    ]
    for bytes_ in (114_048, 5_898_240):
        limit = pick(pool, f'memcpy_and_checksum/bytes:{bytes_}') / 1e3
        for verb in ('get', 'put'):
            results.append(result(f'pool {verb}, {bytes_:,} B block', pick(pool, f'{verb}/bytes:{bytes_}') / 1e3, 'us',
                                  peer='memcpy + XXH3', peer_value=limit))
    return results
