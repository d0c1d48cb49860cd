"""Mooncake's store beside ours: the package for machines without CUDA, from PyPI, in a virtual environment of its own under build/peers.

One machine, its real client with a memory segment, its master, TCP on loopback. The client finds that the segment is its own process's
and copies from it: what is measured is the lookup at the master and a copy, the best case of it.
"""
import json
import pathlib
import subprocess
import sys
import venv

from benchmarks.peers import CACHE, Unavailable

VERSION = '0.3.13.post1'
NAME = 'mooncake-transfer-engine-non-cuda'


def _interpreter(say):
    root = CACHE / f'mooncake-{VERSION}'
    if not (root / '.complete').exists():
        say(f'peers: installing {NAME} {VERSION} from PyPI')
        venv.create(root, with_pip=True, clear=True)
        done = subprocess.run([root / 'bin/python', '-m', 'pip', 'install', '--quiet', f'{NAME}=={VERSION}', 'numpy'],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise Unavailable(f'{NAME} {VERSION}: pip could not install it ({(done.stderr.strip().splitlines() or ["no message"])[-1]})')
        (root / '.complete').touch()
    return root / 'bin/python'


def measure(sizes, say=lambda line: print(line, file=sys.stderr)):
    """{size: {get_s, memcpy_s, exists_s, get_p50_us, get_p99_us}}: gets and copies in processor time of its client (medians), exists by the
    clock, since it waits for the master (the least). Raises Unavailable."""
    python = _interpreter(say)
    worker = pathlib.Path(__file__).with_name('kv_mooncake_worker.py')
    try:
        done = subprocess.run([python, worker, json.dumps(list(sizes))], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        raise Unavailable(f'{NAME} {VERSION}: no answer within 300 s') from None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{')]
    if done.returncode != 0 or not lines:
        raise Unavailable(f'{NAME} {VERSION}: {(done.stderr.strip().splitlines() or ["no message"])[-1]}')
    return {int(size): figures for size, figures in json.loads(lines[-1]).items()}
