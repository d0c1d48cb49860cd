"""A model with sliding-window layers, served: hits begin from snapshots of window state, wherever those lie, and what is lost costs
what the mode says."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import pytest

from served import MODEL, NAME, ROOT, Served, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

STORY = ' '.join(f'Item {i}: the {color} box holds {i * 7} {thing}.' for i, (color, thing) in enumerate(
    [('red', 'nails'), ('blue', 'screws'), ('green', 'bolts'), ('white', 'washers'), ('black', 'hinges')] * 6))
QUESTIONS = [STORY + ' Which boxes hold nails?', 'And which of them is the last in the list?', 'How many boxes are there in all?']


@pytest.fixture(scope='module')
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp('model') / 'window.gguf'
    subprocess.run([sys.executable, ROOT / 'tools/window-model', MODEL, path], check=True)
    yield path
    path.unlink()


@contextlib.contextmanager
def serve(directory, model, mode, machines=2, audits_per_1000=0):
    served = Served(directory, pathlib.Path(directory) / 'state', model=model, overrides={
        'model': {'profile': 'smollm2-135m-window'}, 'prefill': {'engines': machines, 'ranks': 1}, 'decode': {'ranks': 1},
        'window_state': {'mode': mode, 'machines': machines, 'audits_per_1000': audits_per_1000}})
    with served as system:
        until(lambda: len(lives(system)) == machines, 'a store of states never came')
        yield system


def ask(system, messages):
    """One turn; returns (text, its tokens with the checksums of their logits, summary)."""
    answer = system.openai().chat.completions.create(model=NAME, messages=messages, max_tokens=40, temperature=0)
    record = system.record(answer.id)
    return answer.choices[0].message.content, record['tokens'], record['summary']


def snapshots(system):
    return {one['machine']: one['snapshots'] for one in system.status()['window_state']['machines']}


def lives(system):
    """Which life of its store each machine has; a dead one is not there."""
    return {one['machine']: one['epoch'] for one in system.status()['window_state']['machines']}


def settle(system, enough):
    """Until the ranks have stored their blocks and the directory shows what they gave away; returns snapshots by machine."""
    system.wait_idle()
    until(lambda: enough(snapshots(system)), lambda: system.status()['window_state'])
    time.sleep(0.5)  # those that are on their way
    return snapshots(system)


def settle_all(system, summary):
    """The same, of a conversation's last turn: one snapshot at the end of every full block that has KV, as nothing was lost so far."""
    blocks = (summary['prompt_tokens'] + summary['output_tokens'] - 1) // 128
    return settle(system, lambda now: sum(now.values()) >= blocks)


def converse(system):
    """All turns; returns [(messages, tokens, summary)]."""
    turns, messages = [], []
    for question in QUESTIONS:
        messages = [*messages, {'role': 'user', 'content': question}]
        text, tokens, summary = ask(system, messages)
        turns.append((messages, tokens, summary))
        messages = [*messages, {'role': 'assistant', 'content': text}]
        settle_all(system, summary)
    return turns


@pytest.fixture(scope='module')
def plain(tmp_path_factory, model):
    """What the last turn is without any hit: `ask` it of a fresh system."""
    def ask_fresh(messages):
        directory = tmp_path_factory.mktemp('plain')
        with serve(directory, model, 'exact', machines=1) as system:
            _, tokens, summary = ask(system, messages)
        assert summary['hit_tokens'] == 0
        return tokens
    return ask_fresh


def kill(system, *words):
    """SIGKILL to this system's processes whose command line has all of these words; returns how many."""
    found = subprocess.run(['ps', '-ewwo', 'pid=,args='], capture_output=True, text=True, check=True).stdout
    lines = [line + ' ' for line in found.splitlines()]
    pids = [int(line.split()[0]) for line in lines if all(f' {word} ' in line for word in (*words, f'--port {system.port}'))]
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    return len(pids)


