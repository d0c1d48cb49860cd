"""Tokens per second of the reference engine on one thread, beside llama.cpp when its Python package is installed, and beside memory."""
import importlib.util
import os
import time

from benchmarks.report import google_benchmark, pick, result

# llama.cpp on the development machine, Q4_1 as shipped, one thread: the goal is half of it.
PREFILL_GOAL, DECODE_GOAL = 42, 24


def llama_cpp_rates(model):
    """(prefill, decode) tokens per second of llama.cpp on one thread in this run, or (None, None) when it is not installed."""
    if importlib.util.find_spec('llama_cpp') is None:
        return None, None
    import llama_cpp
    llama = llama_cpp.Llama(model, n_ctx=1024, n_threads=1, n_threads_batch=1, n_batch=512, verbose=False)
    tokens = [1] + [(7 * i) % 40_000 + 20 for i in range(511)]
    started = time.thread_time()
    llama.eval(tokens)
    prefill = len(tokens) / (time.thread_time() - started)
    started = time.thread_time()
    for token in tokens[:32]:
        llama.eval([token])
    return prefill, 32 / (time.thread_time() - started)


def run(_arguments):
    times, _ = google_benchmark('engine_bench', 'prefill/(128|512)$|decode/(1|8)$', repetitions=3)
    prefill_peer, decode_peer = llama_cpp_rates(os.environ.get('TRIMTAB_MODEL', ''))
    results = []
    for tokens in (128, 512):
        results.append(result(f'prefill of {tokens:,} tokens', tokens / pick(times, f'prefill/{tokens}') * 1e9, 'tokens/s',
                              goal=PREFILL_GOAL, lower_is_better=False, peer='llama.cpp' if prefill_peer and tokens == 512 else None,
                              peer_value=prefill_peer if tokens == 512 else None))
    for sequences in (1, 8):
        results.append(result(f'decode, {sequences} at a time', sequences / pick(times, f'decode/{sequences}') * 1e9, 'tokens/s',
                              goal=DECODE_GOAL, lower_is_better=False, peer='llama.cpp' if decode_peer and sequences == 1 else None,
                              peer_value=decode_peer if sequences == 1 else None))
    return results
