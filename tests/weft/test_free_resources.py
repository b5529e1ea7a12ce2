"""A query on a node's machine leaves the node its memory and its disk."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from weft import free_resources


@pytest.mark.parametrize(
    ("available_kib", "given_bytes"), [(8 << 20, 768 << 20), (512 << 10, 256 << 20), (10 << 10, 96 << 20)]
)
def test_half_of_the_memory_that_is_left_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, available_kib: int, given_bytes: int
) -> None:
    facts = tmp_path / "meminfo"
    facts.write_text(f"MemTotal:       8000000 kB\nMemAvailable:   {available_kib} kB\n")
    monkeypatch.setattr(free_resources, "_MEMORY_FACTS", facts)
    assert free_resources.within_free_memory(768 << 20) == given_bytes
    facts.unlink()
    assert free_resources.within_free_memory(768 << 20) == 768 << 20


def test_half_of_the_space_that_is_left_where_temporary_files_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def disk_usage(path: str) -> shutil._ntuple_diskusage:
        asked.append(path)
        return shutil._ntuple_diskusage(0, 0, 1000)

    monkeypatch.setattr(shutil, "disk_usage", disk_usage)
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    assert (free_resources.within_free_space(400), free_resources.within_free_space(600)) == (400, 500)
    assert asked == [str(tmp_path)] * 2
    monkeypatch.delenv("SQLITE_TMPDIR")
    free_resources.within_free_space(1)
    assert asked[-1] == "/var/tmp"
