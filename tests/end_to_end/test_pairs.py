"""Pairs of real nodes: what is acknowledged survives the loss of either disk and is at the hub once, and times with one
disk have a name."""

from __future__ import annotations

import itertools
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion

from examples.demo.fabric import DemoHub, Relay, free_port
from tests.end_to_end.test_lost_disk import stamp
from tests.support.processes import Node, publish, weft
from tests.support.waiting import wait_until
from weft.config.metrics.edge import EDGE_METRICS
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PATIENCE_S = 60.0
ROOT = Path(__file__).parents[2]
STREAM = "telemetry"
CONFIG = """\
node: {name}
data_dir: {name}
listeners: {{mqtt: {{bind: "127.0.0.1:{mqtt}"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/{{device}}/telemetry"}}
links:
  hub: {{to: "http://127.0.0.1:{hub}", retry_min: 50ms, retry_max: 300ms, mark_interval: 1s}}
pair:
  listen: 127.0.0.1:{own}
  peer: http://127.0.0.1:{other}
  acks: {acks}
  alone_after: {alone}
  alone: {policy}
  take_over_after: {after}
"""


class Side:
    """One node of the pair, with lines to its hub and to its peer that can be cut."""

    def __init__(self, folder: Path, name: str, hub: DemoHub) -> None:
        self.folder, self.name = folder, name
        self.port, self.mqtt_port, self.http_port = free_port(), free_port(), free_port()
        self.to_hub = Relay(hub.port)
        self.config = folder / f"{name}.yaml"
        self.node: Node

    def meet(self, other: Side, *, acks: str, alone: str, after: str, policy: str) -> None:
        self.to_peer = Relay(other.port)
        self.config.write_text(
            CONFIG.format(
                name=self.name,
                mqtt=self.mqtt_port,
                http=self.http_port,
                hub=self.to_hub.port,
                own=self.port,
                other=self.to_peer.port,
                acks=acks,
                alone=alone,
                after=after,
                policy=policy,
            )
        )

    def start(self) -> None:
        self.node = Node("edge", self.config, popen=subprocess.Popen)

    def publish(self, first: int, end: int) -> None:
        publish(self.node.mqtt_port, f"plant/{self.name}/telemetry", [str(number) for number in range(first, end)])

    @property
    def pair(self) -> Any:
        return self.node.json("status")["pair"]

    @property
    def copy(self) -> Any:
        (copy,) = self.pair["copies"].values()
        return copy

    def is_ready(self) -> bool:
        """Whether the peer copies its records, and may bring them to the hub by itself."""
        return bool(self.pair["state"] == "connected" and self.pair["compared"])

    def burn(self) -> None:
        self.node.kill()
        shutil.rmtree(self.folder / self.name)


class Site:
    """A hub and a pair."""

    def __init__(
        self, folder: Path, *, acks: str = "both", alone: str = "30s", after: str = "null", policy: str = "acknowledge"
    ) -> None:
        self.hub = DemoHub(folder, settings="mark_interval: 1s\n")
        self.hub.start()
        self.a, self.b = Side(folder, "a", self.hub), Side(folder, "b", self.hub)
        self.sides = self.a, self.b
        for side, other in ((self.a, self.b), (self.b, self.a)):
            side.meet(other, acks=acks, alone=alone, after=after, policy=policy)
        for side in self.sides:
            side.start()
        for side in self.sides:
            wait_until(side.is_ready, PATIENCE_S, lambda side=side: side.pair)  # type: ignore[misc]

    def rows(self) -> dict[str, list[int]]:
        """The numbers in the table by device, counted without the hub."""
        from deltalake import DeltaTable

        uri, options = open_store(self.hub.store).location(table_key("default", STREAM))
        rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"]).to_pylist()
        found: dict[str, list[int]] = {}
        for row in rows:
            found.setdefault(row["device"], []).append(int(row["payload"]))
        return found

    def records(self) -> list[tuple[str, int, int]]:
        """The lane and number of each record in the table, with those that are there twice."""
        from deltalake import DeltaTable

        uri, options = open_store(self.hub.store).location(table_key("default", STREAM))
        rows = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["_edge", "_log", "_seq"]).to_pylist()
        return [(row["_edge"], row["_log"], row["_seq"]) for row in rows]

    def wait_for_rows(self, count: int) -> None:
        wait_until(lambda: self.hub.table_rows() >= count, PATIENCE_S, lambda: [side.pair for side in self.sides])

    def stop(self) -> None:
        for side in self.sides:
            if side.node.process.poll() is None:
                side.node.kill()
        self.hub.stop()


