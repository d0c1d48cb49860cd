"""Dumps of expert counts as engines write them, made without their packages: what `torch.save` writes is a zip with a pickle."""
import collections
import io
import json
import os
import pathlib
import pickle
import subprocess
import sys
import types
import zipfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get('TRIMTAB_BIN', str(ROOT / 'build/release/bin/trimtab'))
STORAGES = {'int32': 'IntStorage', 'int64': 'LongStorage', 'float32': 'FloatStorage', 'float64': 'DoubleStorage', 'int16': 'ShortStorage'}


def run(*arguments, check=True, **environment):
    """`trimtab experts ...`; returns the finished process."""
    done = subprocess.run([BINARY, 'experts', *map(str, arguments)], capture_output=True, text=True, timeout=300,
                          env={**os.environ, 'LANG': 'C.UTF-8', **environment})
    assert not check or done.returncode == 0, f'{arguments}: {done.stderr}'
    return done


def run_json(*arguments):
    return json.loads(run(*arguments, '--json').stdout)


class Storage:
    def __init__(self, key, array):
        self.key, self.array = key, array


class Tensor:
    def __init__(self, storage, rebuild):
        self.storage, self.rebuild = storage, rebuild

    def __reduce_ex__(self, _):
        array = self.storage.array
        strides = tuple(stride // array.itemsize for stride in array.strides)
        return self.rebuild, (self.storage, 0, array.shape, strides, False, collections.OrderedDict())


def torch_names():
    """Modules whose classes and functions pickle under torch's names."""
    torch, inner = types.ModuleType('torch'), types.ModuleType('torch._utils')
    for name in STORAGES.values():
        setattr(torch, name, type(name, (), {'__module__': 'torch'}))

    def rebuild(*_):
        raise AssertionError('a dump is not unpickled here')
    rebuild.__module__, rebuild.__qualname__, rebuild.__name__ = 'torch._utils', '_rebuild_tensor_v2', '_rebuild_tensor_v2'
    inner._rebuild_tensor_v2 = rebuild
    return {'torch': torch, 'torch._utils': inner}


def torch_save(path, value):
    """Writes `value` (dicts, lists, numbers, numpy arrays as tensors) as torch.save does."""
    names, storages = torch_names(), []

    class Pickler(pickle.Pickler):
        def persistent_id(self, item):
            if not isinstance(item, Storage):
                return None
            kind = getattr(names['torch'], STORAGES[str(item.array.dtype)])
            return 'storage', kind, item.key, 'cuda:0', item.array.size

    def tensors(item):
        if isinstance(item, np.ndarray):
            storages.append(Storage(str(len(storages)), np.ascontiguousarray(item)))
            return Tensor(storages[-1], names['torch._utils']._rebuild_tensor_v2)
        if isinstance(item, dict):
            return {key: tensors(each) for key, each in item.items()}
        return [tensors(each) for each in item] if isinstance(item, list) else item

    saved = {name: sys.modules.get(name) for name in names}
    sys.modules.update(names)
    try:
        out = io.BytesIO()
        Pickler(out, protocol=2).dump(tensors(value))
    finally:
        for name, module in saved.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module
    with zipfile.ZipFile(path, 'w', zipfile.ZIP_STORED) as archive:
        archive.writestr('dump/data.pkl', out.getvalue())
        archive.writestr('dump/byteorder', 'little')
        for storage in storages:
            archive.writestr(f'dump/data/{storage.key}', storage.array.tobytes())
        archive.writestr('dump/version', '3\n')
    return path


def skewed(steps=30, layers=2, experts=16, seed=0):
    """Counts with a few hot experts, int64 [steps, layers, experts]."""
    rng = np.random.default_rng(seed)
    weight = rng.lognormal(0, 1, (layers, experts))
    return rng.poisson(200 * weight / weight.mean(1, keepdims=True), (steps, layers, experts))


def balance(maps, loads, ranks):
    """Sum over steps and layers of the busiest rank / of the mean rank, from the definition."""
    peaks = means = 0.0
    for layer in range(loads.shape[1]):
        slots = np.asarray(maps[layer])
        copies = np.bincount(slots, minlength=loads.shape[2])
        rank = (loads[:, layer][:, slots] / copies[slots]).reshape(len(loads), ranks, -1).sum(2)
        peaks, means = peaks + rank.max(1).sum(), means + rank.mean(1).sum()
    return peaks / means


def check_map(maps, experts, ranks):
    """Every expert has a slot; no rank holds one twice."""
    for row in np.asarray(maps):
        assert set(row) == set(range(experts))
        for held in row.reshape(ranks, -1):
            assert len(set(held)) == len(held), held
