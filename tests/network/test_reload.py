"""Changed files are read again; what cannot be used changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.edge_node.counters import ListenerCounters
from weft.network.reload import Reloads, Watched


def number(path: Path) -> int:
    return int(path.read_text())


async def test_what_changes_is_read_again_and_what_is_bad_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counters, path, used = ListenerCounters(), tmp_path / "file", list[int]()
    path.write_text("1")
    reloads = Reloads(counters)
    reloads.add(Watched("numbers", [str(path)], lambda: number(path), used.append))
    await reloads.check()
    assert used == []
    path.write_text("22")
    await reloads.check()
    assert used == [22]
    for broken in (lambda: path.write_text("bad"), path.unlink):
        broken()
        await reloads.check()
        await reloads.check()
    assert used == [22]
    assert caplog.text.count("the numbers cannot be used, the former ones stay in use") == 2
    assert f"in use: {path}: there is no such file" in caplog.text
    path.write_text("3")
    await reloads.check(all_of_them=True)
    assert used == [22, 3]
    assert (counters.reloads, counters.reload_failures) == (2, 2)
