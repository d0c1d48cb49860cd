"""`./bench` before anything is installed or built: what it names and what it refuses must not cost a build."""
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def bench(tmp_path):
    """./bench in a checkout whose setup says that it ran, and fails."""
    shutil.copy(ROOT / 'bench', tmp_path / 'bench')
    shutil.copytree(ROOT / 'tools/benchmarks', tmp_path / 'tools/benchmarks', ignore=shutil.ignore_patterns('__pycache__'))
    (tmp_path / 'tools/setup').write_text('#!/bin/sh\necho setup ran\nexit 7\n')
    (tmp_path / 'tools/setup').chmod(0o755)
    return lambda *arguments: subprocess.run([tmp_path / 'bench', *arguments], capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize('arguments', [('--list',), ('--help',), ('kv', '--help'), ()])
def test_names_are_told_without_a_build(bench, arguments):
    done = bench(*arguments)
    assert done.returncode == (0 if arguments else 2), done
    assert 'kv' in done.stdout and 'eviction' in done.stdout and 'setup ran' not in done.stdout


@pytest.mark.parametrize('arguments, words', [(('kvv',), ('kvv', 'eviction')), (('kv', '--jsn'), ('--jsn',))])
def test_mistakes_are_told_without_a_build(bench, arguments, words):
    done = bench(*arguments)
    assert done.returncode == 2 and 'setup ran' not in done.stdout
    assert all(word in done.stderr for word in words)


def test_a_benchmark_is_set_up_first(bench):
    done = bench('text')
    assert done.returncode == 7 and 'setup ran' in done.stdout
