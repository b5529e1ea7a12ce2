"""Tasks of an audit: however the work is cut and wherever it runs, the report is the same."""

from __future__ import annotations

import pickle
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from tests.proofs.audit.stores import DAMAGE, HARMLESS, Planting, corrupted_manifest, written
from weft.proofs.audit import tasks as log_plan
from weft.proofs.audit import tasks as log_task
from weft.proofs.audit import tasks as table_task
from weft.proofs.audit.audit import Task, audit
from weft.proofs.audit.counts import Part, Scope
from weft.proofs.audit.report import AuditReport
from weft.storage.object_store import open_store

STORES: dict[str, tuple[Planting, ...]] = {
    "a good one": HARMLESS,
    **{each.__name__: (*HARMLESS, each) for each in DAMAGE},
    "no snapshot": (*DAMAGE, corrupted_manifest),
    "all at once": (*HARMLESS, *DAMAGE),
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("a good one", "no snapshot", "all at once")))
        for name in STORES
    ],
)
async def test_however_the_work_is_cut_the_report_is_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await written(store)
    for plant in STORES[name]:
        await plant(log)
    whole = await audit(store, "default", "telemetry", payloads=True)
    assert whole.agrees == (name == "a good one"), whole.problems
    shuffled = random.Random(3)
    for run_chunks, window, task_bytes in ((1, 1, 1), (3, 2, 4000), (2, 16, 1 << 20)):
        monkeypatch.setattr(log_plan, "RUN_CHUNKS", run_chunks)
        monkeypatch.setattr(log_task, "WINDOW_CHUNKS", window)
        monkeypatch.setattr(table_task, "TASK_BYTES", task_bytes)

        async def elsewhere(tasks: Sequence[Task], scope: Scope) -> AsyncIterator[Part]:
            """Runs tasks in any order, each with copies of all it needs, and sums up some before the others."""
            done = Part()
            for task in shuffled.sample(tasks, len(tasks)):
                sent, shared = pickle.loads(pickle.dumps((task, scope)))
                part = pickle.loads(pickle.dumps(await sent.run(store, shared)))
                if shuffled.random() < 0.5:
                    done.merge(part)
                else:
                    yield part
            yield done

        assert await audit(store, "default", "telemetry", payloads=True, runner=elsewhere) == whole


async def test_every_planted_damage_is_named(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await written(store)
    for plant in (*HARMLESS, *DAMAGE):
        await plant(log)
    found = await audit(store, "default", "telemetry", payloads=True)
    expected = (
        "shard-0/chunk/00000000000000000005 is missing, though later chunks exist",
        "chunk 6 of shard 0: shard-0/chunk/00000000000000000006 is damaged",
        "shard 0: shard-0/chunk/00000000000000000007 is damaged",
        "are in the table twice",
        "are missing from the table",
        "are in the table and not in the log",
        "stored under the name default/press-8",
        "rows lie above the table's position",
        "payloads of offsets 0 to 1023 differ",
        "shard 1: _time or _seq of rows with offsets 0 to 65535 differ",
    )
    assert [part for part in expected if not any(part in problem for problem in found.problems)] == []


async def test_damage_in_the_middle_leaves_the_rest_counted(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    log = await written(store)
    whole = await audit(store, "default", "telemetry")
    await store.delete("shard-0/chunk/" + f"{3:020d}")
    found = await audit(store, "default", "telemetry")
    assert counts(found, "records") == {**counts(whole, "records"), "press-1": 70, "press-2": 35}
    assert counts(found, "unknown") == {"press-1": 10, "press-2": 5, "press-9": 0}
    assert log.states[0].n == 7


def counts(report: AuditReport, name: str) -> dict[str, int]:
    return {lane.edge: getattr(lane, name) for lane in report.lanes}
