"""Ranks that die, clients that vanish: requests are redone, the others go on, nothing is left behind."""
import concurrent.futures
import contextlib
import http.client
import json
import os
import signal
import time

import pytest

from served import MODEL, NAME, Served, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

LONG = 'Tell me about the history of the sea, one age after another. ' * 60


@pytest.fixture(scope='module')
def system(tmp_path_factory):
    directory = tmp_path_factory.mktemp('failures')
    with Served(directory, directory / 'state', {'prefill': {'engines': 2, 'ranks': 2}, 'decode': {'groups': 2, 'ranks': 2}}) as served:
        yield served


def complete(system, prompt, tokens=24, on_first=None):
    """Streams one greedy completion; returns its text."""
    pieces = []
    stream = system.openai().chat.completions.create(model=NAME, messages=[{'role': 'user', 'content': prompt}], max_tokens=tokens,
                                                     temperature=0, stream=True)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
            if on_first and len(pieces) == 3:
                on_first()
    return ''.join(pieces)


@pytest.mark.parametrize('role', ['prefill', 'decode'])
def test_a_killed_rank_costs_time_and_nothing_else(system, role):
    """The request on the dead rank is redone with the same text; one running elsewhere at the same time never notices."""
    prompt, tokens = f'{role}: {LONG}', 100 if role == 'decode' else 24  # the kill must come before the last one
    expected = complete(system, prompt, tokens)
    fresh = prompt.replace('history', 'story')  # not in the pool: prefill has work to be killed in
    other = concurrent.futures.ThreadPoolExecutor(2)
    bystander = other.submit(complete, system, 'Count from one to twenty.', 40)
    if role == 'decode':
        again = other.submit(complete, system, prompt, tokens, lambda: kill_busy(system, 'decode'))
    else:
        again = other.submit(complete, system, fresh)
        time.sleep(0.3)
        kill_busy(system, 'prefill')
    text = again.result(300)
    assert bystander.result(300)
    system.wait_ready()
    if role == 'decode':
        assert text == expected
    else:
        assert text == complete(system, fresh)
    system.wait_idle()


def kill_busy(system, role):
    """Kills a rank that holds a request, so that something is lost with it."""
    def busy():
        return next((rank['pid'] for rank in system.ranks(role) if rank['connected'] and rank['requests'] > 0), None)
    os.kill(until(busy, f'no {role} rank ever held the request'), signal.SIGKILL)


@pytest.mark.parametrize('role', ['prefill', 'decode'])
def test_a_rank_that_stands_still_is_ended_and_its_work_redone(system, role):
    """It keeps its sockets open and says nothing: its clients must not wait for their whole timeout."""
    system.wait_idle()
    prompt = f'{role} stands still. {LONG}'
    index = 0 if role == 'prefill' else 1
    pid = system.ranks(role)[index]['pid']
    os.kill(pid, signal.SIGSTOP)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        texts = set(pool.map(lambda _: complete(system, prompt), range(4)))  # all of them: it never goes on
    system.wait_ready()
    assert texts == {complete(system, prompt)}
    until(lambda: pid not in {rank['pid'] for rank in system.ranks(role)}, 'it was never ended')
    system.wait_idle()


def test_two_hundred_vanishing_clients_leave_nothing(system):
    """Clients that leave at every stage: before the first byte, in the queue, while prefilling, after some tokens."""

    def vanish(number):
        body = json.dumps({'model': NAME, 'messages': [{'role': 'user', 'content': f'{number} ' + LONG[:40 * (number % 30)]}],
                           'max_tokens': 64, 'temperature': 0, 'stream': True})
        connection = http.client.HTTPConnection('127.0.0.1', system.port, timeout=(0.002, 0.02, 0.1, 0.4, 1.0)[number % 5])
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request('POST', '/v1/chat/completions', body, {'content-type': 'application/json'})
            answer = connection.getresponse()
            for _ in range(2 * (number % 7)):
                answer.readline()

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(vanish, range(200)))
    status = system.wait_idle()
    assert status['requests']['in_flight'] == 0
    assert complete(system, 'Say hello.', 8)


def test_a_full_decode_rank_preempts_and_resumes(tmp_path):
    """Thirteen requests reserve every block of the rank and then grow: some must yield, and no answer changes by it."""
    prompts = [LONG[:1700] + f' Tell me {topic}.' for topic in ('about storms', 'about harbours', 'about whales')]
    overrides = {'decode': {'groups': 1, 'ranks': 1, 'kv_blocks': 65, 'headroom_tokens': 127, 'max_running': 16}}
    with Served(tmp_path, tmp_path / 'state', overrides) as served:
        def answer(prompt):
            done = served.openai().chat.completions.create(model=NAME, messages=[{'role': 'user', 'content': prompt}],
                                                           max_tokens=240, temperature=0)
            return done.id, done.choices[0].message.content

        quiet = [answer(prompt)[1] for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(15) as pool:
            busy = list(pool.map(answer, prompts * 5))
        assert [text for _, text in busy] == quiet * 5
        requeued = [request for request, _ in busy if any(e['kind'] == 'requeue' for e in served.record(request)['events'])]
        assert requeued, 'nobody had to yield: the test no longer fills the rank'
        served.wait_idle()
