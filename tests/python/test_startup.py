"""What a user meets when something is wrong at the start: one clear line each, and nothing half started."""
import fcntl
import os
import pathlib
import signal
import socket
import subprocess
import threading

import pytest

from served import BINARY, MODEL, NAME, ROOT, SMALL, Served, free_port, toml, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')


def serve(tmp_path, config='', *more, model=MODEL):
    path = tmp_path / 'cluster.toml'
    path.write_text(config)
    command = [BINARY, 'serve', '--config', str(path), '--state-dir', str(tmp_path / 'state'), '--model-path', str(model), *more]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
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
    ('[shadow]\ndecode_policy = "watreline"\n', ('shadow', 'watreline', 'waterline')),
    ('[pool]\neviction = "lrru"\n', ('lrru', 'lru')),
    ('[pool]\nanswer_ms = 0\n', ('answer_ms', '0')),
    ('[prefill]\ntier_bounds_tokens = [512, 500]\n', ('500', 'increase')),
    ('[decode]\nkv_blocks = 10\n', ('decode.kv_blocks = 10', '65')),
    ('[decode]\nkv_bytes = 1000\n', ('decode.kv_bytes = 1000', 'not one block')),
    ('[decode]\nkv_bytes = 30_000_000\n', ('decode.kv_blocks = 10 ', '65')),
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


def test_a_full_disk_is_said_where_the_logs_cannot_say_it(tmp_path):
    state = tmp_path / 'state'
    state.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=1m', 'tmpfs', str(state)], capture_output=True).returncode != 0:
        pytest.skip('no mounts permitted here')
    try:
        said = serve(tmp_path, '', '--port', str(free_port()))
    finally:
        subprocess.run(['umount', str(state)], check=True)
    assert str(state) in said and '16' in said and '--state-dir' in said


def test_two_systems_do_not_share_a_state_directory(tmp_path):
    with Served(tmp_path, tmp_path / 'state'):
        said = serve(tmp_path, '', '--port', str(free_port()))
    assert 'in use by another trimtab' in said


def test_a_pool_that_cannot_be_written_is_said(tmp_path):
    """The pool's directory is a file, or there is less room than the configuration wants: that ends the start."""
    blocker = tmp_path / 'blocker'
    blocker.write_text('a file where a directory should be')
    port = ('--port', str(free_port()))
    said = serve(tmp_path, toml({**SMALL, 'pool': {'memory_bytes': 64 << 20, 'directory': str(blocker / 'pool')}}), *port)
    assert str(blocker) in said and 'pool.targets' in said
    said = serve(tmp_path, toml({**SMALL, 'pool': {'memory_bytes': 64 << 20, 'file_bytes': 1 << 49}}), *port)
    assert f'pool.file_bytes = {1 << 49}' in said and 'or less' in said


def test_a_pool_that_cannot_be_opened_costs_the_hits_only(tmp_path):
    """Somebody else's file is in its place: the loader says so in its log, and the system serves without hits."""
    blocker = tmp_path / 'pool'
    blocker.mkdir()
    (blocker / 'log').write_bytes(b'not a log of ours' * 4096)
    with Served(tmp_path, tmp_path / 'state', {'pool': {'directory': str(blocker)}}, pool=False) as system:
        answer = system.openai().chat.completions.create(model='smollm2-135m-instruct', max_tokens=4,
                                                         messages=[{'role': 'user', 'content': 'Hello'}])
        assert answer.choices[0].message.content is not None
        assert any('pool' in alarm for alarm in system.status()['alarms'])
        # It is started again and again, each time with a new log.
        logs = [tmp_path / 'state/logs' / name for name in ('kv-loader.log', 'kv-loader.log.1')]
        until(lambda: any(log.exists() and str(blocker) in log.read_text() for log in logs), 'the loader does not say why')


def places(port):
    """The directories where the processes of the instance on `port` meet."""
    return [path for root in ('/tmp', '/dev/shm') for path in pathlib.Path(root).glob(f'trimtab-{os.getuid()}-{port}')]


def test_a_port_whose_place_another_holds(tmp_path):
    """Two that start at one moment both find the port free; the second must not delete the first one's sockets."""
    port = free_port()
    place = pathlib.Path(f'/tmp/trimtab-{os.getuid()}-{port}')
    place.mkdir()
    try:
        with open(place / 'lock', 'w') as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (place / 'control.sock').touch()
            (tmp_path / 'state').mkdir()
            (tmp_path / 'state/calibration.toml').write_text('[cost]\nform = "quadratic"\nfixed_ns = 1\ntoken_ps = 1\npair_ps = 1\n')
            said = serve(tmp_path, toml(SMALL), '--port', str(port))
            assert (place / 'control.sock').exists()
    finally:
        for path in place.iterdir():
            path.unlink()
        place.rmdir()
    assert f'another trimtab serves on port {port}' in said and '--port' in said


def test_what_a_killed_supervisor_leaves_goes_with_the_next_start(tmp_path):
    with Served(tmp_path, tmp_path / 'state') as killed:
        assert len(places(killed.port)) == 2
        killed.process.kill()
        killed.process.wait()
        assert len(places(killed.port)) == 2
    with Served(tmp_path, tmp_path / 'state') as other:
        assert len(places(other.port)) == 2
        assert places(killed.port) == []
    assert places(other.port) == []


def test_a_signal_while_starting_ends_everything_in_order(tmp_path):
    config = tmp_path / 'cluster.toml'
    config.write_text(toml(SMALL))
    (tmp_path / 'calibration.toml').write_text('[cost]\nform = "quadratic"\nfixed_ns = 1\ntoken_ps = 1\npair_ps = 1\n')
    port = free_port()
    with subprocess.Popen([BINARY, 'serve', '--config', str(config), '--port', str(port), '--state-dir', str(tmp_path),
                           '--model-path', MODEL], cwd=ROOT, stderr=subprocess.PIPE, text=True) as starting:
        assert 'starting' in starting.stderr.readline()
        starting.send_signal(signal.SIGTERM)
        assert starting.wait(120) == 0
    assert places(port) == []


def test_an_orderly_stop_lets_answers_end(tmp_path):
    """The engines live until the gateway has drained: a client in the middle of an answer gets the rest of it."""
    with Served(tmp_path, tmp_path / 'state') as system:
        stream = system.openai().chat.completions.create(model=NAME, max_tokens=24, temperature=0, stream=True,
                                                         messages=[{'role': 'user', 'content': 'Count from one to twenty.'}])
        reasons, stopper = [], None
        for chunk in stream:
            reasons += [choice.finish_reason for choice in chunk.choices if choice.finish_reason]
            if stopper is None:
                stopper = threading.Thread(target=system.process.terminate)
                stopper.start()
        stopper.join()
        assert reasons, 'the answer was cut off'
        assert system.process.wait(120) == 0
        assert 'killed' not in (tmp_path / 'state/serve.log').read_text()