def kill_state_hosts(system, renewed=True):
    """As machines that lose their memory; returns how many. `renewed`: when their successors are there and hold nothing; else when
    nothing that they held is promised any more, whenever their successors come."""
    before = lives(system)
    killed = kill(system, 'kv-state')
    until(lambda: not set(lives(system).items()) & set(before.items()), 'their deaths are not seen')
    until(lambda: not renewed or lives(system).keys() == before.keys(), 'no successors came')
    return killed


def test_turns_begin_from_snapshots_and_change_no_bit(tmp_path, model, plain):
    with serve(tmp_path, model, 'approximate') as system:
        turns = converse(system)
        hits = system.status()['hits']
        system.wait_idle()
    for _, _, summary in turns[1:]:
        assert summary['hit_tokens'] >= 256
    assert hits['hits'] == 2 and hits['snapshots_used'] == 2 and hits['approximate'] == 0, hits
    messages, tokens, _ = turns[-1]
    assert tokens == plain(messages)


def test_lost_snapshots_in_exact_change_no_bit(tmp_path, model):
    with serve(tmp_path, model, 'exact') as system:
        messages, tokens, summary = converse(system)[-1]
        assert kill_state_hosts(system, renewed=False) == 2
        _, again, summary = ask(system, messages)
        hits = system.status()['hits']
        system.wait_idle()
    assert again == tokens
    # 2,560 tokens are more than the prompt has: all of it is computed again, for its window.
    assert summary['hit_tokens'] == 0 and hits['window_tokens_recomputed'] >= 256, (summary, hits)
    assert hits['approximate'] == 0


def test_lost_snapshots_in_approximate_are_counted(tmp_path, model):
    with serve(tmp_path, model, 'approximate') as system:
        messages, _, before = converse(system)[-1]
        assert kill_state_hosts(system) == 2
        _, _, summary = ask(system, messages)
        hits = system.status()['hits']
        # The turn made the state anew: the next one begins from it.
        settle(system, lambda now: sum(now.values()) > 0)
        _, _, third = ask(system, messages)
        after = system.status()['hits']
        system.wait_idle()
    whole = (summary['prompt_tokens'] - 1) // 128 * 128
    assert summary['hit_tokens'] == whole - 128
    assert hits['approximate'] == 1 and hits['window_tokens_recomputed'] == 128, hits
    assert third['hit_tokens'] == whole and after['snapshots_used'] == hits['snapshots_used'] + 1


def test_the_drift_of_approximate_hits_is_measured(tmp_path, model, plain):
    """Every approximate hit is computed a second time, exactly, when nobody waits; no other request notices."""
    def audits():
        return system.status()['window_state']['audits']

    other = [{'role': 'user', 'content': 'Name the largest of the boxes. ' * 30}]
    with serve(tmp_path, model, 'approximate', audits_per_1000=1000) as system:
        messages, true_tokens, _ = converse(system)[-1]
        assert audits()['done'] == 0 and audits()['waiting'] == 0, 'all began from a snapshot'
        assert kill_state_hosts(system) == 2
        end = time.monotonic() + 5
        while any(snapshots(system).values()):
            assert time.monotonic() < end
        answer = system.openai().chat.completions.create(model=NAME, messages=messages, max_tokens=40, temperature=0)
        drifted = system.record(answer.id)
        _, beside, _ = ask(system, other)  # while the audit waits or runs
        end = time.monotonic() + 60
        while audits()['done'] == 0:
            assert time.monotonic() < end, audits()
            time.sleep(0.1)
        told, record, metrics = audits(), system.record(answer.id), system.get('/metrics')
        # The files have it within the 100 ms between two writes: it is later than the end that `explain` waits for.
        while 'drift: computed a second time' not in (explained := system.command('explain', answer.id)):
            assert time.monotonic() < end, explained
        settle(system, lambda now: sum(now.values()) > 0)
        answer = system.openai().chat.completions.create(model=NAME, messages=messages, max_tokens=40, temperature=0)
        again = system.record(answer.id)
        system.wait_idle()
    assert drifted['hit']['approximate'] and drifted['drift'] is None
    drift = record['drift']
    assert drift['relative'] > 0 and drift['largest'] >= drift['relative']
    # 2,560 tokens are more than the prompt has: all of it was computed again.
    assert drift['computed_tokens'] == told['computed_tokens'] == record['summary']['prompt_tokens']
    assert told['done'] == 1 and told['drift_mean'] == told['drift_max'] == drift['relative'], told
    assert sum(told['dropped'].values()) == 0, told
    # What the audit found is what a run without hits gives: the conversation's own tokens, from its snapshots.
    same = drifted['tokens'][0] == true_tokens[0]
    assert drift['same_token'] == same and told['same_token_ratio'] == (1 if same else 0)
    assert 'trimtab_window_drift_audits_total{same_token="%s"} 1' % ('yes' if same else 'no') in metrics
    assert beside == plain(other)
    # The audit kept no state: this one begins from that of the approximate turn, and has its bits, not the audit's.
    assert again['hit']['state_tokens'] > 0 and again['checksums'] == drifted['checksums'], again['hit']


