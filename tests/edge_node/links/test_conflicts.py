"""A node whose log another copy has taken over stops acknowledging, and continues when the hub takes it again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.edge_node.links.test_links import append, link_to
from tests.edge_node.links.test_links_restored import NOBODY, Life, running
from tests.replication.loopback import Hub
from tests.support.waiting import until
from weft.config.links import Link as LinkConfig
from weft.edge_node.links import links
from weft.protocols.link import RefuseCode
from weft.replication.events import LinkStatus
from weft.replication.runner import LinkRefused
from weft.storage.filesystem import OSFileSystem
from weft.storage.segment_log import LogFull

COPY = LinkRefused(RefuseCode.IDENTITY_CONFLICT, "a connection with epoch 9 has taken over", "stop the other node")


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with running("hub") as hub:
        yield hub


async def until_stopped(life: Life) -> None:
    await until(lambda: not continues(life))


def continues(life: Life) -> bool:
    life.links.conflicts.look(life.links.statuses)
    return not life.links.conflicts.reasons


def continuing(link: LinkConfig) -> LinkConfig:
    return msgspec.structs.replace(link, on_conflict="continue")


async def test_a_node_in_conflict_refuses_records_and_says_why(tmp_path: Path, hub: Hub) -> None:
    async with Life(tmp_path, cloud=link_to(hub)) as life:
        await life.append(3)
        await life.until_at(hub, 3)
    hub.refusal = COPY
    async with Life(tmp_path, cloud=link_to(hub)) as life:
        await life.append(1)  # before the hub was asked
        await until_stopped(life)
        with pytest.raises(LogFull, match=r"link cloud: .*epoch 9 has taken over; stop the other node"):
            await life.append(1)
        with pytest.raises(LogFull), life.log.together(1000):
            life.log.ask_room([(life.telemetry, [b"a"], [b"b"], None)], 0)
        # What a node has to note together with other things, such as a will, is taken.
        with life.log.together(1000):
            life.log.append(life.telemetry, 1, [b"a"], [b"b"])


async def test_a_conflict_holds_across_restarts_until_the_hub_takes_the_link(tmp_path: Path, hub: Hub) -> None:
    hub.refusal = COPY
    async with Life(tmp_path, cloud=link_to(hub)) as life:
        await until_stopped(life)
    async with Life(tmp_path, cloud=NOBODY) as life:  # no hub to ask: still a copy that another one has replaced
        await until(lambda: life.links.statuses[0].attempts_failed > 0)
        assert not continues(life)
        with pytest.raises(LogFull):
            await life.append(1)
    hub.refusal = None
    async with Life(tmp_path, cloud=link_to(hub)) as life:
        await until(lambda: continues(life))
        await life.append(1)
    async with Life(tmp_path, cloud=NOBODY) as life:
        await life.append(1)


async def test_a_link_may_go_on_in_a_conflict(tmp_path: Path, hub: Hub) -> None:
    hub.refusal = COPY
    async with Life(tmp_path, cloud=continuing(link_to(hub))) as life:
        await until(lambda: life.links.statuses[0].conflict != "")
        assert continues(life)
        await life.append(1)


async def test_one_link_of_several_is_enough_for_the_streams_that_it_carries(tmp_path: Path, hub: Hub) -> None:
    hub.refusal = COPY
    async with running("other") as other:
        async with Life(tmp_path, cloud=link_to(hub, ("telemetry",)), plant=link_to(other)) as life:
            await until_stopped(life)
            with pytest.raises(LogFull):
                await life.append(1)
            await append(life.log, "alarms", 1)


async def test_a_damaged_note_of_a_conflict_says_nothing(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / links.CONFLICTS_FILE).write_bytes(b'{"cloud": ')
    async with Life(tmp_path, cloud=NOBODY) as life:
        await life.append(1)


def test_two_links_to_one_hub_are_no_copy_of_the_node(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    refused: dict[int, str | None] = {}
    path = str(tmp_path / "links" / "conflicts")
    known = links.Conflicts(OSFileSystem(), path, {"north": [1, 2], "south": [1]}, refused.__setitem__)
    north, south = LinkStatus("north", cluster_id="one"), LinkStatus("south", cluster_id="one", is_taken=True)
    north.conflict = "a connection with epoch 9 has taken over; give that node an empty data_dir"
    for _ in range(2):
        known.look([north, south])
    assert not known.reasons
    assert not refused
    assert "links north and south bring the same streams to the same hub" in north.last_error
    assert caplog.text.count("links north and south") == 1
    # Neither of them is taken: then it may be a copy.
    south.is_taken = False
    known.look([north, south])
    assert refused[1]


def test_another_link_to_the_hub_that_carries_other_streams_proves_nothing(tmp_path: Path) -> None:
    refused: dict[int, str | None] = {}
    path = str(tmp_path / "links" / "conflicts")
    known = links.Conflicts(OSFileSystem(), path, {"north": [1], "south": [2]}, refused.__setitem__)
    north, south = LinkStatus("north", cluster_id="one"), LinkStatus("south", cluster_id="one", is_taken=True)
    north.conflict = "a connection with epoch 9 has taken over"
    known.look([north, south])
    assert list(refused) == [1]
