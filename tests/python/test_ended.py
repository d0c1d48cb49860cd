"""A process of a served system that ends at once: `serve` and `status` say why, whichever it is."""
import os
import subprocess

import pytest

from served import BINARY, MODEL, ROOT, SMALL, Served, free_port, toml, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')


def test_a_loader_that_cannot_open_its_pool_is_said_by_serve_and_status(tmp_path):
    blocker = tmp_path / 'pool'
    blocker.mkdir()
    (blocker / 'log').write_bytes(b'not a log of ours' * 4096)
    with Served(tmp_path, tmp_path / 'state', {'pool': {'directory': str(blocker)}}, pool=False) as system:
        log = tmp_path / 'state/logs/kv-loader.log'
        ended = until(lambda: [end for end in system.status()['ended'] if end['in_a_row'] > 1], 'its ends are not told')
        assert [end['process'] for end in ended] == ['kv-loader']
        assert ended[0]['how'] == 'exited with 1' and ended[0]['log'] == str(log) and str(blocker) in ended[0]['said']
        assert any('kv-loader exited with 1' in alarm and str(blocker) in alarm for alarm in system.status()['alarms'])
        said = (tmp_path / 'state/serve.log').read_text()
        assert f'trimtab: kv-loader exited with 1; {log} says: ' in said and str(blocker) in said
        # The cause is mended: it comes up by itself, and one end among many that is over is no alarm for long.
        (blocker / 'log').unlink()
        until(lambda: system.status()['pool'], 'the loader does not come back')
        until(lambda: all(end['running'] for end in system.status()['ended']), 'it is not said to run')


def test_a_gateway_that_cannot_start_is_said_by_status_though_nobody_answers(tmp_path):
    state = tmp_path / 'state'
    (state / 'answers.sqlite').mkdir(parents=True)
    (state / 'calibration.toml').write_text('[cost]\nform = "quadratic"\nfixed_ns = 1\ntoken_ps = 1\npair_ps = 1\n')
    config, port = tmp_path / 'cluster.toml', str(free_port())
    config.write_text(toml(SMALL))
    here = ['--config', str(config), '--port', port, '--state-dir', str(state)]
    with open(tmp_path / 'serve.log', 'wb') as log:
        serve = subprocess.Popen([BINARY, 'serve', *here, '--model-path', MODEL], cwd=ROOT, stderr=log)
    try:
        def status():
            done = subprocess.run([BINARY, 'status', *here], cwd=ROOT, capture_output=True, text=True, timeout=60)
            assert done.returncode == 1 and serve.poll() is None, (done.stdout, done.stderr)
            return done.stderr if 'times in a row' in done.stderr else None
        said = until(status, lambda: (tmp_path / 'serve.log').read_text())
        assert 'gateway exited with 1' in said and str(state / 'logs/gateway.log') in said and 'answers.sqlite' in said
    finally:
        serve.terminate()
        serve.wait(60)


def test_racks_by_which_no_pool_can_be_made_end_the_start(tmp_path):
    config = tmp_path / 'cluster.toml'
    places = [str(tmp_path / f'disk{i}') for i in range(12)]
    racks = [0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]
    config.write_text(toml({**SMALL, 'pool': {'memory_bytes': 64 << 20, 'file_bytes': 256 << 20, 'targets': places, 'racks': racks}}))
    for role in ('serve', 'kv-loader'):
        command = [BINARY, role, '--config', str(config), '--port', str(free_port()), '--state-dir', str(tmp_path / 'state')]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, env={**os.environ, 'TRIMTAB_MODEL': MODEL})
        said = done.stderr.splitlines()[-1]
        assert done.returncode == 1 and said.startswith(f'trimtab: pool.racks = {racks}: rack 0 has 3 of 12 nodes'), done.stderr
        assert 'at most 2 nodes' in said and 'leave the racks out' in said
