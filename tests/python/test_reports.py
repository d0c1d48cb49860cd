"""Files that commands write: pages opened in a real browser, CSV, the timeline.

The browser is Debian's chromium (or Chrome) driven by playwright; `./test --peers` installs both. Without them only these
tests are skipped.
"""
import csv
import html
import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
from workload import trace_csv

BIN = os.environ.get('TRIMTAB_BIN', 'build/release/bin/trimtab')
CHROMIUM = os.environ.get('CHROMIUM') or next(filter(None, map(shutil.which, ['chromium', 'chromium-browser', 'google-chrome'])), None)
HOSTILE = '<img src=x onerror=alert(1)>'
FLEET = """
[model]
profile = "v3-like"
[prefill]
engines = 2
ranks = 2
[decode]
groups = 2
ranks = 4
kv_blocks = 2000
"""


def trimtab(*arguments):
    return subprocess.run([BIN, *map(str, arguments)], capture_output=True, text=True, timeout=120, env=os.environ | {'COLUMNS': '120'})


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp('reports')
    # The name of a trace is text from outside, which pages show.
    (folder / f'{HOSTILE}.csv').write_text(trace_csv(seed=5, requests=400, median_tokens=4000, sigma=1.3))
    (folder / 'fleet.toml').write_text(FLEET)
    return folder


@pytest.fixture(scope='module')
def written(folder):
    """One comparison with everything written; gives its JSON."""
    out = trimtab('simulate', folder / 'fleet.toml', '--trace', folder / f'{HOSTILE}.csv', '--json',
                  '--decode-policy', 'waterline', 'round_robin', '--report', folder / 'out.html', '--csv', folder / 'csv',
                  '--requests', folder / 'requests.csv',
                  '--timeline', folder / 'timeline.json', '--timeline-from', 10, '--timeline-for', 20)
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)


@pytest.fixture(scope='module')
def browser():
    playwright = pytest.importorskip('playwright.sync_api', reason='playwright is not installed (./test --peers does)')
    if CHROMIUM is None:
        pytest.skip('no chromium on PATH (./test --peers installs it; CHROMIUM names another)')
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=CHROMIUM, args=['--no-sandbox', '--disable-gpu'])
        yield chromium
        chromium.close()


@pytest.fixture
def opened(browser):
    """Opens a file; fails on any error, dialog or request that leaves the file."""
    pages, wrong = [], []

    def open_page(path, **context):
        page = browser.new_context(**context).new_page()
        page.set_default_timeout(120_000)  # busy machines draw slowly
        page.on('pageerror', lambda error: wrong.append(str(error)))
        page.on('console', lambda message: wrong.append(message.text) if message.type == 'error' else None)
        page.on('dialog', lambda dialog: (wrong.append('a dialog: ' + dialog.message), dialog.dismiss()))
        page.on('request', lambda request: wrong.append(request.url) if not request.url.startswith('file:') else None)
        page.goto(pathlib.Path(path).as_uri())
        pages.append(page)
        return page
    yield open_page
    for page in pages:
        page.context.close()
    assert wrong == []


def rows(path):
    with open(path, newline='') as file:
        return list(csv.DictReader(file))


def overlapping_labels(page):
    """Texts of one drawing that lie on one another."""
    return page.evaluate("""() => {
      const bad = [];
      for (const svg of document.querySelectorAll('svg')) {
        const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]).filter(b => b[1].width > 0);
        for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
          const [a, b] = [boxes[i][1], boxes[j][1]];
          const x = Math.min(a.right, b.right) - Math.max(a.left, b.left), y = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
          if (x > 1 && y > 3) bad.push([svg.getAttribute('aria-label'), boxes[i][0], boxes[j][0]]);
        }
      }
      return bad;
    }""")


