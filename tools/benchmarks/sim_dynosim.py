"""DynoSim, the simulator of ai-dynamo 1.6.1: its replay of a Mooncake trace, for the CPU time that it takes."""
import json
import os
import subprocess
import sys

from benchmarks.report import ROOT

VERSION = '1.6.1'
LIMIT_S = 120  # of waiting for one replay of 12,031 requests, which is 10 s of CPU: beyond that the machine is too busy to compare

# The same trace, as many engines, blocks of the trace's own size.
_PROGRAM = '''
import json, sys, time
from dynamo.mocker.config import normalize_mocker_config
from dynamo.replay import run_trace_replay
def engine(kind):
    return normalize_mocker_config(json.dumps({'engine': dict(num_gpu_blocks=20000, block_size=512, worker_type=kind, max_num_seqs=256,
                                              max_num_batched_tokens=8192, enable_prefix_caching=True, backend='vllm')}))
started = time.process_time()
report = run_trace_replay(sys.argv[1], prefill_engine_args=engine('prefill'), decode_engine_args=engine('decode'), num_prefill_workers=16,
                          num_decode_workers=16, router_mode=sys.argv[2], trace_block_size=512, capture_planner_details=False)
print(json.dumps([report.summary['completed_requests'], time.process_time() - started]))
'''

MODELLED = '''What each side models in this comparison:
                      trimtab                                              DynoSim 1.6.1
  decisions           the cluster machine, queues and policies that serve  its own router, in Rust (kv_router, round_robin)
  prefill engine      chunks by quota, votes and their MIN, cost a chunk   chunks of at most 8,192 tokens, time a pass
  decode engine       every step (exact), closed form between changes      every step
                      (fast); KV, preemption, batches padded
  prefix hits         one pool by the trace's ids, reads and their time    a cache of 20,000 blocks in each engine, LRU
  hand-over           the last chunk's KV over a network                   transfer of KV between the engines
  admission           limits, predicted TTFT                               waiting queue of the engine
  faults, images,     yes, unused here                                     no
  experts, drafts'''


def _fetch(folder, say):
    say(f'peers: fetching ai-dynamo {VERSION} from PyPI')
    subprocess.run([sys.executable, '-m', 'venv', folder], check=True, capture_output=True)
    pip = [folder / 'bin/python', '-m', 'pip', 'install', '--quiet']
    subprocess.run([*pip, '--no-deps', f'ai-dynamo-runtime=={VERSION}', f'ai-dynamo=={VERSION}'], check=True, capture_output=True)
    subprocess.run([*pip, 'pydantic<=2.13.5', 'msgspec', 'uvloop', 'pyyaml', 'packaging', 'prometheus_client', 'zstandard'], check=True,
                   capture_output=True)
    (folder / '.complete').touch()


def replay(trace, router, say):
    """Completed requests per CPU-second, or None after saying why."""
    folder = ROOT / 'build/peers/dynosim'
    try:
        if not (folder / '.complete').exists():
            _fetch(folder, say)
        out = subprocess.run([folder / 'bin/python', '-c', _PROGRAM, trace, router], check=True, capture_output=True, text=True,
                             timeout=LIMIT_S, env=os.environ | {'DYN_LOG': 'error'}).stdout
    except (subprocess.SubprocessError, OSError) as error:
        say(f'peers: DynoSim, {router}, {trace}: {error}')
        return None
    completed, seconds = json.loads(out.strip().splitlines()[-1])
    return completed / seconds
