"""What users of such systems report, against the running system: bursts, cancels, hung workers, overload, odd clients."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import socket
import time

import pytest

from conftest import leave_early, start_gateway, status, stop_gateway
from served import MODEL, NAME, Served, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

APIS = {
    '/v1/chat/completions': lambda text, **more: {'model': NAME, 'messages': [{'role': 'user', 'content': text}], 'max_tokens': 16, **more},
    '/v1/messages': lambda text, **more: {'model': NAME, 'messages': [{'role': 'user', 'content': text}], 'max_tokens': 16, **more},
}


def send(port, path, body, timeout=120):
    """Status, headers and text of one request."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=timeout)
    with contextlib.closing(connection):
        connection.request('POST', path, json.dumps(body), {'content-type': 'application/json'})
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


@pytest.fixture(scope='module')
def narrow(tmp_path_factory):
    """One decode rank that runs four requests, one prefill rank."""
    directory = tmp_path_factory.mktemp('narrow')
    overrides = {'prefill': {'engines': 1, 'ranks': 1}, 'decode': {'groups': 1, 'ranks': 1, 'max_running': 4}}
    with Served(directory, directory / 'state', overrides) as served:
        yield served


def test_a_burst_wider_than_decode_waits_in_the_queue(narrow):
    """32 at once where 4 can run: none is held inside an engine meanwhile, and every one is answered."""
    seen = []
    with concurrent.futures.ThreadPoolExecutor(32) as pool:
        answers = [pool.submit(send, narrow.port, '/v1/chat/completions',
                               APIS['/v1/chat/completions'](f'Number {n}: tell me a story.', temperature=0)) for n in range(32)]
        while not all(answer.done() for answer in answers):
            seen.append(narrow.status()['requests'])
            time.sleep(0.05)
    assert all(answer.result()[0] == 200 for answer in answers)
    assert max(requests['decoding'] for requests in seen) <= 4
    # One is in the making while a place is in sight; the others must not take prefill memory.
    assert max(requests['prefilling'] for requests in seen) <= 6, seen
    assert max(requests['queued'] for requests in seen) >= 16, seen
    narrow.wait_idle()


def test_status_shows_the_cluster(narrow):
    """`trimtab status` names every engine with its ranks, from the running gateway."""
    shown = narrow.command('status')
    for word in ('prefill', 'decode', 'vision', 'queue'):
        assert word in shown, shown


def test_cancelled_long_prefills_do_not_delay_a_short_request(narrow):
    """Ten prompts of some 1,500 tokens whose clients leave: the short one behind them does not pay for them."""
    long = 'Tell me about the history of the sea, one age after another. ' * 110

    def steps():
        narrow.wait_idle()
        return narrow.ranks('prefill')[0]['steps']

    def leave(number):
        with contextlib.suppress(OSError):
            send(narrow.port, '/v1/chat/completions', APIS['/v1/chat/completions'](f'{number}: {long}'), timeout=0.5)

    before = steps()
    send(narrow.port, '/v1/chat/completions', APIS['/v1/chat/completions']('one: ' + long, max_tokens=1))
    one_long = steps() - before
    assert one_long >= 2, 'a prompt of one step is over before it is cancelled'
    with concurrent.futures.ThreadPoolExecutor(10) as pool:
        list(pool.map(leave, range(10)))
    status, _, _ = send(narrow.port, '/v1/chat/completions', APIS['/v1/chat/completions']('Hi.', max_tokens=1))
    assert status == 200
    # Begun before they left, perhaps one or two; and the short one.
    assert steps() - before - one_long < 4 * one_long, 'it waited behind requests that nobody wants any more'


