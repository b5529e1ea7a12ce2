"""`weft hub second-person|requests|approve`: an act that one person cannot do alone, by commands on a store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cloud_hub.facts.test_acts import Dying, Killed
from tests.cloud_hub.tables.logs import LANE, LogWriter, Run
from tests.support.processes import weft
from weft.commands import common, hub_access
from weft.output import Failed
from weft.protocols.shard.placement import shard_of
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import read_cluster
from weft.storage.object_store import ObjectStore, open_store
from weft.storage.object_store.opening import PlacedStore, bare

RETIRE = ("hub", "retire", "hub.yaml", "press-1", "--reason", "case 12", "--yes")
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hub.yaml").write_text("store: store\nretain_log: 30d\n")
    return tmp_path


async def prepare(folder: Path) -> None:
    log = await LogWriter.open(open_store(str(folder / "store")))
    await log.append(shard_of(LANE.tenant, LANE.edge, 2), Run(LANE, 0, 3))


async def is_retired(folder: Path) -> bool:
    store = open_store(str(folder / "store"))
    state = await ShardLog(store, await read_cluster(store), shard_of(LANE.tenant, LANE.edge, 2)).load()
    return not state.lanes[LANE].counts


def waiting() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(weft("hub", "requests", "hub.yaml", "--json").output)
    return found


def lines() -> list[tuple[str, str, str]]:
    found = json.loads(weft("hub", "declarations", "hub.yaml", "--last", "100", "--json").output)[::-1]
    return [(each["act"], each["kind"], each["by"]) for each in found]


def turn_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUDO_USER", "mara")
    assert weft("hub", "second-person", "hub.yaml", "--require", "names", "--by", "mara").exit_code == 0


def approve(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    with monkeypatch.context() as other:
        other.setenv("SUDO_USER", "ben")
        done = weft("hub", "approve", "hub.yaml", name, "--by", "ben")
    assert done.exit_code == 0, done.exception
    assert "the same command does it now, once" in done.output


def test_an_act_is_asked_for_approved_and_done_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(prepare(folder))
    turn_on(monkeypatch)
    asked = weft(*RETIRE, "--by", "mara")
    assert isinstance(asked.exception, Failed)
    assert "nothing was done: request" in str(asked.exception)
    assert not asyncio.run(is_retired(folder))
    (request,) = waiting()
    assert request["options"]["edge"] == "press-1"
    assert (request["by"], request["approved_by"], request["target"]) == ("mara", [], "edge default/press-1")
    alone = weft("hub", "approve", "hub.yaml", request["id"], "--by", "ben")
    assert "another person has to approve it" in str(alone.exception), "the same user, under another name"
    approve(monkeypatch, request["id"])
    done = weft(*RETIRE, "--by", "mara")
    assert done.exit_code == 0, done.exception
    assert asyncio.run(is_retired(folder))
    assert waiting() == []
    assert lines() == [
        ("declared", "second-person", "mara"),
        ("declared", "request", "mara"),
        ("declared", "request", "ben"),
        ("withdrew", "request", "mara"),
        ("began", "act", "mara"),
        ("ended", "act", "mara"),
    ]
    assert "needs the approval of another person" in str(weft(*RETIRE).exception)
    refused = weft("hub", "approve", "hub.yaml", waiting()[0]["id"], "--refuse", "--reason", "not now")
    assert refused.exit_code == 0
    assert list((folder / "store" / "requests").iterdir()) == []


def test_two_persons_change_the_setting_once_it_is_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(prepare(folder))
    turn_on(monkeypatch)
    off = ("hub", "second-person", "hub.yaml", "--require", "off", "--by", "mara")
    assert "nothing was done" in str(weft(*off).exception)
    assert "another person" in weft("hub", "second-person", "hub.yaml").output
    approve(monkeypatch, waiting()[0]["id"])
    assert weft(*off).exit_code == 0
    assert weft(*RETIRE).exit_code == 0


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_an_approved_act_is_done_once_or_not_at_all_wherever_it_is_killed(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, before: bool
) -> None:
    real, seen = common.open_hub_store, set[tuple[bool, bool]]()
    for write in range(1, 100):
        store = folder / f"{write}"
        store.mkdir()
        (folder / "hub.yaml").write_text(f"store: {store}/store\n")
        asyncio.run(prepare(store))
        turn_on(monkeypatch)
        weft(*RETIRE)
        approve(monkeypatch, waiting()[0]["id"])
        dying: list[Dying] = []

        def opened(uri: str, write: int = write, dying: list[Dying] = dying) -> ObjectStore:
            dying.append(Dying(bare(real(uri)), write, before=before))
            return PlacedStore(dying[0])

        with monkeypatch.context() as patched:
            patched.setattr(hub_access, "open_hub_store", opened)
            try:
                weft(*RETIRE)
            except Killed:
                pass
        done, acts = asyncio.run(is_retired(store)), [act for act, kind, _ in lines() if kind == "act"]
        used = ("withdrew", "request") in [each[:2] for each in lines()]
        assert used or not acts
        assert acts or not done, "an act without its line"
        seen.add((used, done))
        again = weft(*RETIRE)
        assert (again.exit_code == 0) != used, "an approval that was used permits nothing more"
        if dying[0].left > 0:
            break
    assert seen == {(False, False), (True, False), (True, True)}
