"""CPU of the gateway's thread with an engine that costs nothing: 64-character prompt, 16-token reply, 64 kept connections."""
from benchmarks.report import google_benchmark, pick, result


def run(_arguments):
    times, _ = google_benchmark('gateway_bench')
    names = (('BM_gateway_request_openai/', 'gateway CPU per request, OpenAI'),
             ('BM_gateway_request_openai_stream', 'gateway CPU per request, OpenAI streamed'),
             ('BM_gateway_request_anthropic/', 'gateway CPU per request, Anthropic'),
             ('BM_gateway_request_anthropic_stream', 'gateway CPU per request, Anthropic streamed'),
             ('BM_gateway_token_openai', 'gateway CPU per streamed token, OpenAI'),
             ('BM_gateway_token_anthropic', 'gateway CPU per streamed token, Anthropic'),
             ('BM_gateway_tokenize', 'of a request: tokenizing its prompt'),
             ('BM_gateway_hash_1024_tokens', 'block keys of 1,024 tokens'))
    return [result(label, pick(times, name) / 1e3, 'us') for name, label in names]
