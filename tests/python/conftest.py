"""A gateway over the fake engine, for tests of the HTTP APIs: `trimtab gateway --fake-engine`."""
import os
import pathlib
import socket
import subprocess
import time
import types
import urllib.error
import urllib.request

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))
MODEL = os.environ.get('TRIMTAB_MODEL', '')


def start_gateway(directory, *more, config=ROOT / 'configs/laptop.toml'):
    """Starts a gateway on a free port; returns its url, port, model and process."""
    if not pathlib.Path(MODEL).is_file():
        pytest.skip('TRIMTAB_MODEL names no model file')
    if not os.access(BINARY, os.X_OK):
        pytest.skip(f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        port = probe.getsockname()[1]
    log = open(pathlib.Path(directory) / 'gateway.log', 'ab')
    process = subprocess.Popen(
        [BINARY, 'gateway', '--fake-engine', '--config', str(config), '--port', str(port),
         '--model-path', MODEL, '--state-dir', str(directory), *more], cwd=ROOT, stderr=log)
    url = f'http://127.0.0.1:{port}'
    end = time.monotonic() + 60
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
        gateway.process.wait(20)
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
    import json
    with urllib.request.urlopen(gateway.url + '/debug/status', timeout=10) as answer:
        return json.load(answer)


@pytest.fixture
def wait_idle():
    """Waits until the engine holds no request; returns how long that took, in seconds."""
    def wait(gateway, limit_s=5):
        start = time.monotonic()
        while status(gateway)['running'] > 0:
            assert time.monotonic() - start < limit_s, 'a request is left behind in the engine'
            time.sleep(0.01)
        return time.monotonic() - start
    return wait
