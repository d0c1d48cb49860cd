"""Reads a request's journey from a running gateway."""
import json
import urllib.request

# Moments that a person wants to see first; the whole list is in `trimtab explain ID`.
SHOWN = ('admission', 'match', 'queue', 'lease', 'vision', 'encoded', 'chunk', 'decode', 'prefill_done', 'decode_start', 'requeue',
         'finished', 'failed')


def request_record(url, request):
    """The JSON of GET /debug/requests/ID as a dict: summary, events, tokens, checksums, images (docs/api.md)."""
    with urllib.request.urlopen(f'{url}/debug/requests/{request}', timeout=10) as answer:
        return json.load(answer)


def explain_text(url, request):
    """The decisions of a request, one line each, times in ms since it came."""
    record = request_record(url, request)
    return '\n'.join(f"{event['at_ms']:>9.1f} ms  {event['kind']:<12} {event['text']}" for event in record['events']
                     if event['kind'] in SHOWN)
