"""The documentation names tests for what it promises: they must exist."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def named_tests(page):
    """(file, test) of every `room/file_test` (Name, Name) and `test_file.py` (test_name) on the page's tables."""
    for line in (ROOT / 'docs' / page).read_text().splitlines():
        for file, names in re.findall(r'`([\w/]+_test|test_\w+\.py)` \(([\w, ]+)\)', line):
            if line.startswith('| '):
                yield from ((file, name) for name in names.split(', '))


def exists(file, name):
    python = file.endswith('.py')
    path = ROOT / 'tests/python' / file if python else ROOT / 'src' / f'{file}.cpp'
    test = rf'^def {name}\(' if python else rf'^(TEST|TEST_F|TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\(\w+,\s*{name}\b'
    return path.is_file() and re.search(test, path.read_text(), re.M) is not None


@pytest.mark.parametrize('page, least', [('kv.md', 60)])
def test_every_test_that_a_page_names_exists(page, least):
    named = list(named_tests(page))
    assert len(named) >= least, 'the tables are not read as they are written'
    assert [each for each in named if not exists(*each)] == []