def test_the_page_shows_what_the_json_says(folder, written, opened):
    page = opened(folder / 'out.html')
    assert HOSTILE in page.inner_text('h1'), 'the name of the trace is text'
    titles = page.locator('h2').all_inner_texts()
    assert titles == ['Policy against policy', 'Where the steps’ time goes'.replace('’', "'"), 'By context', 'Over time']
    table = page.locator('#summary table')
    headers = table.locator('th').all_inner_texts()
    for row, run in zip(table.locator('tbody tr').all(), written['runs'], strict=True):
        cells = dict(zip(headers, row.locator('td').all_inner_texts()))
        assert cells['decode'] == run['decode_policy']
        assert float(cells['TTFT p50 s']) == pytest.approx(run['all']['ttft']['p50_s'], rel=0.01, abs=0.001)
        assert float(cells['TPOT p50 ms']) == pytest.approx(run['all']['tpot']['p50_s'] * 1e3, rel=0.01)
        assert float(cells['decode ideal %']) == pytest.approx(100 * run['decode_steps']['share_of_ideal'], abs=0.01)
    assert table.locator('.best').count() >= 2
    shares = page.locator('#loss figure').nth(1).locator('em').all_inner_texts()
    assert [float(share.split()[0]) for share in shares] == pytest.approx(
        [100 * run['decode_steps']['share_of_ideal'] for run in written['runs']], abs=0.06)
    for bar in page.locator('#loss .track').all():
        widths = [float(width) for width in re.findall(r'width: *([0-9.]+)%', bar.inner_html())]
        assert sum(widths) == pytest.approx(100, abs=0.01)


def test_charts_answer_the_pointer(folder, written, opened):
    page = opened(folder / 'out.html')
    chart = page.locator('figure', has=page.locator('figcaption', has_text=re.compile('^Time to first token'))).first
    chart.scroll_into_view_if_needed()
    box = chart.locator('svg').bounding_box()
    page.mouse.move(box['x'] + box['width'] / 2, box['y'] + box['height'] / 2)
    tip = page.locator('#tip')
    assert tip.is_visible()
    assert re.match(r'from [0-9.]+ s\nbelow 16K: ([0-9.]+|none) s', tip.inner_text()), tip.inner_text()
    heat = page.locator('figure', has=page.locator('figcaption', has_text='Decode ranks: KV')).first
    heat.scroll_into_view_if_needed()
    box = heat.locator('svg').bounding_box()
    page.mouse.move(box['x'] + box['width'] / 2, box['y'] + box['height'] / 2)
    assert re.match(r'[01]\.[0-3], from .* s\n[0-9,]+ tokens', tip.inner_text()), tip.inner_text()
    page.mouse.move(2, 2)
    assert not tip.is_visible()


@pytest.mark.parametrize('width, scheme', [(1280, 'light'), (1280, 'dark'), (360, 'light'), (360, 'dark')])
def test_the_page_reads_on_a_telephone_and_in_the_dark(folder, written, opened, width, scheme):
    page = opened(folder / 'out.html', viewport={'width': width, 'height': 800}, color_scheme=scheme)
    page.locator('details:not([open])').first.locator('summary').click()
    assert page.evaluate('document.documentElement.scrollWidth') <= width, 'only tables scroll sideways'
    lightness = [int(part) for part in re.findall(r'\d+', page.evaluate('getComputedStyle(document.body).backgroundColor'))][:3]
    assert (max(lightness) < 60) if scheme == 'dark' else (min(lightness) > 240)
    sizes = page.evaluate("""() => [...document.querySelectorAll('svg')].filter(s => s.checkVisibility())
        .map(s => 12 * s.getBoundingClientRect().width / s.viewBox.baseVal.width)""")
    assert sizes and min(sizes) > 7.5, 'letters of the charts, in pixels'
    assert overlapping_labels(page) == []


