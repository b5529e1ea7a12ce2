"""What a node tells its hubs as it stops, and what it takes in while it waits for them."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator
from datetime import time
from pathlib import Path

import msgspec
import pytest

from tests.cloud_hub.live import running_hub
from tests.edge_node.links.test_links import NOBODY, Life, append, link_to, running
from tests.edge_node.servers.mqtt.harness import RawClient
from tests.replication.loopback import Hub
from tests.support.live_node import configuration
from tests.support.waiting import until
from weft.config.errors import ConfigError
from weft.config.links import Link
from weft.config.links import Link as LinkConfig
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.links import links
from weft.edge_node.links.links import LinksPart, Orders, compared, rules_of, without_policy
from weft.edge_node.node import EdgeNode
from weft.edge_node.timing import TICK_S
from weft.protocols.link import RefuseCode
from weft.protocols.mqtt.encoder import encode
from weft.protocols.mqtt.packets import Connect, PubAck, Publish, Will
from weft.protocols.shard.lane_state import LaneState
from weft.replication.events import LinkStatus
from weft.replication.liveness import SECOND
from weft.replication.policy import DayWindow, Order
from weft.replication.runner import LinkRefused
from weft.storage.filesystem import OSFileSystem
from weft.storage.object_store.directory import MemoryStore
from weft.storage.segment_log import LogFull

CONFIG = """
node: edge-1
data_dir: data
listeners: {{mqtt: {{bind: '127.0.0.1:0'}}}}
http: null
streams: {{telemetry: {{from: 'plant/#'}}}}
links: {{cloud: {{to: [{url}], streams: [telemetry], hold_at_start: {hold}}}}}
"""


def node_in(folder: Path, url: str, hold: str) -> EdgeNode:
    return EdgeNode(configuration(folder, CONFIG.format(url=url, hold=hold)))


def port_of(node: EdgeNode) -> int:
    return node.addresses["mqtt"].port  # type: ignore[union-attr]


async def publish(client: RawClient, acknowledged: list[int]) -> None:
    """Publish, one message after the other, until the node closes the connection."""
    for number in range(1, 60_000):
        client.send(Publish(b"plant/a", b"%d" % number, 1, number))
        while (packet := await client.receive()) != PubAck(number):
            if packet is None:
                return
        acknowledged.append(number)


async def test_the_last_word_comes_behind_all_that_was_acknowledged(tmp_path: Path) -> None:
    """A node that stops in order takes messages until its listeners are closed."""
    async with running_hub(MemoryStore(), shards=1) as hub:

        def lane() -> LaneState | None:
            return next(iter(hub.sequencers[0].state.lanes.values()), None)

        node = node_in(tmp_path, hub.url, "0s")
        await node.start()
        acknowledged: list[int] = []
        device = asyncio.create_task(publish(await RawClient.connect(port_of(node)), acknowledged))
        await until(lambda: acknowledged and lane() is not None)
        await node.close()
        await device
        await until(lambda: (held := lane()) is not None and held.ended_in_order())
        held = lane()
        assert held is not None
        assert held.last_word is not None
        assert held.last_word.seq == held.ranges.contiguous_end() >= len(acknowledged)


async def test_a_stop_within_the_wait_for_hubs_takes_nothing_in(tmp_path: Path) -> None:
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await node.close()
    node, stopping = node_in(tmp_path, "http://127.0.0.1:9", "1h"), asyncio.Event()
    starting = asyncio.create_task(node.start(stopping))
    await until(lambda: node.addresses)
    client = await RawClient.open(port_of(node))  # in the kernel
    client.writer.write(encode(Connect("early"), 4) + encode(Publish(b"plant/a", b"x", 1, 1), 4))
    stopping.set()
    await starting
    await node.run(stopping)
    await node.close()
    assert await client.receive() is None


async def test_wills_wait_for_the_hubs_as_clients_do(tmp_path: Path) -> None:
    """A copy that was put back gives numbers out again: nothing may have one before the hubs were asked."""
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    client = await RawClient.connect(port_of(node), will=Will(b"plant/a", b"gone", qos=1))
    await node.close()
    await client.close()

    node, stopping = node_in(tmp_path, "http://127.0.0.1:9", "1h"), asyncio.Event()
    starting = asyncio.create_task(node.start(stopping))
    await until(lambda: node.addresses)
    await asyncio.sleep(2 * TICK_S)  # a will is published at the wheel's next tick
    assert end_of(node) == 0
    stopping.set()
    await starting
    await node.close()

    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await until(lambda: end_of(node) == 1)
    await node.close()


async def test_a_hub_node_that_does_not_answer_does_not_use_up_the_wait(tmp_path: Path) -> None:
    node = node_in(tmp_path, "http://127.0.0.1:9", "0s")
    await node.start()
    await node.close()
    async with running_hub(MemoryStore(), shards=1) as hub:
        mute = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
        async with mute:
            url = f"http://127.0.0.1:{mute.sockets[0].getsockname()[1]}"
            node = node_in(tmp_path, f"{url}, {hub.url}", "6s")  # 2 s for each URL, and 1 s between them
            await node.start()
            assert node.part(LinksPart).statuses[0].is_compared
            await node.close()


def end_of(node: EdgeNode) -> int:
    return node.log.next_seq(node.log.stream("telemetry"))


# --- A start waits for the first answer of its hubs, and for none longer than its link says


def seconds() -> itertools.count[float]:
    """A clock on which each look takes a second."""
    return itertools.count(0.0, 1.0)


async def test_a_node_without_network_takes_messages_after_the_time_that_a_setting_names(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    clock, holds = seconds(), {"near": 10.0, "far": 10.0}
    statuses = [LinkStatus("near", is_compared=True), LinkStatus("far"), LinkStatus("of no interest")]
    await compared(holds, statuses, clock=lambda: next(clock))
    assert 10 <= next(clock) < 13
    reported, ended = [record.getMessage() for record in caplog.records]
    assert "link far has reported what it holds of this log, at most 10 seconds (hold_at_start)" in reported
    assert "without the hub's report on this log: no answer on link far" in ended


@pytest.mark.parametrize(
    ("status", "is_stopping"),
    [
        (LinkStatus("cloud", is_compared=True), False),
        (LinkStatus("cloud", conflict="a copy"), False),
        (LinkStatus("cloud"), True),
    ],
)
async def test_it_waits_no_longer_than_it_has_to(
    status: LinkStatus, *, is_stopping: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stopping = seconds(), asyncio.Event()
    if is_stopping:
        stopping.set()
    await compared({"cloud": 10.0}, [status], stopping, clock=lambda: next(clock))
    assert next(clock) < 3
    assert not caplog.records


# --- A node whose log another copy has taken over stops acknowledging, and continues when the hub takes it again


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


# --- Policies of links from the configuration, and what of their orders outlives the process


TEXT = """\
node: press-7
data_dir: data
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "http://127.0.0.1:9", {0}}}}}
"""


def link(settings: str) -> Link:
    return parse(TEXT.format(settings), "edge.yaml", EdgeConfig, check).config.links["cloud"]


def test_a_link_s_settings_become_its_rules() -> None:
    found = link(
        'order: fresh_first, history_share: 0.5, rate: 64KiB/s, every: 10s, priorities: {"bulk*": 2}, budget: 500MB, '
        'schedule: [{streams: ["bulk*"], between: "22:00-24:00", days: [sat], zone: Europe/Berlin}]'
    )
    rules = rules_of(found)
    assert (rules.order, rules.history_share, rules.rate, rules.every) == (Order.FRESH_FIRST, 0.5, 65_536, 10 * SECOND)
    assert (rules.priority("bulk-a"), rules.priority("other")) == (2, 10)
    assert rules.budget is not None
    assert (rules.budget.size, rules.budget.day) == (500_000_000, 1)
    windows = rules.windows("bulk-a")
    assert windows is not None
    assert windows.windows == (DayWindow(time(22), time(0)),)
    assert (windows.days, str(windows.zone)) == (frozenset({5}), "Europe/Berlin")
    assert rules.windows("other") is None
    assert without_policy(found) == link("window: 8MiB")
    assert without_policy(found) != without_policy(link("window: 1MiB"))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("rate: 64KiB", "expected a rate such as 64KiB/s"),
        ("rate: fast", "expected a rate such as 64KiB/s"),
        ("priorities: {a: 0}", "priorities.a"),
        ("history_share: 0.95", "history_share"),
        ('schedule: [{streams: [a], between: "25:00-26:00"}]', "expected a window such as 01:00-05:00"),
        ('schedule: [{streams: [a], between: "01:00-05:00", zone: Mars/Base}]', "expected a time zone"),
        ('schedule: [{streams: [a], between: "01:00-05:00", zone: ../../etc/passwd}]', "expected a time zone"),
        ("budget: 100B", "budget"),
        ("budget: {size: 5MB, day: 31}", "budget.day"),
        ('proxy: "http://user:secret@proxy:3128"', "proxy"),
    ],
)
def test_a_setting_that_cannot_be_is_told(settings: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        link(settings)
    assert said in str(caught.value)
    assert "secret" not in str(caught.value)


async def test_pauses_and_counts_outlive_the_process_and_a_damaged_file_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "links" / "orders"

    def orders() -> Orders:
        return Orders(OSFileSystem(), str(path), lambda: 1_796_083_140 * SECOND)

    control = orders().control("cloud", link("budget: 5MB"))
    await control.look(0)
    control.policy.count.add(700)
    await control.pause(True)
    again = orders()
    control = again.control("cloud", link("budget: 5MB"))
    assert control is again.control("cloud", link("budget: 6MB"))
    await control.look(0)
    assert (control.policy.is_paused, control.policy.count.used) == (True, 700)
    assert not again.control("other", link("budget: 5MB")).policy.is_paused
    for damage in (b"", b"[]", b'{"cloud": {"paused": 7}}', b"x" * (2 << 20), b'{"\xff": {}}', b"[" * 9999):
        caplog.clear()
        path.write_bytes(damage)
        with caplog.at_level(logging.ERROR):
            assert not orders().control("cloud", link("budget: 5MB")).policy.is_paused
        assert "no link is paused now, and budgets count from 0" in caplog.text


async def test_the_count_of_each_month_is_saved_from_its_first_bytes_on(tmp_path: Path) -> None:
    """Also where the month before had many."""
    path, wall = str(tmp_path / "links" / "orders"), [1_796_083_140 * SECOND]
    control = Orders(OSFileSystem(), path, lambda: wall[0]).control("cloud", link("budget: 5MB"))
    await control.look(0)
    control.policy.count.add(4_000_000)
    await control.look(0)
    wall[0] += 32 * 86_400 * SECOND
    await control.look(0)
    control.policy.count.add(3_000_000)
    await control.look(0)
    again = Orders(OSFileSystem(), path, lambda: wall[0]).control("cloud", link("budget: 5MB"))
    await again.look(0)
    assert again.policy.count.used == 3_000_000
