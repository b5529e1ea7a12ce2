"""Each worker imports a part of the tests first; together they import all."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests import first_imports


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("files", [0, 1, 7, 100])
def test_each_file_is_in_one_part(files: int, count: int) -> None:
    names = [Path(f"test_{number}.py") for number in range(files)]
    parts = [first_imports.part(names, number, count) for number in range(count)]
    assert [name for part in parts for name in part] == names
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_only_a_run_of_all_tests_imports_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(first_imports.TESTS.parent)
    assert first_imports.are_of_all(["tests"])
    assert first_imports.are_of_all([str(first_imports.TESTS)])
    assert not first_imports.are_of_all(["tests/config"])
    assert not first_imports.are_of_all(["tests", "docs"])


def test_a_module_that_cannot_be_imported_is_left_to_pytest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_imports, "TESTS", tmp_path)
    monkeypatch.syspath_prepend(tmp_path.parent)
    (tmp_path / "test_that_is_skipped.py").write_text("import pytest\npytest.skip('', allow_module_level=True)\n")
    (tmp_path / "test_that_is_wrong.py").write_text("1 / 0\n")
    (tmp_path / "test_which_is_good.py").write_text("")
    first_imports.import_part(0, 1)
    assert f"{tmp_path.name}.test_which_is_good" in sys.modules