def test_a_state_that_another_machine_holds_is_fetched(tmp_path, model):
    """Engine i keeps its states on machine i. The engine that made them dies and the other machine's memory holds nothing, so what
    the other engine begins from came from the first one's machine, over TCP."""
    messages = [{'role': 'user', 'content': QUESTIONS[0]}]

    def turn(system):
        answer = system.openai().chat.completions.create(model=NAME, messages=messages, max_tokens=8, temperature=0)
        record = system.record(answer.id)
        engines = set(re.findall(r'prefill engine (\d+)', json.dumps(record['events'])))
        assert len(engines) == 1, record['events']
        return record, int(engines.pop())

    def connected(system, engine):
        return system.ranks('prefill')[engine]['connected']

    with serve(tmp_path, model, 'exact') as system:
        first, maker = turn(system)
        whole = (first['summary']['prompt_tokens'] - 1) // 128
        assert first['summary']['hit_tokens'] == 0 and whole >= 3
        settle(system, lambda now: now.get(maker, 0) >= whole)
        other = 1 - maker
        life = lives(system)[other]
        assert kill(system, 'kv-state', f'--machine {other}') == 1
        until(lambda: lives(system).get(other, life) != life and snapshots(system)[other] == 0, 'no successor with nothing ever came')
        os.kill(system.process.pid, signal.SIGSTOP)  # it must not start the engine again before the turn
        try:
            assert kill(system, 'engine', '--role prefill', f'--engine {maker}') == 1
            until(lambda: not connected(system, maker), 'its death is not seen')
            again, engine = turn(system)
        finally:
            os.kill(system.process.pid, signal.SIGCONT)
        hits = system.status()['hits']
        until(lambda: connected(system, maker), 'it was not started again')
        system.wait_idle()
    assert engine == other
    assert again['tokens'] == first['tokens']
    assert again['summary']['hit_tokens'] == whole * 128
    assert hits['hits'] == 1 and hits['snapshots_used'] == 1, hits
    assert hits['stale'] == 0 and hits['fallbacks'] == 0 and hits['window_tokens_recomputed'] == 0, hits


def test_window_hits_come_layer_by_layer(tmp_path, model):
    """From a snapshot, over blocks whose layers still come: the bits of the run before, which had no hit."""
    messages = [{'role': 'user', 'content': 'Tell me about the history of the sea, one age after another. ' * 106}]
    with serve(tmp_path, model, 'exact', machines=1) as system:
        _, tokens, summary = ask(system, messages)
        whole = (summary['prompt_tokens'] - 1) // 128 * 128
        assert summary['hit_tokens'] == 0 and summary['prompt_tokens'] - whole >= 64, 'a step long enough to hide a copy behind'
        settle_all(system, summary)
        end = time.monotonic() + 180
        # A rank that was kept from the processor looks when all of the hit is there, and waits for nothing.
        while system.status()['swap_in']['requests'] == 0:
            assert time.monotonic() < end
            _, again, summary = ask(system, messages)
            assert again == tokens
            system.wait_idle()
        hits = system.status()['hits']
        system.wait_idle()
    assert summary['hit_tokens'] == whole and hits['snapshots_used'] > 0
    assert hits['fallbacks'] == 0 and hits['approximate'] == 0, hits