def test_the_same_run_writes_the_same_bytes(folder, written, tmp_path):
    again = trimtab('simulate', folder / 'fleet.toml', '--trace', folder / f'{HOSTILE}.csv', '--decode-policy', 'waterline', 'round_robin',
                    '--report', tmp_path / 'out.html', '--csv', tmp_path / 'csv')
    assert again.returncode == 0, again.stderr
    assert (tmp_path / 'out.html').read_bytes() == (folder / 'out.html').read_bytes()
    for path in (folder / 'csv').iterdir():
        assert (tmp_path / 'csv' / path.name).read_bytes() == path.read_bytes()


def test_csv_files_add_up_to_the_run(folder, written):
    runs = rows(folder / 'csv/runs.csv')
    assert [run['decode_policy'] for run in runs] == ['waterline', 'round_robin']
    for run, said in zip(runs, written['runs']):
        assert int(run['finished']) == said['finished'] == 400
        assert float(run['ttft_p99_s']) == pytest.approx(said['all']['ttft']['p99_s'], abs=1e-6)
        parts = [float(value) for name, value in run.items() if name.startswith('decode_') and name.endswith('_share')]
        assert sum(parts) == pytest.approx(1, abs=1e-4)
        series = [row for row in rows(folder / 'csv/series.csv') if row['decode_policy'] == run['decode_policy']]
        assert sum(float(row['arrivals']) for row in series) == sum(float(row['finished']) for row in series) == 400
        assert sum(float(row['prompt_tokens']) for row in series) == said['prompt_tokens']
    tiers = rows(folder / 'csv/tiers.csv')
    assert sum(int(row['requests']) for row in tiers) == 800
    ranks = rows(folder / 'csv/ranks.csv')
    decode = {(int(row['engine']), int(row['rank'])) for row in ranks if row['role'] == 'decode'}
    assert decode == {(engine, rank) for engine in range(2) for rank in range(4)}
    counted = sum(int(row['count']) for row in rows(folder / 'csv/tier_series.csv') if row['of'] == 'ttft')
    assert counted == 800
    requests = rows(folder / 'requests.csv')
    assert len(requests) == 800
    mean = sum(float(row['ttft_s']) for row in requests[:400]) / 400
    assert mean == pytest.approx(written['runs'][0]['all']['ttft']['mean_s'], rel=1e-4)


def test_the_timeline_is_a_slice_in_chromes_format(folder, written):
    trace = json.loads((folder / 'timeline.json').read_text())
    events = trace['traceEvents']
    steps = [event for event in events if event['ph'] == 'X']
    assert steps and all(event['ts'] + event['dur'] >= 10e6 and event['ts'] <= 30e6 for event in steps)
    by_engine = {}
    for event in steps:
        by_engine.setdefault((event['pid'], event['tid']), []).append(event)
    assert len(by_engine) == 4, 'two prefill engines, two decode groups'
    for of in by_engine.values():
        of.sort(key=lambda event: event['ts'])
        for before, after in zip(of, of[1:]):
            assert before['ts'] + before['dur'] <= after['ts'] + 0.002, 'steps of one engine follow one another'
    opened = [(event['id'], event['name']) for event in events if event['ph'] == 'b']
    closed = [(event['id'], event['name']) for event in events if event['ph'] == 'e']
    assert sorted(opened) == sorted(closed) and {name for _, name in opened} == {'queued', 'prefill', 'decode'}
    starts = {event['id']: event for event in events if event['ph'] == 's'}
    ends = {event['id']: event for event in events if event['ph'] == 'f'}
    assert starts.keys() == ends.keys() and len(starts) > 10
    for flow, start in starts.items():
        end = ends[flow]
        assert start['ts'] <= end['ts'] and (start['pid'], end['pid']) == (1, 2)
        for event in (start, end):  # a flow holds on to the slice around it
            of = by_engine[(event['pid'], event['tid'])]
            assert any(step['ts'] - 0.002 <= event['ts'] <= step['ts'] + step['dur'] + 0.002 for step in of)
    names = {event['args'].get('name') for event in events if event['ph'] == 'M'}
    assert {'prefill engines', 'decode groups', 'requests', 'engine 1', 'group 0'} <= names


