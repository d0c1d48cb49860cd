"""The KV system: block keys, the embedded pool, the striped pool beside memcpy and Mooncake, and a fleet of processes over TCP."""
import json
import subprocess
import sys

from benchmarks.kv_fleet_figures import fleet_results
from benchmarks.kv_mooncake import NAME, measure
from benchmarks.peers import Unavailable
from benchmarks.report import ROOT, google_benchmark, pick, result

SIZES = (114_048, 455_680)
SHARDS = (23_040, 45_568)


def keys_and_pool():
    keys, _ = google_benchmark('kv_bench', 'hash_chain|raw_sha256|prefix_match')
    pool, hits = google_benchmark('kv_pool_bench')
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
    for of, loader in (('fetch_from_store/', 'a running loader'), ('fetch_from_store_anew/', 'a new one')):
        hit = pick(hits, of)
        results.append(result(f'64K hit from the store, {loader}: its first layer, of the time of all', hit['first_layer_at'], '', goal=0.3,
                              note=f'{hit["ms"]:.0f} ms in all'))
    return results


def striped(quick):
    """512 blocks in one batch over twelve targets in memory, beside a memcpy of the same bytes, and beside Mooncake's client."""
    try:
        peer = measure(SIZES)
    except Unavailable as why:
        print(f'kv: no figures of Mooncake: {why}', file=sys.stderr)
        peer = {}
    times, counters = google_benchmark('kv_store_bench', repetitions=2 if quick else 5)
    results = []
    for size in SIZES:
        theirs = peer.get(size)
        ratio = theirs and theirs['get_s'] / theirs['memcpy_s']
        results += [
            result(f'get of 512 x {size:,} B over memcpy', pick(counters, f'get_512/healthy/{size}')['over_memcpy'], 'x', goal=1.5,
                   peer=NAME if theirs else None, peer_value=ratio),
            result(f'the same with two targets dead, {size:,} B', pick(counters, f'get_512/two_dead/{size}')['over_memcpy'], 'x', goal=2.2)]
        single = pick(counters, f'single_get_under_load/{size}')
        results.append(result(f'single get under load, {size:,} B, p99 over p50', single['p99_over_p50'], 'x', goal=5,
                              peer=f'{NAME}, unloaded' if theirs else None,
                              peer_value=theirs and theirs['get_p99_us'] / theirs['get_p50_us']))
    for how, name in (('direct', 'O_DIRECT'), ('page_cache', 'page cache')):
        # Where temporary files go may have no O_DIRECT: then there is no such figure.
        figures = next((of for bench, of in counters.items() if bench.startswith(f'get_512_from_directories/{how}')), {})
        if 'over_pread' in figures:
            results.append(result(f'get of 512 x {SIZES[0]:,} B from twelve directories over pread, {name}', figures['over_pread'], 'x'))
    theirs = peer.get(SIZES[0])
    results.append(result('exists of 512 keys among 100,000', pick(times, 'exists_512/100000') / 1e6, 'ms', goal=0.1,
                          peer=NAME if theirs else None, peer_value=theirs and theirs['exists_s'] * 1e3))
    return results


def coding(quick):
    times, _ = google_benchmark('kv_code_bench', repetitions=2 if quick else 5)
    results = []
    for shard in SHARDS:
        copy = pick(times, f'copy/{shard}')
        for of, name in (('encode', 'encode'), ('decode/two_lost', 'decode with two lost')):
            results.append(result(f'{name}, shards of {shard:,} B, over memcpy speed', copy / pick(times, f'{of}/{shard}'), 'x', goal=1.8,
                                  lower_is_better=False))
    return results


def rebuild_balance():
    """Reads of the survivors when a node dies, most over mean, by `trimtab pool layout`."""
    nodes = {13: 1.0, 25: 1.0, 61: 1.0, 133: 1.0, 20: 1.02, 64: 1.02, 100: 1.02, 200: 1.02}
    rows = json.loads(subprocess.run([ROOT / 'build/release/bin/trimtab', 'pool', 'layout', '--json', '--nodes', *map(str, nodes)],
                                     check=True, capture_output=True, text=True).stdout)
    return [result(f'rebuild, {row["nodes"]} nodes: most read over mean', row['rebuild_reads_max_over_mean'], 'x', goal=nodes[row['nodes']],
                   places=3) for row in rows]


def run(arguments):
    quick = bool(getattr(arguments, 'quick', False))
    return keys_and_pool() + striped(quick) + coding(quick) + rebuild_balance() + fleet_results(quick)
