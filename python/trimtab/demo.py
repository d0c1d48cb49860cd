"""Plays a three-turn coding-agent conversation against a running trimtab and shows what each balancer decided and why.

    python -m trimtab.demo [--config configs/laptop.toml] [--port N] [--check]

It is an ordinary client of the Anthropic Messages API: system prompt, tools, tool results and a PNG screenshot. Turn 1's tool call is
scripted (a 135M-parameter model cannot be relied on to make one); all other answers are the model's own.
"""
import argparse
import pathlib
import sys
import time
import tomllib
import urllib.error
import urllib.request

from trimtab import demo_conversation as script
from trimtab.demo_checks import check_turn
from trimtab.explain import explain_text, request_record


def wait_until_ready(url, server_pid, patience_s=120):
    """Returns once /health says 200; exits when the server process ends first."""
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(url + '/health', timeout=2) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        if server_pid and not is_running(server_pid):
            sys.exit(1)  # the server has said why on its own last line
        time.sleep(0.1)
    sys.exit(f'demo: {url} did not become ready within {patience_s} s; see the logs named above')


def is_running(pid):
    stat = pathlib.Path(f'/proc/{pid}/stat')
    try:
        return stat.read_text().rsplit(')', 1)[1].split()[0] != 'Z'
    except (OSError, IndexError):
        return False


def print_block(title, text):
    print(f'\n--- {title} ' + '-' * max(3, 100 - len(title)))
    print(text.rstrip())


def play_turn(client, model, number, messages):
    """One turn, streamed to the terminal; returns (request id, answer text, usage)."""
    print_block(f'turn {number}: the user', script.summary(messages[-1]))
    print_block(f'turn {number}: the model answers', '')
    pieces = []
    with client.messages.stream(model=model, max_tokens=script.MAX_TOKENS, system=script.SYSTEM, tools=script.TOOLS,
                                messages=messages, extra_body={'temperature': 0}) as stream:
        for piece in stream.text_stream:
            pieces.append(piece)
            print(piece, end='', flush=True)
        final = stream.get_final_message()
    print()
    return final.id, ''.join(pieces), final.usage


def play(url, model, check):
    import anthropic  # the vendor's own SDK; imported late so that --help needs nothing
    client = anthropic.Anthropic(base_url=url, api_key='none', max_retries=0, timeout=600)
    messages, faults, previous = [], [], None
    for number, user in enumerate(script.user_turns(), 1):
        messages.append(user)
        started = time.monotonic()
        request, answer, usage = play_turn(client, model, number, messages)
        seconds = time.monotonic() - started
        record = request_record(url, request)
        print_block(f'turn {number}: what was decided, and why  (trimtab explain {request})', explain_text(url, request))
        total = usage.input_tokens + (usage.cache_read_input_tokens or 0)
        print(f'\n    {total} prompt tokens: {usage.cache_read_input_tokens or 0} from the pool, {usage.input_tokens} computed; '
              f'{usage.output_tokens} generated; {seconds:.1f} s')
        if check:
            faults += [f'turn {number}: {fault}' for fault in check_turn(number, record, usage, previous)]
        previous = record
        messages.append(script.assistant_turn(number, answer))
    return faults


def main():
    parser = argparse.ArgumentParser(prog='python -m trimtab.demo', description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--config', default='configs/laptop.toml', help='the configuration that is being served')
    parser.add_argument('--port', type=int, help="another port than the configuration's")
    parser.add_argument('--server-pid', type=int, default=0, help='give up when this process ends')
    parser.add_argument('--check', action='store_true', help='verify hits, counts and decisions; exit 1 when one is wrong')
    arguments = parser.parse_args()
    with open(arguments.config, 'rb') as file:
        config = tomllib.load(file)
    port = arguments.port or config.get('gateway', {}).get('port', 8000)
    model = config.get('model', {}).get('name', 'smollm2-135m-instruct')
    url = f'http://127.0.0.1:{port}'
    wait_until_ready(url, arguments.server_pid)
    faults = play(url, model, arguments.check)
    for fault in faults:
        print(f'check failed: {fault}', file=sys.stderr)
    if arguments.check and not faults:
        print('\ncheck passed: hits, token counts and every decision are as they must be')
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main())
