"""Tests of ``edge_node/sessions/database.py``."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from tests.edge_node.sessions.room import Owner
from weft.edge_node.sessions.database import Database, DatabaseFailed, open_database, primary_code
from weft.storage.filesystem import OSFileSystem


def schema(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS things (id INTEGER PRIMARY KEY)")


def insert(*numbers: int) -> object:
    def job(database: sqlite3.Connection) -> None:
        database.executemany("INSERT INTO things VALUES (?)", [(number,) for number in numbers])

    return job


def things(directory: Path) -> list[int]:
    with sqlite3.connect(directory / "mqtt.sqlite3") as connection:
        return [row[0] for row in connection.execute("SELECT id FROM things ORDER BY id")]


@pytest.fixture
def owner() -> Owner:
    return Owner()


@pytest.fixture
def database(tmp_path: Path, owner: Owner) -> Database:
    return Database(str(tmp_path), schema, owner.post)


def test_what_waits_shares_a_transaction(tmp_path: Path, owner: Owner, database: Database) -> None:
    gate = threading.Event()
    database.submit(lambda _: gate.wait() and None, lambda _: None)  # type: ignore[arg-type]
    outcomes: list[BaseException | None] = []
    for number in range(100):
        database.submit(insert(number), outcomes.append)  # type: ignore[arg-type]
    seen: list[int] = []
    database.submit(lambda db: seen.append(db.total_changes), lambda _: None)
    gate.set()
    owner.wait_for(lambda: len(outcomes) == 100)
    assert outcomes == [None] * 100
    assert things(tmp_path) == list(range(100))


def test_one_bad_job_does_not_take_the_others_along(tmp_path: Path, owner: Owner, database: Database) -> None:
    gate = threading.Event()
    database.submit(lambda _: gate.wait() and None, lambda _: None)  # type: ignore[arg-type]
    reported: dict[int, BaseException | None] = {}
    for number, numbers in enumerate([(1, 2), (3, 1), (4,)]):
        database.submit(insert(*numbers), lambda error, number=number: reported.update({number: error}))  # type: ignore[arg-type,misc]
    gate.set()
    owner.wait_for(lambda: len(reported) == 3)
    assert things(tmp_path) == [1, 2, 4]
    assert reported[0] is reported[2] is None
    assert isinstance(reported[1], sqlite3.IntegrityError)
    assert database.failed is None


def test_closing_writes_what_waits(tmp_path: Path, owner: Owner, database: Database) -> None:
    for number in range(10):
        database.submit(insert(number), lambda _: None)  # type: ignore[arg-type]
    database.close()
    assert things(tmp_path) == list(range(10))
    assert isinstance(owner.outcome(lambda done: database.submit(insert(99), done)), DatabaseFailed)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", ["garbage", "middle", "empty header"])
def test_a_damaged_file_is_set_aside_and_the_node_starts(
    tmp_path: Path, owner: Owner, database: Database, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    database.run(insert(*range(5000)))  # type: ignore[arg-type]
    database.close()
    path = tmp_path / "mqtt.sqlite3"
    data = bytearray(path.read_bytes())
    if how == "garbage":
        data = bytearray(b"not a database at all" * 1000)
    elif how == "middle":
        data[8192:12_288] = b"\xff" * 4096
    else:
        data[:100] = bytes(100)
    path.write_bytes(data)
    for number, aside in enumerate(["mqtt.sqlite3.damaged", "mqtt.sqlite3.damaged-2"]):
        again = Database(str(tmp_path), schema, owner.post)
        assert again.set_aside == str(tmp_path / aside)
        assert (tmp_path / aside).read_bytes() == data
        assert "Retained messages are lost" in caplog.text
        again.run(insert(number))  # type: ignore[arg-type]
        again.close()
        assert things(tmp_path) == [number]
        path.write_bytes(data)


def test_damage_met_while_running_ends_it(
    tmp_path: Path, owner: Owner, database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(_: sqlite3.Connection) -> None:
        error = sqlite3.DatabaseError("database disk image is malformed")
        error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
        raise error

    assert isinstance(owner.outcome(lambda done: database.submit(broken, done)), DatabaseFailed)
    assert "until the node is restarted" in caplog.text
    assert isinstance(owner.outcome(lambda done: database.submit(insert(1), done)), DatabaseFailed)  # type: ignore[arg-type]
    with pytest.raises(DatabaseFailed):
        database.run(insert(1))  # type: ignore[arg-type]


def test_a_folder_without_a_database_that_can_be_made_is_an_error(tmp_path: Path, owner: Owner) -> None:
    with pytest.raises(sqlite3.OperationalError):
        Database(str(tmp_path / "missing"), schema, owner.post)


# --- The SQLite file, opened whatever state it is in


def database_file_schema(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS numbers (number INTEGER)")


def opened(path: Path) -> tuple[list[int], str | None]:
    """The numbers of a file, one more than before; and where a damaged one was set aside."""
    database, aside = open_database(str(path), database_file_schema, OSFileSystem())
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
            database, _ = open_database(str(path), database_file_schema, OSFileSystem())
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
        open_database(str(tmp_path / "missing" / "state"), database_file_schema, OSFileSystem())
    assert primary_code(sqlite3.OperationalError("made up")) == 0
