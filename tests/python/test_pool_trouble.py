"""A fleet of which one target's disk is full: `trimtab pool status` says so, and why."""
import os
import subprocess

import pytest

from kv_fleet import BINARY, Fleet, Target

pytestmark = pytest.mark.skipif(not os.access(BINARY, os.X_OK), reason=f'no trimtab binary at {BINARY} (TRIMTAB_BIN names another)')


def test_status_says_why_a_target_takes_no_more(tmp_path):
    small = tmp_path / 'small'
    small.mkdir()
    if subprocess.run(['mount', '-t', 'tmpfs', '-o', 'size=4m', 'tmpfs', str(small)], capture_output=True).returncode != 0:
        pytest.skip('no mounts permitted here')
    try:
        with Fleet(tmp_path, 11, layers='131072,131072,131072,131072', capacity='64M') as fleet:
            fleet.targets.append(Target(small / 'target', capacity='64M'))
            fleet.run('exercise', '--keep', '--blocks', '120')
            report = fleet.json('status', code=2)
            assert report['blocks'] == 120 and report['unreadable'] == 0, report
            troubles = [target['trouble'] for target in report['targets']]
            assert troubles[:11] == [''] * 11 and 'No space left' in troubles[11], troubles
            shown = fleet.run('status').stdout
            assert f'{fleet.targets[11].place} is in trouble: {troubles[11]}\n' in shown, 'whole, however narrow the terminal is'
    finally:
        subprocess.run(['umount', '-l', str(small)], check=True)
