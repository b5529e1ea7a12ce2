"""The audit tells rows that were deleted as declared from rows that are lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cloud_hub.tables.logs import LANE, OTHER, LogWriter, Run, table
from tests.cloud_hub.tables.test_tierer import drain, new_tierer
from tests.support.processes import weft
from weft.output import Failed, Refused
from weft.proofs.audit.audit import audit
from weft.proofs.audit.report import AuditReport
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.table.actions import TableError

KEY = ("default", "telemetry")
Declare = Callable[..., str]
in_thread = asyncio.to_thread


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "hub.yaml").write_text(f"store: {tmp_path / 'store'}\n")
    return open_store(str(tmp_path / "store"))


@pytest.fixture
async def log(store: ObjectStore) -> LogWriter:
    log = await LogWriter.open(store)
    await log.append(0, Run(LANE, 0, 10))
    await log.append(1, Run(OTHER, 0, 5))
    await log.append(0, Run(LANE, 10, 10))
    await drain(await new_tierer(store, log))
    return log


def counts(found: AuditReport) -> tuple[int, int]:
    """Deleted and missing."""
    assert sum(shard.deleted for shard in found.shards) == found.total("deleted")
    assert sum(shard.missing for shard in found.shards) == found.total("missing")
    return found.total("deleted"), found.total("missing")


@pytest.fixture
def declare(tmp_path: Path) -> Declare:
    def run(*options: str) -> str:
        result = weft("hub", "declare-deletion", tmp_path / "hub.yaml", "telemetry", "--reason", "a request", *options)
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


async def test_what_was_declared_before_is_no_loss_and_all_else_is(
    store: ObjectStore, log: LogWriter, declare: Declare
) -> None:
    table(store).delete("_edge = 'press-1' and _seq = 12")  # lost before: no declaration covers it
    said = await in_thread(declare, "--edge", "press-1", "--from", "10", "--to", "16", "--yes")
    assert said.startswith("declared 5 rows of default/telemetry (edge press-1, first 10, end 16) as deleted")
    assert counts(await audit(store, *KEY)) == (0, 1)  # declared, and still there: neither deleted nor lost
    table(store).delete("_edge = 'press-1' and _seq in (3, 13, 14)")
    found = await audit(store, *KEY, payloads=True)
    assert counts(found) == (2, 2)
    assert "press-1/0000000000000007: 2 records are missing from the table" in found.problems
    # Records that come later are not covered, though the choice would take them in.
    await in_thread(declare, "--until", "2100-01-01", "--yes")
    await log.append(0, Run(LANE, 20, 4))
    await drain(await new_tierer(store, log))
    table(store).delete("_edge = 'press-1' and _seq = 21")
    assert counts(await audit(store, *KEY)) == (2, 3)


@pytest.mark.slow
async def test_a_deletion_that_has_happened_is_declared_by_the_version_that_had_the_rows(
    store: ObjectStore, log: LogWriter, declare: Declare
) -> None:
    version = table(store).version()
    table(store).delete("_edge = 'press-2' and _seq < 3")
    with pytest.raises(Failed, match="has no such rows: edge press-2, end 3"):
        await in_thread(declare, "--edge", "press-2", "--to", "3", "--yes")
    assert counts(await audit(store, *KEY)) == (0, 3)
    await in_thread(declare, "--edge", "press-2", "--to", "3", "--version", str(version), "--yes")
    found = await audit(store, *KEY, payloads=True)
    assert (counts(found), found.problems) == ((3, 0), [])
    assert log.cluster is not None


async def test_what_is_no_declaration_is_refused_in_a_sentence(
    store: ObjectStore, log: LogWriter, declare: Declare
) -> None:
    with pytest.raises(Refused, match="name the rows"):
        await in_thread(declare, "--yes")
    with pytest.raises(Refused, match=r"nothing was declared: there is no terminal to ask on\. Add --yes"):
        await in_thread(declare, "--edge", "press-1")
    await store.create("deletions/default/telemetry/" + "0" * 20, b'{"format": 2}')
    with pytest.raises(TableError, match="written by a later release of Weft"):
        await audit(store, *KEY)
    assert log.cluster is not None
