"""The tokenizer beside the PyPI tokenizers wheel on the same text."""
import importlib.util
import os
import pathlib
import time

from benchmarks.report import ROOT, google_benchmark, pick, result


def peer_rate(text):
    """Bytes per CPU-second of the tokenizers wheel with this model's vocabulary; None when it or gguf is not installed."""
    model = os.environ.get('TRIMTAB_MODEL')
    if not model or any(importlib.util.find_spec(name) is None for name in ('tokenizers', 'gguf')):
        return None
    import gguf
    import tokenizers
    fields = gguf.GGUFReader(model).fields
    tokens, merges = (fields[f'tokenizer.ggml.{name}'].contents() for name in ('tokens', 'merges'))
    peer = tokenizers.Tokenizer(tokenizers.models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m.split(' ')) for m in merges]))
    peer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Digits(individual_digits=True),
                                                             tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
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
