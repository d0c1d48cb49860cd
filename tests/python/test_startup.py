"""What a user meets when something is wrong at the start: one clear line each, and nothing half started."""
import socket
import subprocess

import pytest

from served import BINARY, MODEL, ROOT, Served, free_port

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')


def serve(tmp_path, config='', *more, model=MODEL):
    path = tmp_path / 'cluster.toml'
    path.write_text(config)
    command = [BINARY, 'serve', '--config', str(path), '--state-dir', str(tmp_path / 'state'), '--model-path', str(model), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    last = [line for line in done.stderr.splitlines() if line.strip()][-1]
    assert last.startswith('trimtab: ')
    return last


def test_a_port_in_use(tmp_path):
    with socket.socket() as taken:
        taken.bind(('127.0.0.1', 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = serve(tmp_path, '', '--port', str(port))
    assert str(port) in said and '--port' in said


@pytest.mark.parametrize('config, words', [
    ('[prefill]\nengine = 2\n', ('engine', 'engines', 'cluster.toml:2')),
    ('[prefill]\nranks = "two"\n', ('ranks', 'string')),
    ('[decode]\nranks = 0\n', ('ranks', '0')),
    ('[decode]\npolicy = "watreline"\n', ('watreline', 'waterline')),
    ('[prefill]\norder = "lifo"\n', ('lifo', 'fifo')),
    ('[prefill]\ntier_bounds_tokens = [512, 500]\n', ('500', 'increase')),
    ('[decode]\nkv_blocks = 10\n', ('decode.kv_blocks = 10', '65')),
    ('[model]\nprofile = "no-such-model"\n', ('no-such-model',)),
    ('[gateway\n', ('cluster.toml:1',)),
    ('[prefill]\nkv_blocks = 9000000\n', ('memory', 'MB')),
])
def test_bad_configurations(tmp_path, config, words):
    said = serve(tmp_path, config, '--port', str(free_port()))
    for word in words:
        assert word in said


def test_broken_model_files(tmp_path):
    cut = tmp_path / 'cut.gguf'
    with open(MODEL, 'rb') as whole:
        cut.write_bytes(whole.read(1 << 20))
    assert 'truncated' in serve(tmp_path, '', '--port', str(free_port()), model=cut)
    text = tmp_path / 'text.gguf'
    text.write_text('not a model')
    assert 'GGUF' in serve(tmp_path, '', '--port', str(free_port()), model=text)
    assert 'missing.gguf' in serve(tmp_path, '', '--port', str(free_port()),
                                   model=tmp_path / 'missing.gguf')


def test_two_systems_do_not_share_a_state_directory(tmp_path):
    with Served(tmp_path, tmp_path / 'state'):
        said = serve(tmp_path, '', '--port', str(free_port()))
    assert 'in use by another trimtab' in said


def test_a_pool_that_cannot_be_written_is_said(tmp_path):
    """The pool's directory is a file: the loader says so in its log, and the system serves without hits."""
    blocker = tmp_path / 'blocker'
    blocker.write_text('a file where a directory should be')
    with Served(tmp_path, tmp_path / 'state', {'pool': {'directory': str(blocker / 'pool')}}) as system:
        answer = system.openai().chat.completions.create(model='smollm2-135m-instruct', max_tokens=4,
                                                         messages=[{'role': 'user', 'content': 'Hello'}])
        assert answer.choices[0].message.content is not None
        assert any('pool' in alarm for alarm in system.status()['alarms'])
        assert str(blocker) in (tmp_path / 'state/logs/kv-loader.log').read_text()