class Device:
    """A client that knows several addresses, and goes to the next one when it loses its connection. A context."""

    def __init__(self, name: str, ports: list[int]) -> None:
        self._topic = f"plant/{name}/telemetry"
        self._ports = itertools.cycle(ports)
        self.paho = paho.Client(CallbackAPIVersion.VERSION2, name, clean_session=False)
        self.paho.reconnect_delay_set(1, 1)
        self.acked, self._sent = set[int](), dict[int, int]()
        self.paho.on_disconnect = self._go_on
        self.paho.on_connect_fail = self._go_on
        self.paho.on_publish = lambda _client, _data, mid, *_: self.acked.add(mid)

    def __enter__(self) -> Device:
        self.paho.connect("127.0.0.1", next(self._ports), keepalive=4)
        self.paho.loop_start()
        return self

    def __exit__(self, *_: object) -> None:
        self.paho.on_disconnect = None
        self.paho.disconnect()
        self.paho.loop_stop()

    def _go_on(self, *_: object) -> None:
        self.paho.connect_async("127.0.0.1", next(self._ports), keepalive=4)

    def publish(self, first: int, end: int, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Publish at QoS 1, and wait until each message is acknowledged, by whichever node.

        Args:
            meanwhile: happens when half of them are published.
        """
        for number in range(first, end):
            if number == (first + end) // 2:
                meanwhile()
            self._sent[self.paho.publish(self._topic, str(number), qos=1).mid] = number
        wait_until(lambda: self.acked >= self._sent.keys(), PATIENCE_S, lambda: len(self._sent.keys() - self.acked))


Make = Callable[..., Site]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[Site] = []

    def site(**settings: str) -> Site:
        made.append(Site(tmp_path, **settings))
        return made[-1]

    yield site
    for each in made:
        each.stop()


def test_a_node_burns_and_its_peer_brings_the_hub_everything_that_was_acknowledged(make: Make) -> None:
    site = make()
    a, b = site.a, site.b
    for side in site.sides:
        side.to_hub.cut()
    a.publish(0, 300)
    b.publish(0, 50)
    assert a.pair["alone_since"] is None
    a.burn()
    b.to_hub.restore()
    done = weft("edge", "take-over", b.config)
    assert done.exit_code == 0, done.output
    assert "the hubs took 300 records of the copy, and had 0 records under the same numbers before" in done.output
    assert "the copy has everything that the node took in until" in done.output
    site.wait_for_rows(350)
    assert {device: sorted(numbers) for device, numbers in site.rows().items()} == {
        "a": [*range(300)],
        "b": [*range(50)],
    }
    # A new disk under the same name: another log, and the pair continues.
    a.to_hub.restore()
    a.start()
    wait_until(lambda: a.pair["state"] == "connected", PATIENCE_S, lambda: a.pair)
    a.publish(300, 350)
    site.wait_for_rows(400)
    assert sorted(site.rows()["a"]) == [*range(350)]


def test_a_peer_takes_over_by_itself_and_the_return_of_the_node_doubles_nothing(make: Make) -> None:
    site = make(after="1s")
    a, b = site.a, site.b
    a.to_hub.cut()
    b.to_hub.cut()
    a.publish(0, 200)
    a.node.kill()
    b.to_hub.restore()
    site.wait_for_rows(200)
    wait_until(lambda: not b.copy["records"], PATIENCE_S, lambda: b.pair)
    a.to_hub.restore()
    a.start()
    a.publish(200, 250)
    site.wait_for_rows(250)
    assert sorted(site.rows()["a"]) == [*range(250)]
    now = stamp()
    wait_until(lambda: (site.hub.complete_up_to()[STREAM] or "") >= now, PATIENCE_S, site.hub.complete_up_to)


def test_a_restored_old_copy_is_noticed_at_the_peer_and_takes_nothing_in(make: Make) -> None:
    """The hub has none of the records that only the peer remembers: without it the copy would use their numbers."""
    site = make()
    a, b = site.a, site.b
    for side in site.sides:
        side.to_hub.cut()
    a.publish(0, 50)
    a.node.stop()
    image = a.folder / "image"
    shutil.copytree(a.folder / "a", image)
    epoch = (a.folder / "a" / "links" / "epoch").read_bytes()
    a.start()
    wait_until(lambda: a.pair["state"] == "connected", PATIENCE_S, lambda: a.pair)
    a.publish(50, 100)
    assert a.pair["records_with_one_disk"] == 0
    assert (a.folder / "a" / "links" / "epoch").read_bytes() == epoch, "a peer takes no epoch that hubs know"
    a.burn()
    shutil.copytree(image, a.folder / "a")
    a.to_hub.restore()
    a.start()
    assert list(a.node.json("status")["conflicts"]) == ["to the peer"]
    assert "up to seq 100" in a.pair["conflict"]
    b.to_hub.restore()
    assert weft("link", "pause", b.config).exit_code == 0
    asked = subprocess.Popen([sys.executable, "-m", "weft", "edge", "take-over", str(b.config)])
    wait_until(lambda: "paused" in b.copy["trouble"], PATIENCE_S, lambda: b.pair)
    assert b.copy["records"] == 100
    assert weft("link", "resume", b.config).exit_code == 0
    assert asked.wait(PATIENCE_S) == 0
    site.wait_for_rows(100)
    assert sorted(site.rows()["a"]) == [*range(100)]


def test_a_split_costs_nothing_but_times_alone_which_both_name(make: Make) -> None:
    site = make(alone="200ms")
    a, b = site.a, site.b
    for side in site.sides:
        side.to_peer.cut()
        side.to_hub.cut()
    for side in site.sides:
        side.publish(0, 100)
        assert side.pair["alone_since"] is not None
        assert side.pair["records_with_one_disk"] > 0
    for side in site.sides:
        side.to_peer.restore()
    for side in site.sides:
        wait_until(lambda side=side: side.pair["alone_since"] is None, PATIENCE_S, lambda side=side: side.pair)  # type: ignore[misc]
        assert side.pair["records_with_one_disk"] == 0
        assert len(side.pair["times_alone"]) == 1
    a.publish(100, 120)
    assert len(a.pair["times_alone"]) == 1, "it waits for its peer again"
    shown = a.node.text("metrics")
    assert [each.name for each in EDGE_METRICS if "_pair_" in each.name and f"\n{each.name} " not in shown] == []
    b.burn()
    a.to_hub.restore()
    assert weft("edge", "take-over", a.config).exit_code == 0
    site.wait_for_rows(220)
    assert {device: sorted(numbers) for device, numbers in site.rows().items()} == {
        "a": [*range(120)],
        "b": [*range(100)],
    }


def test_what_hubs_have_leaves_the_copy_and_a_copy_that_follows_says_how_far_it_is(make: Make) -> None:
    site = make(acks="own")
    a, b = site.a, site.b
    a.to_hub.cut()
    a.publish(0, 100)
    wait_until(lambda: b.copy["records"] == 100, PATIENCE_S, lambda: b.pair)
    wait_until(lambda: not a.pair["records_with_one_disk"], PATIENCE_S, lambda: a.pair)
    assert a.pair["times_alone"] == []
    a.to_hub.restore()
    wait_until(lambda: not b.copy["records"], PATIENCE_S, lambda: b.pair)
    b.node.kill()
    a.publish(100, 150)
    a.to_peer.cut()
    site.wait_for_rows(150)


def test_numbers_that_the_hub_has_for_others_make_it_neither_complete_nor_the_copy_empty(make: Make) -> None:
    """Neither the hub nor the peer knows both logs: the node, which would, burns before it is asked."""
    site = make(alone="200ms", after="1s")
    a, b = site.a, site.b
    a.to_peer.cut()
    a.publish(0, 50)
    site.wait_for_rows(50)
    a.node.stop()
    image = a.folder / "image"
    shutil.copytree(a.folder / "a", image)
    a.start()
    a.publish(50, 100)
    site.wait_for_rows(100)
    a.burn()
    shutil.copytree(image, a.folder / "a")
    a.to_hub.cut()
    a.to_peer.restore()
    a.start()
    wait_until(lambda: a.pair["state"] == "connected", PATIENCE_S, lambda: a.pair)
    a.publish(150, 200)
    wait_until(lambda: a.pair["records_with_one_disk"] == 0, PATIENCE_S, lambda: a.pair)
    acknowledged, now = stamp(), time.time()
    wait_until(lambda: (b.copy["complete_to"] or 0) >= now + 1, PATIENCE_S, lambda: b.pair)
    a.burn()
    wait_until(lambda: b.copy["taking_over"], PATIENCE_S, lambda: b.pair)
    wait_until(lambda: not b.copy["taking_over"], PATIENCE_S, lambda: b.pair)
    assert (b.copy["records"], b.copy["only_by_order"]) == (100, 100)
    assert (site.hub.complete_up_to()[STREAM] or "") < acknowledged
    assert sorted(site.rows()["a"]) == [*range(100)]


@pytest.mark.parametrize("policy", ["refuse", "acknowledge"])
def test_a_peer_vouches_for_a_lost_node_that_acknowledged_nothing_alone(make: Make, policy: str) -> None:
    """Its lanes end with nothing missing; otherwise the hub names the time from the last mark on."""
    site = make(policy=policy)
    a, b = site.a, site.b
    a.to_hub.cut()
    a.publish(0, 100)
    now = time.time()
    wait_until(lambda: (b.copy["complete_to"] or 0) >= now, PATIENCE_S, lambda: b.pair)
    assert not b.copy["vouched"], "of a node that is there, its own word counts"
    a.burn()
    wait_until(lambda: not b.copy["connected"], PATIENCE_S, lambda: b.pair)
    assert b.copy["vouched"] == (policy == "refuse")
    done = weft("edge", "take-over", b.config)
    assert done.exit_code == 0, done.output
    assert ("acknowledges nothing alone" in done.output) == (policy == "refuse")
    site.wait_for_rows(100)
    missing = ["--missing", "nothing"] if policy == "refuse" else []
    retired = weft("hub", "retire", site.hub.config_path, "a", *missing, "--reason", "burnt", "--yes")
    assert "0 records count as lost" in retired.output
    assert ("open gap in telemetry" in retired.output) == (policy != "refuse")
    later = stamp()
    b.publish(0, 5)
    wait_until(lambda: (site.hub.complete_up_to()[STREAM] or "") >= later, PATIENCE_S, site.hub.complete_up_to)


# --- Devices that know both nodes


def test_devices_with_two_addresses_lose_nothing_while_nodes_are_killed_and_the_line_is_cut(make: Make) -> None:
    site = make(alone="200ms", after="1s")
    a, b = site.sides
    with Device("press", [a.mqtt_port, b.mqtt_port]) as device:
        for number, (dies, goes_on) in enumerate([(a, b), (b, a)]):
            device.publish(200 * number, 200 * number + 200, dies.node.kill)
            assert goes_on.pair["state"] != "connected"
            dies.start()
            for side in site.sides:
                wait_until(side.is_ready, PATIENCE_S, lambda side=side: side.pair)  # type: ignore[misc]
        for side in site.sides:
            side.to_hub.cut()
            side.to_peer.cut()
        device.publish(400, 500)
        for side in site.sides:
            side.publish(0, 100)
            assert side.pair["alone_since"] is not None
            assert "\nweft_edge_pair_alone 1" in side.node.text("metrics")
        for side in site.sides:
            side.to_peer.restore()
        for side in site.sides:
            wait_until(lambda side=side: side.pair["alone_since"] is None, PATIENCE_S, lambda side=side: side.pair)  # type: ignore[misc]
            assert "\nweft_edge_pair_alone 0" in side.node.text("metrics")
            side.to_hub.restore()
        device.publish(500, 600)
    whole = {"press": set(range(600)), "a": set(range(100)), "b": set(range(100))}
    wait_until(
        lambda: {name: set(numbers) for name, numbers in site.rows().items()} == whole,
        PATIENCE_S,
        lambda: {name: sorted(whole[name] - set(numbers)) for name, numbers in site.rows().items()},
    )
    records = site.records()
    assert len(records) == len(set(records)), "a record is there twice"
    assert {edge for edge, _, _ in records} == {"a", "b"}


def test_a_shared_address_moves_to_the_node_that_is_ready(make: Make) -> None:
    """The address is a relay here; who has it is decided by the check of docs/how-to/build-a-pair.md."""
    if shutil.which("curl") is None:
        pytest.skip("needs curl")
    page = (ROOT / "docs/how-to/build-a-pair.md").read_text()
    found = re.search(r'script "(.*?)"', page)
    assert found is not None
    check = found[1]

    def is_ready(side: Side) -> bool:
        command = shlex.split(check.replace("8080", str(side.http_port)))
        return subprocess.run(["curl", *command[1:]], check=False).returncode == 0

    site = make(alone="200ms", after="1s")
    a, b = site.sides
    address = Relay(a.mqtt_port)
    try:
        with Device("press", [address.port]) as device:
            device.publish(0, 100)
            for at, (fails, goes_on) in enumerate([(a, b), (b, a)]):
                assert is_ready(fails)
                if at:
                    fails.node.kill()
                else:
                    fails.node.process.send_signal(signal.SIGSTOP)  # as a node whose disk hangs
                assert not is_ready(fails)
                assert is_ready(goes_on)
                address.cut()
                wait_until(lambda: not address._up, PATIENCE_S, "the address leaves its node")
                address._target_port = goes_on.mqtt_port
                address.restore()
                device.publish(100 + 100 * at, 200 + 100 * at)
                if not at:
                    fails.node.process.send_signal(signal.SIGCONT)
                    for side in site.sides:
                        wait_until(side.is_ready, PATIENCE_S, lambda side=side: side.pair)  # type: ignore[misc]
        wait_until(lambda: set(site.rows()["press"]) == set(range(300)), PATIENCE_S, site.rows)
        records = site.records()
        assert len(records) == len(set(records)), "a record is there twice"
    finally:
        address.close()