@pytest.mark.parametrize('arguments, said', [
    (['--report', '/nowhere/out.html'], '--report /nowhere/out.html: cannot write'),
    (['--csv', '/proc/none'], '--csv /proc/none'),
    (['--timeline', 'HERE', '--timeline-for', '0'], 'a length above 0 s'),
    (['--timeline', 'HERE', '--timeline-from', '1e6'], 'nothing happened from 1e+06 s'),
])
def test_what_cannot_be_written_is_said(folder, tmp_path, arguments, said):
    arguments = [str(tmp_path / 'out.json') if argument == 'HERE' else argument for argument in arguments]
    out = trimtab('simulate', folder / 'fleet.toml', '--trace', folder / f'{HOSTILE}.csv', *arguments)
    assert out.returncode == 1 and said in out.stderr, out.stderr


PARTS = FLEET + """
[vision]
machines = 2
encoders = 2
[simulation]
machine_network_bytes_per_s = 2e9
[simulation.storage]
nodes = 3
read_bytes_per_s = 1e9
[simulation.experts]
policy = "repair"
layers = 1
[simulation.entrypoints]
count = 2
[[fault]]
kind = "engine"
role = "decode"
targets = [1]
at_s = 20
for_s = 5
start_up_s = 5
[[fault]]
kind = "entrypoint"
targets = [0]
at_s = 30
for_s = 2
"""


@pytest.fixture(scope='module')
def parts(folder):
    """A run that has everything that only some have; gives its JSON."""
    (folder / 'parts.toml').write_text(PARTS)
    with open(folder / 'parts.jsonl', 'w') as trace:
        for i in range(300):
            ids = [i % 7 * 1000 + k for k in range(4)] + [10**6 + i * 100 + k for k in range(i % 9)]
            trace.write(json.dumps({'timestamp': i * 200, 'input_length': 512 * len(ids), 'output_length': 200, 'hash_ids': ids}) + '\n')
    out = trimtab('simulate', folder / 'parts.toml', '--trace', folder / 'parts.jsonl', '--json',
                  '--report', folder / 'parts.html', '--csv', folder / 'parts')
    assert out.returncode == 0, out.stderr
    return json.loads(out.stdout)['runs'][0]


def test_parts_that_only_some_runs_have_are_in_every_file(folder, parts):
    page = (folder / 'parts.html').read_text()
    titles = [html.unescape(title) for title in re.findall('<h2[^>]*>(.*?)</h2>', page)]
    assert titles[3:] == ['Experts on their ranks', 'Faults', 'Storage nodes', "Machines' networks", 'Over time']
    assert page.count('class="mark"') >= 4 and 'decode group 1</title>' in page and 'entrypoint 0</title>' in page
    assert 'src=' not in page.replace(HOSTILE, '') and 'href="http' not in page, 'it stands alone'
    outcomes = parts['outcomes']
    assert outcomes['faults']['engines_lost'] == 1 and outcomes['faults']['steps_lost'] == 1
    assert [(fault['kind'], fault['from_s']) for fault in outcomes['fault_times']] == [
        ('engine', pytest.approx(20, abs=3)), ('entrypoint', pytest.approx(30, abs=3))]
    faults = rows(folder / 'parts/faults.csv')
    assert [(row['kind'], row['role'], row['target']) for row in faults] == [('engine', 'decode', '1'), ('entrypoint', '', '0')]
    assert [float(row['until_s']) - float(row['from_s']) for row in faults] == pytest.approx([10, 2], abs=1e-5)
    nodes = rows(folder / 'parts/storage_nodes.csv')
    assert [int(row['reads']) for row in nodes] == [node['reads'] for node in outcomes['storage']['nodes']] and len(nodes) == 3
    assert all(0 < int(row['blocks_found']) < int(row['blocks_asked']) for row in nodes)
    series = rows(folder / 'parts/series.csv')
    assert sum(float(row['arrivals']) for row in series) == parts['submitted'] == 300
    assert sum(float(row['finished']) for row in series) == parts['finished']
    assert sum(float(row['failed']) for row in series) == parts['failed']
    networks = rows(folder / 'parts/networks.csv')
    assert [float(row['bytes']) for row in networks] == pytest.approx(outcomes['network']['machine_bytes'], abs=1)
    placed = rows(folder / 'parts/experts.csv')
    for role, of in [('prefill', 'prefill_engine_0'), ('decode', 'decode_group_0')]:
        for when, key in [('start', 'rank_loads_before'), ('end', 'rank_loads_after')]:
            loads = outcomes['experts'][of][key]
            shares = [0] * len(loads)
            for row in placed:
                if (row['role'], row['placed_at']) == (role, when):
                    shares[int(row['rank'])] += float(row['share_of_choices'])
            assert [share * len(loads) for share in shares] == pytest.approx(loads, abs=1e-4)
            assert sum(shares) == pytest.approx(1, abs=1e-4)