def test_a_hung_worker_holds_up_only_what_it_has(tmp_path):
    """A prefill rank stops without dying, amid what it does: its requests are redone elsewhere, the others never notice. Nor does the
    KV that it still writes when it goes on end up in anybody's answer: what it had been given is not another's meanwhile."""
    overrides = {'prefill': {'engines': 2, 'ranks': 1, 'lease_ms': 6000, 'step_budget_ms': 100}, 'decode': {'groups': 1, 'ranks': 1},
                 'gateway': {'queue_quota_limit_ms': 600_000}}
    texts = [f'{n}: ' + 'Tell me about the history of the sea. ' * (10 + n) for n in range(6)]

    def answer(text):
        status, _, body = send(served.port, '/v1/messages', APIS['/v1/messages'](text, temperature=0, max_tokens=30))
        return status, json.loads(body).get('content') or body

    with Served(tmp_path, tmp_path / 'state', overrides) as served, concurrent.futures.ThreadPoolExecutor(8) as pool:
        calm = list(pool.map(answer, texts))
        assert [status for status, _ in calm] == [200] * 6, calm
        hung = served.ranks('prefill')[0]['pid']
        early = [pool.submit(answer, text) for text in texts]
        time.sleep(0.1)
        os.kill(hung, signal.SIGSTOP)
        try:
            assert [one.result() for one in early] == calm
            late = [pool.submit(answer, text) for text in texts]
            time.sleep(0.3)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(hung, signal.SIGCONT)
        assert [one.result() for one in late] == calm
        served.wait_idle()


def test_names_that_clients_choose_mean_nothing_inside(gateway):
    """Two requests that claim the same room, request id and seed at once are two requests."""
    claims = {'bootstrap_room': 7, 'bootstrap_host': 'other', 'bootstrap_port': 1, 'rid': 'mine', 'request_id': 'mine'}
    body = APIS['/v1/chat/completions']('hello', **claims)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: send(gateway.port, '/v1/chat/completions', body), range(8)))
    assert [status for status, _, _ in answers] == [200] * 8
    assert len({json.loads(text)['id'] for _, _, text in answers}) == 8


@pytest.mark.parametrize('path', APIS)
def test_a_client_that_leaves_a_whole_answer_is_noticed(slow_gateway, path):
    """Not streamed, so that nothing is written that could fail: the engine is freed long before its end."""
    def leave():
        with pytest.raises(OSError):
            send(slow_gateway.port, path, APIS[path]('word ' * 2000, max_tokens=3000), timeout=0.4)
    leave_early(slow_gateway, leave)


@pytest.mark.parametrize('path, kind', [('/v1/chat/completions', 'rate_limit_exceeded'), ('/v1/messages', 'rate_limit_error')])
def test_overload_is_said_before_the_body_is_read(tmp_path, path, kind):
    """The limit is reached: 429 with Retry-After and a code of its own after the head, while 30 MB are still to come."""
    config = tmp_path / 'one.toml'
    config.write_text('[gateway]\nrequests_in_flight_max = 1\n')
    gateway = start_gateway(tmp_path, '--fake-first-token-ms', '300000', config=config)
    try:
        body = json.dumps(APIS['/v1/chat/completions']('x')).encode()
        with socket.create_connection(('127.0.0.1', gateway.port), timeout=60) as busy:
            busy.sendall(b'POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n' % len(body) + body)
            until(lambda: status(gateway)['running'] == 1, 'the first request never came')
            with socket.create_connection(('127.0.0.1', gateway.port), timeout=60) as shed:
                shed.sendall(f'POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 30000000\r\n\r\n'.encode())
                answer = http.client.HTTPResponse(shed)
                answer.begin()
                error = json.loads(answer.read())['error']
        assert answer.status == 429 and answer.getheader('retry-after')
        assert kind in (error.get('code'), error['type'])
    finally:
        stop_gateway(gateway)


@pytest.mark.parametrize('path', APIS)
def test_every_event_is_whole_characters(gateway, path):
    """Each event by itself is valid UTF-8 and JSON, whatever tokens its characters were made of."""
    text = '你好🌍 naïve 👩‍👩‍👧 “end”'
    status, _, stream = send(gateway.port, path, APIS[path](text, max_tokens=200, stream=True))
    assert status == 200 and '\ufffd' not in stream
    data = [json.loads(line[6:]) for line in stream.splitlines() if line.startswith('data: {')]
    if path == '/v1/messages':
        pieces = [event['delta']['text'] for event in data if event['type'] == 'content_block_delta']
    else:
        pieces = [event['choices'][0]['delta'].get('content') or '' for event in data if event['choices']]
    assert ''.join(pieces) == text
