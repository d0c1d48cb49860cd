"""A whole trimtab under `trimtab serve`, for tests: its configuration, its processes, its answers."""
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))
MODEL = os.environ.get('TRIMTAB_MODEL', '')
NAME = 'smollm2-135m-instruct'

# Small enough that several systems can run one after another: less memory, no OCR processes unless a test wants images.
SMALL = {
    'prefill': {'engines': 1, 'ranks': 2, 'tier_bounds_tokens': [512, 2048, 4096], 'step_budget_ms': 1500, 'quota_scope': 'whole_step',
                'chunk_tokens_max': 1024, 'kv_blocks': 72},
    'decode': {'groups': 1, 'ranks': 2, 'kv_blocks': 72, 'max_running': 16},
    'vision': {'machines': 1, 'encoders': 1},
    # A busy machine takes its time, and a prompt whose pool has not answered is computed.
    'pool': {'memory_bytes': 512 << 20, 'file_bytes': 1 << 30, 'answer_ms': 2_000},
}


# Below what the system gives to those that ask for any port, so that none of them takes one between this and its use; each but once.
PORTS = itertools.count(random.randrange(15_000, 25_000))


def free_port():
    for port in PORTS:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(('127.0.0.1', port))
            return port


def until(holds, what, seconds=60):
    """Waits for something true and returns it; `what` is said, or called and said, when it does not come."""
    end = time.monotonic() + seconds
    while not (seen := holds()):
        assert time.monotonic() < end, what() if callable(what) else what
        time.sleep(0.05)
    return seen


def toml(tables):
    lines = []
    for name, table in tables.items():
        lines.append(f'[{name}]')
        lines += [f'{key} = {json.dumps(value)}' for key, value in table.items()]
    return '\n'.join(lines) + '\n'


class Served:
    """One running system. Attributes: url, port, state_dir, process (the supervisor)."""

    def __init__(self, directory, state_dir, overrides=None, ready_s=180, model=None, pool=True):
        """Returns when it is ready. `pool`: and its pool answers, for which readiness waits for a few seconds only."""
        self.port, self.state_dir = free_port(), pathlib.Path(state_dir)
        self.url = f'http://127.0.0.1:{self.port}'
        tables = {name: {**table, **(overrides or {}).get(name, {})} for name, table in SMALL.items()}
        tables |= {name: table for name, table in (overrides or {}).items() if name not in tables}
        config = pathlib.Path(directory) / f'cluster-{self.port}.toml'
        config.write_text(toml(tables))
        self.state_dir.mkdir(parents=True, exist_ok=True)
        calibration = self.state_dir / 'calibration.toml'
        if not calibration.exists():  # fixed costs: tests must not depend on how fast this machine is today
            calibration.write_text('[cost]\nform = "quadratic"\nfixed_ns = 5000000\ntoken_ps = 4000000000\npair_ps = 1000000\n')
        self.arguments = ['--config', str(config), '--port', str(self.port), '--state-dir', str(self.state_dir)]
        self.errors = open(self.state_dir / 'serve.log', 'ab')
        serve = [BINARY, 'serve', *self.arguments, '--model-path', str(model or MODEL)]
        self.process = subprocess.Popen(serve, cwd=ROOT, stderr=self.errors)
        try:
            self.wait_ready(ready_s)
            if pool:
                until(lambda: self.status()['pool'], 'the pool never answers')
        except BaseException:
            self.stop()
            raise

    def wait_ready(self, seconds=180):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError('serve ended: ' + self.log_tail())
            with contextlib.suppress(OSError, urllib.error.URLError):
                if urllib.request.urlopen(self.url + '/health', timeout=2).status == 200:
                    return
            time.sleep(0.05)
        raise RuntimeError(f'not ready after {seconds} s: {self.log_tail()}')

    def log_tail(self):
        names = [self.state_dir / 'serve.log', *sorted((self.state_dir / 'logs').glob('*.log'))]
        return '\n'.join(f'{path.name}: {path.read_text(errors="replace")[-600:]}' for path in names if path.exists())

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(90)  # stage after stage, each with its own patience
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.errors.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=60) as answer:
            return answer.read().decode()

    def status(self):
        return json.loads(self.get('/debug/status'))

    def record(self, request):
        return json.loads(self.get(f'/debug/requests/{request}'))

    def command(self, name, *more):
        """Runs another `trimtab` command on this instance; returns its output."""
        done = subprocess.run([BINARY, name, *self.arguments, *more], cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def anthropic(self):
        import anthropic
        return anthropic.Anthropic(base_url=self.url, api_key='none', max_retries=0, timeout=900)

    def openai(self):
        import openai
        return openai.OpenAI(base_url=self.url + '/v1', api_key='none', max_retries=0, timeout=900)

    def ranks(self, role):
        """Status of every rank (or encoder) of a role."""
        return [rank for engine in self.status()['engines'] if engine['role'] == role for rank in engine['ranks']]

    def kill_rank(self, role, index=0):
        """SIGKILL, as a crashed GPU process would vanish; returns its pid."""
        pid = self.ranks(role)[index]['pid']
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_idle(self, seconds=120):
        """Until nothing is in flight and every rank's blocks are free again, those too that it gives to the pool behind an answer;
        returns the last status."""
        end = time.monotonic() + seconds
        while True:
            status = self.status()
            ranks = [rank for engine in status['engines'] if engine['role'] != 'vision' for rank in engine['ranks']]
            idle = status['requests']['in_flight'] == 0 and status['requests'].get('releases', 0) == 0 and all(
                rank['requests'] == 0 and rank['blocks_free'] == rank['blocks_total'] for rank in ranks)
            if idle or time.monotonic() > end:
                assert idle, json.dumps(status, indent=1)
                return status
            time.sleep(0.05)