def test_the_page_of_all_parts_reads_well(folder, parts, opened):
    page = opened(folder / 'parts.html')
    assert page.locator('#experts figure').count() == 6
    assert overlapping_labels(page) == []


def test_capacity_has_a_page_of_the_rate_it_found(folder, opened):
    out = trimtab('simulate', folder / 'fleet.toml', '--trace', folder / f'{HOSTILE}.csv', '--capacity', '--json',
                  '--report', folder / 'capacity.html')
    assert out.returncode == 0, out.stderr
    page = opened(folder / 'capacity.html')
    assert f'{json.loads(out.stdout)["runs"][0]["rate"]:.4g}' in page.locator('#summary table').inner_text()
    assert page.locator('#time svg').count() >= 10


@pytest.fixture(scope='module')
def loads(folder):
    path = folder / 'loads.npz'
    out = trimtab('experts', 'synthesize', '--experts', 64, '--layers', 3, '--steps', 200, '--ep-size', 8, '--output', path)
    assert out.returncode == 0, out.stderr
    return path


def test_an_expert_plan_has_a_page_of_ranks_before_and_after(folder, loads, opened):
    out = trimtab('experts', 'plan', loads, '--ep-size', 8, '--num-redundant-experts', 16, '--json', '--report', folder / 'plan.html')
    assert out.returncode == 0, out.stderr
    plan = json.loads(out.stdout)
    page = opened(folder / 'plan.html', viewport={'width': 1280, 'height': 900})
    assert f'{plan["balance_before"]:.4f} before' in page.inner_text('#balance')
    assert f'{plan["balance"]:.4f} after' in page.inner_text('#balance')
    captions = page.locator('figcaption').all_inner_texts()
    assert sum('before' in caption for caption in captions) == sum('after' in caption for caption in captions) == 2
    assert overlapping_labels(page) == []
    assert page.locator('#layers tbody tr').count() == 4, 'all, and three layers'


@pytest.mark.parametrize('command', [
    ['evaluate', '--ep-size', 8, '--num-redundant-experts', 16, '--rolling'],
    ['evaluate', '--ep-size', 8, '--num-redundant-experts', 16],
    ['advise', '--ep-size', '4,8', '--redundant-per-rank', '0,2'],
])
def test_the_other_expert_commands_have_pages_too(folder, loads, opened, command):
    path = folder / 'experts.html'
    out = trimtab('experts', command[0], loads, *command[1:], '--report', path)
    assert out.returncode == 0, out.stderr
    page = opened(path, viewport={'width': 360, 'height': 800})
    assert page.locator('figure').count() >= 2 and page.locator('table').count() >= 1
    assert page.evaluate('document.documentElement.scrollWidth') <= 360
    assert overlapping_labels(page) == []
