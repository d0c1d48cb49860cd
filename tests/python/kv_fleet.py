"""A fleet of `trimtab kv-target` processes over directories, for tests of the pool and for its benchmark."""
import json
import os
import pathlib
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))


class Target:
    """One process; `kill` is kill -9, `start` brings it back at the same address with what its directory holds."""

    def __init__(self, directory, capacity='32M', memory=False):
        self.directory, self.capacity, self.memory, self.address, self.process = pathlib.Path(directory), capacity, memory, None, None
        self.start()

    def start(self):
        where = ['--memory'] if self.memory else ['--directory', str(self.directory)]
        listen = self.address or '127.0.0.1:0'
        command = [BINARY, 'kv-target', *where, '--capacity', self.capacity, '--shard-bytes', '1M', '--listen', listen]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if 'ready at' not in line:
            raise RuntimeError(f'kv-target over {self.directory} did not start: {line!r}')
        self.address = line.split()[-1]

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

    @property
    def place(self):
        return 'tcp://' + self.address


class Fleet:
    """Thirteen targets, and the pool commands over them. Blocks are small: 4 layers, 16 KiB."""

    LAYERS = '4096,4096,4096,4096'

    def __init__(self, directory, count=13, layers=LAYERS, **target):
        self.layers = layers
        self.targets = [Target(pathlib.Path(directory) / f'target{i}', **target) for i in range(count)]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for target in self.targets:
            if target.process.poll() is None:
                target.kill()

    def arguments(self, command, *more, places=None):
        return [BINARY, 'pool', command, '--layer-bytes', self.layers, *more, '--targets', *(places or [t.place for t in self.targets])]

    def run(self, command, *more, places=None, timeout=120):
        return subprocess.run(self.arguments(command, *more, places=places), capture_output=True, text=True, timeout=timeout)

    def json(self, command, *more, code=0, **keywords):
        done = self.run(command, '--json', *more, **keywords)
        assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)
