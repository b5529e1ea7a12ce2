"""The SQLite file, opened whatever state it is in."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from weft.edge_node.sessions.database import open_database, primary_code
from weft.storage.filesystem import OSFileSystem


def schema(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")


def opened(path: Path) -> tuple[list[int], str | None]:
    """The numbers of a file, one more than before; and where a damaged one was set aside."""
    database, aside = open_database(str(path), schema, OSFileSystem())
    numbers = [number for (number,) in database.execute("SELECT number FROM numbers")]
    database.execute("INSERT INTO numbers VALUES (?)", (len(numbers),))
    database.close()
    return numbers, aside


def test_what_was_written_is_there_again(tmp_path: Path) -> None:
    path = tmp_path / "state"
    assert opened(path) == ([], None)
    assert opened(path) == ([0], None)


def test_no_other_user_may_read_it(tmp_path: Path) -> None:
    path, mask = tmp_path / "state", os.umask(0o022)
    try:
        for mode in (None, 0o644):  # a new one, and one of a release that left it to SQLite
            if mode is not None:
                path.chmod(mode)
            database, _ = open_database(str(path), schema, OSFileSystem())
            database.execute("INSERT INTO numbers VALUES (1)")
            modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
            assert modes == {"state": 0o600, "state-wal": 0o600, "state-shm": 0o600}
            database.close()
    finally:
        os.umask(mask)


@pytest.mark.parametrize("content", [b"no database at all " * 99, None], ids=["foreign", "damaged"])
def test_a_damaged_file_is_set_aside_and_a_new_one_begun(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "state"
    for number in range(1, 3):
        opened(path)
        if content is None:
            data = bytearray(path.read_bytes())
            data[100:] = b"\xff" * (len(data) - 100)
            path.write_bytes(bytes(data))
        else:
            path.write_bytes(content)
        numbers, aside = opened(path)
        assert numbers == []
        assert aside == f"{path}.damaged" + ("" if number == 1 else "-2")
        assert Path(aside).exists()


def test_what_is_not_the_file_s_fault_is_not_repaired(tmp_path: Path) -> None:
    with pytest.raises(sqlite3.OperationalError):
        open_database(str(tmp_path / "missing" / "state"), schema, OSFileSystem())
    assert primary_code(sqlite3.OperationalError("made up")) == 0
