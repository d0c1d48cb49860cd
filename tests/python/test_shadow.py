"""A shadow decode policy beside the live one, against the running system: its metrics and status, and `trimtab replay` of it."""
import concurrent.futures
import json
import re
import subprocess

import pytest

from served import BINARY, MODEL, NAME, Served, toml, until

pytestmark = pytest.mark.skipif(not MODEL, reason='needs the SmolLM2 GGUF: ./test sets TRIMTAB_MODEL')

REQUESTS = 12


def metrics(served):
    """Values by name and labels, as /metrics writes them."""
    return {match[1]: float(match[2]) for match in re.finditer(r'^(trimtab_shadow\S+) (\S+)$', served.get('/metrics'), re.M)}


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    """Live round robin, so that a policy that looks at loads has something to change."""
    directory = tmp_path_factory.mktemp('shadow')
    overrides = {'decode': {'policy': 'round_robin'}, 'shadow': {'decode_policy': 'total_tokens'}}
    with Served(directory, directory / 'state', overrides) as running:
        client = running.openai()

        def ask(n):  # every second one is long: round robin puts all of those on one rank
            length = 24 if n % 2 == 0 else 2
            text = f'{n}. ' + 'Tell me a story. ' * (20 if n % 2 == 0 else 1)
            messages = [{'role': 'user', 'content': text}]
            return client.chat.completions.create(model=NAME, max_tokens=length, temperature=0, messages=messages)
        with concurrent.futures.ThreadPoolExecutor(6) as pool:
            for answer in pool.map(ask, range(REQUESTS)):
                assert answer.choices
        running.wait_idle()
        yield running


def test_the_shadow_decides_beside_and_its_metrics_say_what(served):
    def brought_up():  # metrics are, every 0.1 s
        seen, shadow = metrics(served), served.status()['shadow']
        ratio = seen.get('trimtab_shadow_decode_peak_over_mean{account="live",of="kv"}')
        return (seen, shadow) if ratio == pytest.approx(shadow['live']['kv_peak_over_mean'], rel=1e-6) else None
    seen, shadow = until(brought_up, lambda: (metrics(served), served.status()['shadow']))
    assert shadow['decode_policy'] == 'total_tokens' and served.status()['decode_policy'] == 'round_robin'
    assert seen['trimtab_shadow_decode_decisions_total'] == shadow['decisions'] == REQUESTS
    assert seen['trimtab_shadow_decode_changed_total'] == shadow['changed']
    assert len(shadow['first_changes']) == min(shadow['changed'], 10)
    assert seen['trimtab_shadow_decode_seconds_total'] > 0
    for account in 'live', 'shadow':
        for of, key in ('kv', 'kv_peak_over_mean'), ('running', 'running_peak_over_mean'):
            labels = f'{{account="{account}",of="{of}"}}'
            ratio = seen['trimtab_shadow_decode_peak_over_mean' + labels]
            assert ratio == pytest.approx(shadow[account][key], rel=1e-6)
            assert 1 <= ratio <= 2, 'two ranks'
            whole = seen['trimtab_shadow_decode_peak_over_mean_seconds_total' + labels]
            assert whole / seen['trimtab_shadow_decode_seconds_total'] == pytest.approx(ratio, rel=1e-5)


def test_replay_of_the_log_says_the_same(served):
    """The shadow is `trimtab replay` while the log is written, so the recorded decisions must agree to the digit."""
    command = [BINARY, 'replay', str(served.state_dir / 'decisions'), '--policy', 'total_tokens', '--json',
               '--max-running', '16', '--kv-blocks', '72']
    shadow = served.status()['shadow']

    def replay():
        out = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert out.returncode == 0, out.stderr
        return json.loads(out.stdout)[0]

    def written():  # the log is, every 0.1 s
        return (seen := replay())['recorded'] == pytest.approx(shadow['live'], rel=1e-6) and seen
    replayed = until(written, lambda: (replay(), shadow))
    for key in 'decisions', 'changed', 'held':
        assert replayed[key] == shadow[key]
    assert replayed['replayed'] == pytest.approx(shadow['shadow'], rel=1e-6)


def test_an_unknown_shadow_policy_stops_the_start_with_the_nearest(tmp_path):
    config = tmp_path / 'cluster.toml'
    config.write_text(toml({'shadow': {'decode_policy': 'dualpaths'}}))
    out = subprocess.run([BINARY, 'serve', '--config', str(config), '--state-dir', str(tmp_path / 'state'), '--model-path', MODEL],
                         capture_output=True, text=True, timeout=120)
    assert out.returncode != 0
    assert 'shadow.decode_policy' in out.stderr and 'dualpath' in out.stderr
