"""A real conversation through encoder, prefill and decode: hits, counts, and the same bits whatever the system did."""
import shutil

import pytest

from served import MODEL, Served, until
from trimtab import demo_conversation as script
from trimtab.demo_checks import check_turn

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')


def ask(system, messages):
    """One Messages API turn; returns (answer text, usage, debug record)."""
    client = system.anthropic()
    answer = client.messages.create(model='smollm2-135m-instruct', max_tokens=script.MAX_TOKENS, system=script.SYSTEM, tools=script.TOOLS,
                                    messages=messages, extra_body={'temperature': 0})
    return ''.join(block.text for block in answer.content), answer.usage, system.record(answer.id)


def play(system):
    """All turns; returns the messages sent and the records of each."""
    sent, records, messages = [], [], []
    for number, user in enumerate(script.user_turns(), 1):
        messages = [*messages, user]
        text, usage, record = ask(system, messages)
        assert check_turn(number, record, usage, records[-1] if records else None) == []
        system.wait_idle()  # the ranks store blocks behind an answer; the next turn is to find them all
        sent.append(messages)
        records.append(record)
        messages = [*messages, script.assistant_turn(number, text)]
    return sent, records


@pytest.fixture(scope='module')
def played(tmp_path_factory):
    """The conversation on two ranks, then everything restarted and the last two turns sent again."""
    directory = tmp_path_factory.mktemp('conversation')
    state = directory / 'state'
    with Served(directory, state) as system:
        sent, records = play(system)
        explained = system.command('explain', records[2]['name'])
        until(lambda: (pool := system.status()['pool']) and pool['dirty_entries'] == 0, lambda: system.status()['pool'])
    with Served(directory, state) as system:
        again = []
        for messages in sent[1:]:
            again.append(ask(system, messages))
            system.wait_idle()
    return directory, state, sent, records, again, explained


def test_everything_hits_after_a_restart(played):
    _, _, _, records, again, _ = played
    for number, (text, usage, record) in enumerate(again, 2):
        before, summary = records[number - 1]['summary'], record['summary']
        assert summary['prompt_tokens'] == before['prompt_tokens']
        # Every full block of the very same prompt; the last token is always computed.
        assert summary['hit_tokens'] == (before['prompt_tokens'] - 1) // 128 * 128
        assert summary['computed_tokens'] == summary['prompt_tokens'] - summary['hit_tokens']
        assert usage.cache_read_input_tokens == summary['hit_tokens']


def test_hits_change_no_bit(played):
    _, _, _, records, again, _ = played
    for first, (_, _, second) in zip(records[1:], again):
        assert first['tokens'] == second['tokens']
        assert first['checksums'] == second['checksums'] and len(first['checksums']) == len(first['tokens'])


@pytest.mark.parametrize('ranks, chunk', [(1, 1024), (2, 200), (3, 512)])
def test_ranks_chunks_and_missing_hits_change_no_bit(played, tmp_path, ranks, chunk):
    """Another number of ranks, other chunks, an empty pool, but the same remembered answers: every logits row is the same."""
    _, state, sent, records, _, _ = played
    other = tmp_path / 'state'
    other.mkdir()
    shutil.copy(state / 'answers.sqlite', other / 'answers.sqlite')
    overrides = {'prefill': {'ranks': ranks, 'chunk_tokens_max': chunk}, 'decode': {'ranks': ranks}}
    with Served(tmp_path, other, overrides) as system:
        _, _, record = ask(system, sent[2])
        assert record['summary']['hit_tokens'] == 0
        assert record['summary']['computed_tokens'] == record['summary']['prompt_tokens']
        assert record['tokens'] == records[2]['tokens']
        assert record['checksums'] == records[2]['checksums']
        chunks = [event for event in record['events'] if event['kind'] == 'chunk']
        assert len(chunks) >= record['summary']['prompt_tokens'] // chunk


def test_explain_tells_the_journey(played):
    *_, explained = played
    for word in ('tier', 'pull', 'quota', 'chunk', 'MIN', 'encoder', 'patches', 'waterline', 'hit'):
        assert word in explained, f'{word!r} is missing in:\n{explained}'
