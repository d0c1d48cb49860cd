"""For all tests: how property tests draw their cases, and a gateway over the fake engine (`trimtab gateway --fake-engine`), for tests
of the HTTP APIs."""
import contextlib
import json
import os
import pathlib
import subprocess
import time
import types
import urllib.error
import urllib.request

import pytest
from served import free_port, until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))
MODEL = os.environ.get('TRIMTAB_MODEL', '')

with contextlib.suppress(ImportError):
    import hypothesis
    # How long drawing takes says what the machine has to do besides. `./test` fixes the seed.
    hypothesis.settings.register_profile('trimtab', suppress_health_check=[hypothesis.HealthCheck.too_slow], deadline=None)
    hypothesis.settings.load_profile('trimtab')


def start_gateway(directory, *more, config=ROOT / 'configs/laptop.toml'):
    """Starts a gateway on a free port; returns its url, port, model and process."""
    if not pathlib.Path(MODEL).is_file():
        pytest.skip('TRIMTAB_MODEL names no model file')
    if not os.access(BINARY, os.X_OK):
        pytest.skip(f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
    port = free_port()
    log = open(pathlib.Path(directory) / 'gateway.log', 'ab')
    process = subprocess.Popen(
        [BINARY, 'gateway', '--fake-engine', '--config', str(config), '--port', str(port),
         '--model-path', MODEL, '--state-dir', str(directory), *more], cwd=ROOT, stderr=log)
    url = f'http://127.0.0.1:{port}'
    end = time.monotonic() + 120
    while True:
        if process.poll() is not None or time.monotonic() > end:
            process.kill()
            raise RuntimeError('the gateway did not start: ' + pathlib.Path(log.name).read_text()[-2000:])
        try:
            urllib.request.urlopen(url + '/health', timeout=2)
            break
        except (OSError, urllib.error.URLError):
            time.sleep(0.05)
    return types.SimpleNamespace(url=url, port=port, model='smollm2-135m-instruct', process=process)


def stop_gateway(gateway):
    gateway.process.terminate()
    try:
        gateway.process.wait(60)
    except subprocess.TimeoutExpired:
        gateway.process.kill()
        gateway.process.wait()
        raise


@pytest.fixture(scope='session')
def gateway(tmp_path_factory):
    """Echoes the last turn without delay."""
    running = start_gateway(tmp_path_factory.mktemp('gateway'))
    yield running
    stop_gateway(running)


@pytest.fixture(scope='session')
def slow_gateway(tmp_path_factory):
    """Echoes after a second, a token every 20 ms."""
    running = start_gateway(tmp_path_factory.mktemp('slow-gateway'), '--fake-first-token-ms', '1000', '--fake-step-ms', '20')
    yield running
    stop_gateway(running)


def status(gateway):
    with urllib.request.urlopen(gateway.url + '/debug/status', timeout=60) as answer:
        return json.load(answer)


def wait_idle(gateway):
    """Until the engine holds no request; returns its last status."""
    until(lambda: status(gateway)['running'] == 0, 'a request is left behind in the engine')
    return status(gateway)


def leave_early(gateway, leave):
    """`leave` asks the slow gateway for a long answer and goes away: the engine is told, and does not work to the end for nobody."""
    before = wait_idle(gateway)

    def left():
        leave()
        after = wait_idle(gateway)
        # On a busy machine a client can be gone before its request has been read: then there is nothing to see.
        return after if after['submitted_total'] > before['submitted_total'] else None
    after = until(left, 'no request ever came to the engine')
    came, cancelled = (after[name] - before[name] for name in ('submitted_total', 'cancelled_total'))
    assert came == cancelled, (before, after)
