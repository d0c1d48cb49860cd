"""Results of a benchmark: one dict per figure, and how they are printed."""
import json
import os
import pathlib
import platform
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BENCH_DIR = ROOT / 'build/release/bench'


def plain(value):
    """A NumPy scalar as the number of Python that it holds, for JSON."""
    return value.item() if hasattr(value, 'item') else value


def result(name, value, unit, goal=None, lower_is_better=True, peer=None, peer_value=None, **more):
    """One figure. `goal` is the bound that it must meet; `peer_value` is what a named peer or physical limit did in the same run.
    more: standard_error, note, or whatever else the JSON form should say."""
    value, goal, peer_value, more = plain(value), plain(goal), plain(peer_value), {key: plain(item) for key, item in more.items()}
    met = None if goal is None else (value <= goal if lower_is_better else value >= goal)
    ratio = None if not peer_value else value / peer_value
    return {'name': name, 'value': value, 'unit': unit, 'goal': goal, 'peer': peer, 'peer_value': peer_value, 'ratio': ratio, 'met': met,
            **more}


def machine():
    model = next((line.split(':', 1)[1].strip() for line in open('/proc/cpuinfo') if line.startswith('model name')), platform.machine())
    return {'cpu': model, 'cores': os.cpu_count(), 'system': platform.platform()}


def google_benchmark(executable, name_filter='.', trace=None, repetitions=5):
    """Runs a Google Benchmark program; returns {name: median ns per iteration} and {name: medians of its counters}."""
    path = BENCH_DIR / executable
    environment = dict(os.environ, TRIMTAB_TRACE=trace or '')
    out = subprocess.run([path, '--benchmark_format=json', f'--benchmark_filter={name_filter}', f'--benchmark_repetitions={repetitions}',
                          '--benchmark_min_time=0.1'], check=True, capture_output=True, text=True, cwd=ROOT, env=environment).stdout
    times, counters = {}, {}
    for run in json.loads(out)['benchmarks']:
        if run.get('run_type') == 'aggregate':
            continue
        scale = {'ns': 1, 'us': 1e3, 'ms': 1e6, 's': 1e9}[run['time_unit']]
        # CPU time, unless the benchmark measures something else itself (then that is its real_time).
        own = '/manual_time' in run['run_name'] or '/real_time' in run['run_name']
        times.setdefault(run['run_name'], []).append(run['real_time' if own else 'cpu_time'] * scale)
        standard = {'cpu_time', 'real_time', 'iterations', 'threads', 'repetitions', 'repetition_index', 'family_index',
                    'per_family_instance_index'}
        for key, value in run.items():
            if key not in standard and isinstance(value, (int, float)):
                counters.setdefault(run['run_name'], {}).setdefault(key, []).append(value)
    return ({name: statistics.median(values) for name, values in times.items()},
            {name: {key: statistics.median(values) for key, values in table.items()} for name, table in counters.items()})


def pick(times, prefix):
    """The figure whose name begins with `prefix`; a clear error when the program has none."""
    for name, value in times.items():
        if name.startswith(prefix):
            return value
    raise KeyError(f'no figure {prefix!r}; the program has {sorted(times)}')


def figure(value, places=None):
    if value is None:
        return ''
    if places is not None:
        return f'{value:.{places}f}'
    return f'{value:,.0f}' if abs(value) >= 1000 else f'{value:.3g}'


def value_of(item):
    """The value as printed, with its standard error when it has one. Balance differs in the third place: 'places' says so."""
    error = item.get('standard_error')
    return figure(item['value'], item.get('places')) + (f' +- {figure(error, item.get("places"))}' if error is not None else '')


def print_table(report):
    rows = [('figure', 'value', 'unit', 'goal', 'met', 'peer', 'peer value', 'ratio')]
    for item in report['results']:
        met = {None: '', True: 'yes', False: 'NO'}[item['met']]
        places = item.get('places')
        rows.append((item['name'], value_of(item), item['unit'], figure(item['goal'], places), met, item['peer'] or '',
                     figure(item['peer_value'], places), figure(item['ratio'])))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    print(f"{report['bench']} on {report['machine']['cores']} x {report['machine']['cpu']}")
    for row in rows:
        cells = [cell.ljust(width) if i in (0, 2, 5) else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print('  '.join(cells).rstrip())


def markdown(report):
    lines = [f"## {report['bench']}", '', f"`./bench {report['bench']}`", '', '| figure | value | unit | goal | met | peer | peer value | ratio |',
             '|---|---|---|---|---|---|---|---|']
    for item in report['results']:
        met = {None: '', True: 'yes', False: '**no**'}[item['met']]
        places = item.get('places')
        lines.append(f"| {item['name']} | {value_of(item)} | {item['unit']} | {figure(item['goal'], places)} | {met} | {item['peer'] or ''} | "
                     f"{figure(item['peer_value'], places)} | {figure(item['ratio'])} |")
    return '\n'.join(lines) + '\n'
