"""What tests of a served pool ask of it: prompts with answers, blocks that are durable, a loader that dies."""
import os
import pathlib

from served import NAME, until


def prompt(word, times=34):
    """About a block of 128 tokens for seven times; prompts of different words share no block."""
    return f'{word}: tell me about the history of the {word}, one age after another. ' * times


def complete(system, text, tokens=2):
    """One greedy answer; returns its debug record."""
    done = system.openai().chat.completions.create(model=NAME, messages=[{'role': 'user', 'content': text}], max_tokens=tokens,
                                                   temperature=0)
    return system.record(done.id)


def reusable(record):
    """Tokens of the prompt in full blocks; its last token is always computed."""
    return (record['summary']['prompt_tokens'] - 1) // 128 * 128


def pool(system):
    """The loader's counters. One that is busy or starting is asked again."""
    return until(lambda: system.status()['pool'], 'the pool never answers', 90)


def wait_durable(system):
    """Until what the ranks have given to the pool is; they give it behind an answer, so first `wait_idle`."""
    until(lambda: pool(system)['dirty_entries'] == 0, lambda: f'blocks never became durable: {pool(system)}')


def store(system, text):
    """An answer whose prompt's blocks are durable afterwards."""
    record = complete(system, text)
    system.wait_idle()
    wait_durable(system)
    return record


def loader_of(system):
    for child in pathlib.Path(f'/proc/{system.process.pid}/task/{system.process.pid}/children').read_text().split():
        line = pathlib.Path(f'/proc/{child}/cmdline')
        if line.exists() and '\0kv-loader\0' in line.read_text():
            return int(child)
    return None


def replace_loader(system):
    """SIGKILL; returns when its successor answers and its memory is empty."""
    pid = until(lambda: loader_of(system), 'there is no loader')
    os.kill(pid, 9)
    until(lambda: loader_of(system) not in (None, pid), 'no loader was started anew')
    until(lambda: pool(system)['match_requests'] == 0, lambda: f'the new loader does not answer: {pool(system)}')


def kill_loader(system):
    """Replaces it; returns when its targets have told the new one of all the blocks that it had."""
    blocks = pool(system)['file_entries']
    replace_loader(system)
    until(lambda: pool(system)['file_entries'] >= blocks, lambda: f'the new loader lacks some of {blocks} blocks: {pool(system)}')


def loader_socket(system):
    return f'/tmp/trimtab-{os.getuid()}-{system.port}/kv.sock'
