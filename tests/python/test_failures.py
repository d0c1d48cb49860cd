"""Ranks that die, clients that vanish: requests are redone, the others go on, nothing is left behind."""
import concurrent.futures
import threading
import time

import pytest

from served import MODEL, NAME, Served

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
    prompt = f'{role}: {LONG}'
    expected = complete(system, prompt)
    fresh = prompt.replace('history', 'story')  # not in the pool: prefill has work to be killed in
    other = concurrent.futures.ThreadPoolExecutor(2)
    bystander = other.submit(complete, system, 'Count from one to twenty.', 40)
    if role == 'decode':
        again = other.submit(complete, system, prompt, 24, lambda: kill_busy(system, 'decode'))
    else:
        again = other.submit(complete, system, fresh)
        time.sleep(0.3)
        kill_busy(system, 'prefill')
    text = again.result(120)
    assert bystander.result(120)
    system.wait_ready(60)
    if role == 'decode':
        assert text == expected
    else:
        assert text == complete(system, fresh)
    system.wait_idle()


def kill_busy(system, role):
    """Kills a rank that holds a request, so that something is lost with it."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for index, rank in enumerate(system.ranks(role)):
            if rank['requests'] > 0:
                system.kill_rank(role, index)
                return
        time.sleep(0.02)
    raise AssertionError(f'no {role} rank ever held the request')


def test_two_hundred_vanishing_clients_leave_nothing(system):
    """Clients that leave at every stage: before the first byte, in the queue, while prefilling, after some tokens."""
    import httpx

    def vanish(number):
        body = {'model': NAME, 'messages': [{'role': 'user', 'content': f'{number} ' + LONG[:40 * (number % 30)]}], 'max_tokens': 64,
                'temperature': 0, 'stream': True}
        patience = (0.002, 0.02, 0.1, 0.4, 1.0)[number % 5]
        stop = threading.Event()
        with httpx.Client(timeout=httpx.Timeout(30, read=patience)) as client:
            try:
                with client.stream('POST', system.url + '/v1/chat/completions', json=body) as answer:
                    for count, _ in enumerate(answer.iter_lines()):
                        if count >= number % 7:
                            break
            except httpx.HTTPError:
                stop.set()  # left while waiting: that is the point

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        list(pool.map(vanish, range(200)))
    status = system.wait_idle(60)
    assert status['requests']['in_flight'] == 0
    assert complete(system, 'Say hello.', 8)


def test_an_overloaded_decode_rank_preempts_and_resumes(tmp_path):
    """Arenas that hold one and a half requests: someone must yield, and every answer is the one of a quiet system."""
    prompts = [f'Story number {i}: ' + 'the ship sailed on and on. ' * 90 for i in range(4)]
    overrides = {'decode': {'groups': 1, 'ranks': 1, 'kv_blocks': 65, 'headroom_tokens': 1, 'max_running': 16}}
    with Served(tmp_path, tmp_path / 'state', overrides) as served:
        quiet = [complete(served, prompt, 16) for prompt in prompts]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            busy = list(pool.map(lambda prompt: complete(served, prompt, 16), prompts * 2))
        assert busy == quiet * 2
        served.wait_idle()
