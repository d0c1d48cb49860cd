"""Clients with different salts share nothing that was computed for them; those with the same salt share it all. Served by real engines:
blocks of the pool, snapshots of window state, blocks that an image covers, remembered answers."""
import base64
import pathlib
import subprocess
import sys

import pytest

from served import MODEL, NAME, ROOT, Served, until
from trimtab import demo_conversation as script

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

OURS, THEIRS = 'hXQ5vU-the-salt-of-ours', 'hXQ5vU-the-salt-of-theirs'
QUESTION = 'Read the picture, then tell me which test fails and what the cart should have charged instead. ' * 8


@pytest.fixture(scope='module')
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp('salted')


@pytest.fixture(scope='module')
def system(directory):
    """One machine, whose model has sliding-window layers: a hit needs blocks and a snapshot of the window before it."""
    path = directory / 'window.gguf'
    subprocess.run([sys.executable, ROOT / 'tools/window-model', MODEL, path], check=True)
    with Served(directory, directory / 'state', model=path, overrides={
            'model': {'profile': 'smollm2-135m-window'}, 'prefill': {'engines': 1, 'ranks': 1}, 'decode': {'ranks': 1},
            'window_state': {'mode': 'exact', 'machines': 1}}) as served:
        yield served
    path.unlink()


def conversation(answer=None):
    url = 'data:image/png;base64,' + base64.b64encode(script.screenshot()).decode()
    asked = [{'role': 'user', 'content': [{'type': 'text', 'text': QUESTION}, {'type': 'image_url', 'image_url': {'url': url}}]}]
    return asked if answer is None else [*asked, {'role': 'assistant', 'content': answer}, {'role': 'user', 'content': 'Say it again.'}]


def ask(system, messages, **members):
    """One greedy turn; returns (text, cached tokens as the client sees them, debug record, snapshots that hits began from so far)."""
    answer = system.openai().chat.completions.create(model=NAME, messages=messages, max_tokens=24, temperature=0, extra_body=members)
    record = system.record(answer.id)
    cached = answer.usage.prompt_tokens_details
    return answer.choices[0].message.content, cached.cached_tokens if cached else 0, record, system.status()['hits']['snapshots_used']


def snapshots(system):
    return sum(one['snapshots'] for one in system.status()['window_state']['machines'])


def settle(system, before, summary):
    """Until the ranks have stored what was just computed, and the directory shows the snapshots at the ends of its full blocks."""
    system.wait_idle()
    blocks = (summary['prompt_tokens'] + summary['output_tokens'] - 1) // 128
    until(lambda: snapshots(system) >= before + blocks, lambda: (before, blocks, system.status()['window_state']))


def remembered(system):
    lines = system.get('/metrics').splitlines()
    return float(next(line for line in lines if line.startswith('trimtab_gateway_answers_remembered_total ')).split()[1])


def whole_blocks(record):
    return (record['summary']['prompt_tokens'] - 1) // 128 * 128


@pytest.fixture(scope='module')
def asked(system):
    """The first turn for our salt, then again for everybody."""
    before = snapshots(system)
    first = ask(system, conversation(), cache_salt=OURS)
    settle(system, before, first[2]['summary'])
    others = []
    for members in ({}, {'cache_salt': THEIRS}, {'extra_key': OURS}, {'cache_salt': OURS, 'extra_key': 'x'}):
        before = snapshots(system)
        others.append(ask(system, conversation(), **members))
        settle(system, before, others[-1][2]['summary'])
    return first, others, ask(system, conversation(), cache_salt=OURS)


def test_another_salt_finds_nothing_and_the_same_salt_everything(asked):
    first, others, again = asked
    assert whole_blocks(first[2]) >= 384
    for text, cached, record, snapshots_used in others:
        assert cached == record['summary']['hit_tokens'] == snapshots_used == 0
        assert record['summary']['computed_tokens'] == record['summary']['prompt_tokens']
        assert 'encoded' in [event['kind'] for event in record['events']], 'no encoder read the picture for them'
        assert text == first[0] and record['tokens'] == first[2]['tokens'] and record['checksums'] == first[2]['checksums']
    text, cached, record, snapshots_used = again
    assert cached == record['summary']['hit_tokens'] == whole_blocks(first[2]) and snapshots_used == 1
    assert text == first[0] and record['tokens'] == first[2]['tokens']
    assert record['checksums'] == first[2]['checksums'] and len(record['checksums']) == len(record['tokens']) > 0


def test_answers_are_remembered_for_their_salt(system, asked):
    text = asked[0][0]
    messages, before = conversation(text), remembered(system)
    ask(system, messages, cache_salt='a salt that is new here')
    assert remembered(system) == before
    ask(system, messages, cache_salt=OURS)
    assert remembered(system) == before + 1


def test_the_messages_api_takes_the_same_salt(system, asked):
    def cached(**members):
        messages = [{'role': 'user', 'content': 'Without a picture: ' + QUESTION * 3}]  # begins as nothing before
        before = snapshots(system)
        answer = system.anthropic().messages.create(model=NAME, max_tokens=4, messages=messages, extra_body={'temperature': 0, **members})
        if answer.usage.cache_read_input_tokens == 0:
            settle(system, before, system.record(answer.id)['summary'])
        return answer.usage.cache_read_input_tokens
    assert cached(cache_salt=OURS) == cached() == cached(cache_salt=THEIRS) == 0
    assert cached(cache_salt=OURS) >= 256


def test_nothing_shows_the_salt(system, asked, directory):
    first = asked[0][2]
    for shown in (system.get('/debug/status'), system.get(f'/debug/requests/{first["name"]}'), system.get('/metrics'),
                  system.command('explain', first['name']), system.command('explain', first['name'], '--json')):
        assert OURS not in shown and THEIRS not in shown
    files = [path for path in pathlib.Path(directory / 'state').rglob('*') if path.is_file() and path.stat().st_size < 64 << 20]
    assert {'answers.sqlite', 'gateway.lives'} <= {path.name for path in files}
    for path in files:
        assert OURS.encode() not in path.read_bytes(), path
