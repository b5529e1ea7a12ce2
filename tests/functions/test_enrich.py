"""Records get what a file says of their machine, and a bad file changes nothing."""

from __future__ import annotations

import asyncio
import os
import resource
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.functions.restart import Recorder, context, row
from tests.support.waiting import PATIENCE_S
from weft.config.functions.step import Enrich as Settings
from weft.functions import enrich
from weft.functions import enrich as module
from weft.functions.contract import NotReady
from weft.functions.enrich import Enrich

MACHINES = "machine,site,owner,limit\nm1,Graz,Eva,80\nm2,Linz,,\n7,Wien,Ida,70.5\n"


class Subject:
    """An enrich function on a file."""

    def __init__(self, file: Path, **settings: Any) -> None:
        self.file = file
        self.out = Recorder()
        levels = {b"plant/m1": {"level": "m1"}}
        self.function = Enrich(Settings(file=str(file), **({"on": "machine"} | settings)), context(levels))

    async def feed(self, *values: dict[str, Any], key: bytes = b"k") -> list[dict[str, Any]]:
        await self.function.prepare()
        made = await self.function.process_async([row(1, each, key) for each in values], self.out)
        assert all(each.payload is None for each in made)
        return [each.values for each in made]


Make = Callable[..., Subject]


@pytest.fixture
def csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)

    def make(text: str = MACHINES, **settings: Any) -> Subject:
        file = tmp_path / "machines.csv"
        file.write_text(text)
        return Subject(file, **settings)

    return make


async def test_records_get_the_fields_of_their_machine(csv: Make) -> None:
    it = csv(fields=("site", "limit"), numbers=("limit",))
    assert await it.feed({"machine": "m1", "t": 1}, {"machine": "m2"}, {"machine": 7}, {"machine": 7.0}) == [
        {"machine": "m1", "t": 1, "site": "Graz", "limit": 80},
        {"machine": "m2", "site": "Linz", "limit": None},
        {"machine": 7, "site": "Wien", "limit": 70.5},
        {"machine": 7.0, "site": "Wien", "limit": 70.5},
    ]


async def test_all_columns_but_the_one_looked_up_are_added_unless_some_are_named(csv: Make) -> None:
    it = csv(on="device.id", column="machine")
    assert await it.feed({"device": {"id": "m1"}, "owner": "unknown"}) == [
        {"device": {"id": "m1"}, "owner": "Eva", "site": "Graz", "limit": "80"}
    ]


async def test_a_level_of_the_topic_is_looked_up(csv: Make) -> None:
    it = csv(on="level", column="machine", fields=("site",))
    assert await it.feed({"t": 1}, key=b"plant/m1") == [{"t": 1, "site": "Graz"}]


@pytest.mark.parametrize(
    ("missing", "made", "rejected"),
    [
        ("keep", [{"machine": "m9", "site": None}, {"machine": None, "site": None}], []),
        ("drop", [], []),
        ("reject", [], ["machine 'm9' is not in FILE", "machine None is not in FILE"]),
    ],
)
async def test_what_the_file_does_not_have(csv: Make, missing: str, made: list[Any], rejected: list[str]) -> None:
    it = csv(missing=missing, fields=("site",))
    assert await it.feed({"machine": "m9"}, {"machine": None}) == made
    assert it.out.rejected() == [each.replace("FILE", str(it.file)) for each in rejected]


async def test_a_record_without_the_field_goes_to_the_errors(csv: Make) -> None:
    it = csv()
    assert await it.feed({"m": 1}) == []
    assert it.out.rejected() == ["field machine is missing"]


async def test_a_changed_file_is_read_again_and_a_bad_one_is_not_used(
    csv: Make, caplog: pytest.LogCaptureFixture
) -> None:
    it = csv(fields=("site",))
    await it.feed({"machine": "m1"})
    first = it.function.version()
    it.file.write_text(MACHINES.replace("Graz", "Rom"))
    assert await it.feed({"machine": "m1"}) == [{"machine": "m1", "site": "Rom"}]
    second = it.function.version()
    assert second != first
    for bad in ("", "machine,site\nm1,a\nm1,b\n", "machine,site\nm1\n", "x,y\n", "machine,site\n\xff"):
        it.file.write_bytes(bad.encode("latin-1"))
        assert await it.feed({"machine": "m1"}) == [{"machine": "m1", "site": "Rom"}]
        assert "the rows read before stay in use" in it.function.trouble()
        assert it.function.trouble() in caplog.text
        assert it.function.version() == second
    it.file.unlink()
    assert await it.feed({"machine": "m1"}) == [{"machine": "m1", "site": "Rom"}]
    it.file.write_text(MACHINES)
    assert await it.feed({"machine": "m1"}) == [{"machine": "m1", "site": "Graz"}]
    assert (it.function.trouble(), it.function.version()) == ("", first)


