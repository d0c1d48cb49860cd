"""Arrays in and out: NumPy arrays, torch tensors or nested lists become row-major NumPy arrays; what cannot gets a ValueError."""
import operator
import sys

try:
    import numpy
except ImportError:  # the rest of trimtab does without
    raise ImportError('trimtab.experts needs the PyPI package numpy: pip install numpy') from None

COUNT_TYPES = (numpy.int32, numpy.int64, numpy.float32, numpy.float64)


def is_torch(value):
    """Without importing torch: who passes a tensor has imported it."""
    torch = sys.modules.get('torch')
    return torch is not None and isinstance(value, torch.Tensor)


def like(array, example):
    """A NumPy array as what `example` is: a torch tensor on the CPU, or itself."""
    return sys.modules['torch'].from_numpy(array) if is_torch(example) else array


def _to_numpy(value, name, shape):
    if is_torch(value):
        torch = sys.modules['torch']
        value = value.detach().cpu()
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()  # NumPy has no bfloat16
        return value.numpy()
    try:
        return numpy.asarray(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f'{name} is no array: {error}; pass {shape}') from None


def _check_dimensions(array, name, shape):
    dimensions = shape.count(',') + 1
    if array.ndim != dimensions:
        raise ValueError(f'{name} has shape {array.shape}: pass {shape}')


def counts(value, name, shape):
    """Loads: any real type, as one of COUNT_TYPES; the values are checked where they are used. `shape` in words: '[steps, experts]'."""
    array = _to_numpy(value, name, shape)
    if array.dtype.kind not in 'iuf':
        raise ValueError(f'{name} has dtype {array.dtype}: pass counts of tokens as int32, int64, float32 or float64')
    _check_dimensions(array, name, shape)
    if array.dtype.type not in COUNT_TYPES:
        wanted = numpy.float64 if array.dtype.itemsize > 4 or array.dtype == numpy.uint32 else numpy.float32
        array = array.astype(wanted if array.dtype.kind == 'f' or array.dtype.itemsize > 4 else numpy.int64)
    return numpy.ascontiguousarray(array, dtype=array.dtype.newbyteorder('='))


def integers(value, name, shape, dtype=numpy.int32):
    """Ids: whole numbers that fit `dtype`."""
    array = _to_numpy(value, name, shape)
    _check_dimensions(array, name, shape)
    if array.dtype.kind not in 'iu' and array.size > 0:
        raise ValueError(f'{name} has dtype {array.dtype}: pass whole numbers (int32 or int64)')
    limits = numpy.iinfo(dtype)
    if array.size > 0 and (array.min() < limits.min or array.max() > limits.max):
        wrong = array.min() if array.min() < limits.min else array.max()
        raise ValueError(f'{name} holds {wrong}, which does not fit {numpy.dtype(dtype).name}')
    return numpy.ascontiguousarray(array, dtype=dtype)


def whole(value, name, least=None):
    """One count as an int that fits 32 bits; least: the least that is meant, for the message."""
    try:
        if isinstance(value, (bool, numpy.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise ValueError(f'{name} = {value!r} is not a whole number') from None
    if not -2**31 <= number < 2**31:
        raise ValueError(f'{name} = {number} does not fit 32 bits')
    if least is not None and number < least:
        raise ValueError(f'{name} = {number}: use at least {least}')
    return number


def choice(value, name, names):
    """The member of `names` (a dict) that `value` names."""
    try:
        return names[value]
    except (KeyError, TypeError):
        raise ValueError(f'{name} = {value!r}: use {" or ".join(map(repr, names))}') from None
