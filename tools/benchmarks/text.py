"""The tokenizer beside the PyPI tokenizers wheel on the same text."""
import importlib.util
import os
import pathlib
import sys
import time

from benchmarks.report import ROOT, google_benchmark, pick, result


def peer_rate(text):
    """Bytes per CPU-second of the tokenizers wheel with this model's vocabulary; None when it is not installed."""
    if importlib.util.find_spec('tokenizers') is None or not os.environ.get('TRIMTAB_MODEL'):
        return None
    sys.path.insert(0, str(ROOT / 'tests/python'))
    from test_tokenizer import hugging_face_tokenizer
    os.environ['TOKENIZERS_PARALLELISM'] = 'false'
    peer = hugging_face_tokenizer(os.environ['TRIMTAB_MODEL'])
    peer.encode(text)
    started = time.process_time()
    for _ in range(5):
        peer.encode(text)
    return 5 * len(text.encode()) / (time.process_time() - started)


def run(_arguments):
    times, counters = google_benchmark('text_bench')
    prose = (pathlib.Path(ROOT) / 'ARCHITECTURE.md').read_text() * 20
    rates = {name: value.get('bytes_per_second') for name, value in counters.items()}
    peer = peer_rate(prose)
    results = []
    for name in ('encode_prose', 'encode_code'):
        results.append(result(name.replace('_', ' '), pick(rates, name) / 1e6, 'MB/s', lower_is_better=False,
                              peer='PyPI tokenizers, prose' if peer else None, peer_value=peer / 1e6 if peer else None))
    results.append(result('detokenize one token', pick(times, 'detokenize_one_token'), 'ns'))
    results.append(result('one word of 1,000,000 characters', pick(times, 'encode_one_long_word/1000000') / 1e6, 'ms'))
    return results
