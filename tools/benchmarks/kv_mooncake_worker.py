"""Runs in the virtual environment that has Mooncake: starts its master, puts 512 objects of each size, gets them in one batch. Prints JSON."""
import ctypes
import json
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import time

import numpy

COUNT, REPEATS = 512, 15


def free_ports(count):
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(('127.0.0.1', 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def clocked(work):
    """Seconds by the clock, processor seconds of all threads of this process, the answer."""
    begun, used = time.perf_counter(), time.process_time()
    answer = work()
    return time.perf_counter() - begun, time.process_time() - used, answer


def quantiles(seconds):
    ordered = sorted(seconds)
    return ordered[len(ordered) // 2] * 1e6, ordered[len(ordered) * 99 // 100] * 1e6


def measure(store, size):
    source = numpy.random.default_rng(1).integers(0, 256, (COUNT, size), dtype=numpy.uint8)
    target = numpy.zeros_like(source)
    for buffer in (source, target):
        if store.register_buffer(buffer.ctypes.data, buffer.nbytes) != 0:
            sys.exit('register_buffer failed')
    keys = [f'{size}-{i}' for i in range(COUNT)]
    sizes = [size] * COUNT
    if set(store.batch_put_from(keys, [source.ctypes.data + i * size for i in range(COUNT)], sizes)) != {0}:
        sys.exit('batch_put_from failed')
    order = list(range(COUNT))
    random.Random(7).shuffle(order)
    to = [target.ctypes.data + i * size for i in order]
    shuffled = [keys[i] for i in order]
    gets, copies, exists = [], [], []
    for _ in range(REPEATS):
        _, seconds, got = clocked(lambda: store.batch_get_into(shuffled, to, sizes))
        if set(got) != {size}:
            sys.exit('batch_get_into failed')
        gets.append(seconds)
        seconds, _, there = clocked(lambda: store.batch_is_exist(shuffled))
        if set(there) != {1}:
            sys.exit('batch_is_exist failed')
        exists.append(seconds)

        def copy():
            for i in order:
                ctypes.memmove(target.ctypes.data + i * size, source.ctypes.data + i * size, size)
        copies.append(clocked(copy)[1])
    if not (source == target).all():
        sys.exit('wrong bytes')
    singles = [clocked(lambda: store.get_into(keys[i], target.ctypes.data, size))[0] for i in (order * 4)[:1500]]
    p50, p99 = quantiles(singles)
    for buffer in (source, target):
        store.unregister_buffer(buffer.ctypes.data)
    return {'get_s': statistics.median(gets), 'memcpy_s': statistics.median(copies), 'exists_s': min(exists),
            'get_p50_us': p50, 'get_p99_us': p99}


def main():
    rpc, http, metrics, own = free_ports(4)
    # Beside this interpreter, not where its link leads to.
    program = pathlib.Path(sys.executable).parent / 'mooncake_master'
    master = subprocess.Popen([program, f'--port={rpc}', '--enable_http_metadata_server=true',
                               f'--http_metadata_server_port={http}', f'--metrics_port={metrics}'],
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(3)
        from mooncake.store import MooncakeDistributedStore
        store = MooncakeDistributedStore()
        if store.setup(f'127.0.0.1:{own}', f'http://127.0.0.1:{http}/metadata', 1 << 30, 64 << 20, 'tcp', '', f'127.0.0.1:{rpc}') != 0:
            sys.exit('its client could not be set up')
        print(json.dumps({size: measure(store, size) for size in json.loads(sys.argv[1])}), flush=True)
        store.close()
    finally:
        master.terminate()
        master.wait()


main()