@pytest.mark.parametrize(
    ("text", "settings", "reason"),
    [
        ("", {}, "machines.csv: is empty. Its first line has to name the columns"),
        ("a,b\n", {}, "machines.csv: has no column machine. There are: a, b"),
        ("machine,machine\n", {}, "machines.csv, line 1: two columns are named machine. Rename one"),
        ("machine,a\nx,1\n\nx,2\n", {}, 'machines.csv, line 4: machine "x" is listed twice. Keep one'),
        ("machine,a\nx\n", {}, "machines.csv, line 2: has 1 values, and line 1 names 2 columns"),
        ("machine,a\nx,1\ny,2\n", {"rows": 1}, "machines.csv: has more than 1 rows. Raise `rows`, or shorten it"),
        ("machine,a\nx," + "1" * 2000, {"memory_bytes": 1024}, "takes more than 1,024 bytes. Raise `memory`"),
        ("machine,a\nx,1,5\n", {"numbers": ("b",)}, "has no column b, which `numbers` names. There are: machine, a"),
        ("machine,a\nx,1e400\n", {"numbers": ("a",)}, 'line 2: a is not a number: "1e400"'),
        ("machine,a\nx,nan\n", {"numbers": ("a",)}, 'line 2: a is not a number: "nan"'),
        ("machine,a\nx,123456789012345678901\n", {"numbers": ("a",)}, "line 2: has an integer of more than 64 bits"),
        (
            "machine,a\nx,y\n",
            {"numbers": ("a",)},
            'line 2: a is not a number: "y". Leave it out of `numbers`, or mend it',
        ),
        ("machine,a\n\xff,1\n", {}, "machines.csv: is neither a CSV file in UTF-8 nor an SQLite database"),
        ('machine,a\n"x,1\n', {}, "machines.csv: is neither a CSV file in UTF-8 nor an SQLite database"),
    ],
)
async def test_records_wait_until_the_first_file_is_good(
    csv: Make, text: str, settings: dict[str, Any], reason: str
) -> None:
    it = csv("", **settings)
    it.file.write_bytes(text.encode("latin-1"))
    with pytest.raises(NotReady) as caught:
        await it.feed({"machine": "x"})
    assert reason in str(caught.value)
    assert it.function.trouble() == str(caught.value)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "plant.db", isolation_level=None)) as connection:
        connection.executescript("""
            PRAGMA journal_mode = wal;
            CREATE TABLE machines (id INTEGER, site TEXT, hot REAL);
            INSERT INTO machines VALUES (7, 'Wien', 70.5), (8, NULL, 80), (NULL, 'x', 1);
        """)
        yield connection


async def test_a_database_is_looked_up_and_followed(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHECK_INTERVAL_S", 0.0)
    it = Subject(tmp_path / "plant.db", on="id")
    assert await it.feed({"id": 7}, {"id": "8"}) == [
        {"id": 7, "site": "Wien", "hot": 70.5},
        {"id": "8", "site": None, "hot": 80.0},
    ]
    database.execute("UPDATE machines SET site = 'Graz' WHERE id = 7")
    assert await it.feed({"id": 7}) == [{"id": 7, "site": "Graz", "hot": 70.5}]


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (None, "plant.db: has 2 tables. Name one in `table`. There are: machines, other"),
        ("x", "plant.db: has no table x. There are: machines, other"),
        ("other", "plant.db: has no column id"),
    ],
)
async def test_a_database_of_several_tables(
    database: sqlite3.Connection, tmp_path: Path, table: str | None, reason: str
) -> None:
    database.execute("CREATE TABLE other (a)")
    with pytest.raises(NotReady) as caught:
        await Subject(tmp_path / "plant.db", on="id", table=table).feed({})
    assert reason in str(caught.value)
    assert await Subject(tmp_path / "plant.db", on="id", table="machines", fields=("site",)).feed({"id": 7}) == [
        {"id": 7, "site": "Wien"}
    ]


async def test_a_damaged_database_says_so(tmp_path: Path) -> None:
    (tmp_path / "plant.db").write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    with pytest.raises(NotReady, match=r"plant\.db: SQLite: "):
        await Subject(tmp_path / "plant.db", on="id").feed({})


async def test_a_gigabyte_without_a_line_takes_no_memory(csv: Make) -> None:
    it = csv()
    await it.feed({"machine": "m1"})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    os.truncate(it.file, 1 << 30)  # zeros, that take no room on the disk
    (made,) = await it.feed({"machine": "m1"})
    assert made["site"] == "Graz", "the former rows stay in force"
    assert "machines.csv" in it.function.trouble()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.parametrize(("kind", "reason"), [("pipe", "not a regular file"), ("device", "not a regular file")])
async def test_a_file_without_an_end_is_refused_and_not_read(tmp_path: Path, kind: str, reason: str) -> None:
    file = tmp_path / "machines.csv"
    os.mkfifo(file) if kind == "pipe" else file.symlink_to("/dev/zero")
    it = Subject(file)
    with pytest.raises(NotReady, match=reason):
        await asyncio.wait_for(it.function.prepare(), PATIENCE_S)


ENDLESS = "CREATE VIEW endless AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) {select}"


async def test_a_view_without_an_end_is_given_up(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrich, "STEPS_MAX", 1_000_000)
    database.execute(ENDLESS.format(select="SELECT i AS machine, 1 AS site FROM n WHERE i < 0"))
    database.commit()
    it = Subject(tmp_path / "plant.db", table="endless")
    with pytest.raises(NotReady, match="Make a table of the view"):
        await asyncio.wait_for(it.function.prepare(), PATIENCE_S)


async def test_the_end_of_a_stream_ends_the_reading_of_its_file(
    database: sqlite3.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrich, "STEPS_MAX", 10**15)
    database.execute(ENDLESS.format(select="SELECT i AS machine, 1 AS site FROM n WHERE i < 0"))
    database.commit()
    it = Subject(tmp_path / "plant.db", table="endless")
    reading = asyncio.create_task(it.function.prepare())
    await asyncio.sleep(0.05)  # a thread begins
    await it.function.close()
    # A node that ends waits for its threads.
    await asyncio.wait_for(asyncio.gather(reading, return_exceptions=True), PATIENCE_S)
    assert isinstance(reading.exception(), enrich.Stopped)
