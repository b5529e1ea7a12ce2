from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from tests.edge_node.sessions.store.helpers import Owner
from weft.edge_node.sessions.database import Database, DatabaseFailed


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
