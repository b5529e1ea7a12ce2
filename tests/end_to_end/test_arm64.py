"""An edge node on arm64, as on a Raspberry Pi: it starts, takes messages, is cut off from power, and drains to a hub.

An emulator runs the processor's code, so this is a night's work. The node is the one of the arm64 image, or that of the
Debian package in a Debian of arm64.
"""

from __future__ import annotations

import asyncio
import random
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from deltalake import DeltaTable

from deploy.images.tree import MACHINES, wanted, wheels_for
from examples.demo.devices import AmqpDevice, Device, HttpDevice, MqttDevice
from examples.demo.fabric import DemoHub, Edge
from tests.deploy.test_debian_package import CONFIG, UNITS, install, package_of, settings_of
from tests.end_to_end.test_kills import STREAM, Load, check_every_message, make_edge, wait_until_drained
from tests.support.debian_root import OF_ARM64, DebianRoot, debian_root
from tests.support.images import EdgeTree, build_wheel, edge_tree
from tests.support.outcomes import outcome
from tests.support.slices import SLICE
from tests.support.waiting import PATIENCE_S, wait_until
from weft.proofs.audit.audit import audit
from weft.storage.hub_keys import table_key
from weft.storage.object_store import open_store

pytestmark = [
    pytest.mark.search,
    pytest.mark.processes,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(not SLICE.is_night, reason="an emulated machine is slow: only ./run nightly has the time"),
]
KILLS = 5
MEMORY_MIB_MAX = 70
"""Of a node without the emulator. It has 50 to 55."""
RATE = "100"
"""Messages a second of each device."""
MESSAGES = 1000
"""Of each protocol."""


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EdgeTree]:
    folder = tmp_path_factory.mktemp("trees")
    wheel = build_wheel(folder)
    try:
        return {architecture: edge_tree(folder / architecture, architecture, wheel) for architecture in MACHINES}
    except LookupError as error:
        pytest.skip(str(error))


def test_an_acked_message_survives_power_cuts_of_an_arm64_node(trees: dict[str, EdgeTree], tmp_path: Path) -> None:
    chance = random.Random(SLICE.seed)
    hub = DemoHub(tmp_path)
    edge = make_edge(tmp_path, hub)
    trees["arm64"].put_into(edge, is_emulated=True)
    load = None
    try:
        hub.start()
        edge.start()
        load = Load(edge.mqtt_port, options=["--rate", RATE])
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.0, 4.0))  # the random moment is the test
            edge.kill()
            edge.start()
        acked = load.finish()
        wait_until_drained(edge, hub)
    finally:
        if load is not None:
            load.kill()
        edge.stop()
        hub.stop()
    report = asyncio.run(audit(open_store(hub.store), "default", STREAM))
    assert report.agrees, report.problems
    counted = check_every_message(open_store(hub.store), acked)
    print(f"{KILLS} power cuts: {dict(counted)}")
    assert counted["messages"] > 100
    assert counted["rows"] == report.total("table_records") == report.total("records")


def test_an_arm64_debian_installs_the_package_whose_node_takes_each_protocol_and_drains(tmp_path: Path) -> None:
    build_wheel(tmp_path)
    package = package_of(tmp_path / "dist", "edge", "arm64")
    try:
        room = debian_root(tmp_path, OF_ARM64)
    except LookupError as error:
        pytest.skip(str(error))
    install(room, package)
    assert room.did("dpkg", "--print-architecture") == "arm64\n"
    hub = DemoHub(tmp_path)
    edge = Edge(tmp_path, "edge", hub.port)
    config = edge.config_path.read_text().replace(f"data_dir: {tmp_path}/edge", "data_dir: /var/lib/weft")
    (room.folder / CONFIG).write_text(config)
    sent = [b'{"n":%d}' % number for number in range(MESSAGES)]
    devices: list[Device] = [
        kind(name, f"sensors/{name}/telemetry", sent, port, float(RATE))
        for name, kind, port in (
            ("mqtt", MqttDevice, edge.mqtt_port),
            ("amqp", AmqpDevice, edge.amqp_port),
            ("http", HttpDevice, edge.post_port),
        )
    ]
    with ExitStack() as at_the_end:
        at_the_end.callback(hub.stop)
        hub.start()
        node = started(room, at_the_end)
        for each in devices:
            threading.Thread(target=each.run, daemon=True).start()
        wait_until(lambda: all(each.acked for each in devices), PATIENCE_S)
        node.kill()
        node.wait()
        started(room, at_the_end)
        wait_until(lambda: all(each.acked == MESSAGES for each in devices), PATIENCE_S)
        rows = wait_until_drained(edge, hub, "telemetry")
    store = open_store(hub.store)
    report = asyncio.run(audit(store, "default", "telemetry"))
    assert report.agrees, report.problems
    uri, options = store.location(table_key("default", "telemetry"))
    table = DeltaTable(uri, storage_options=options).to_pyarrow_table(columns=["device", "payload"])
    kept = set(zip(table["device"].to_pylist(), table["payload"].to_pylist(), strict=True))
    with outcome():
        assert kept == {(each.name, payload) for each in devices for payload in sent}
    print(f"{len(kept)} messages, {rows} rows")


def started(room: DebianRoot, at_the_end: ExitStack) -> subprocess.Popen[str]:
    """A node by the unit's command, when it is ready."""
    node = room.service(settings_of(room.folder / UNITS / "weft-edge.service"))
    at_the_end.callback(node.wait)
    at_the_end.callback(node.kill)
    assert node.stdout is not None
    assert next((line for line in node.stdout if "is ready" in line), "")
    return node


def test_an_arm64_node_needs_no_more_memory_than_one_of_amd64(trees: dict[str, EdgeTree], tmp_path: Path) -> None:
    """What the emulator takes for itself is what a node of amd64 has more with it than without it."""
    hub = DemoHub(tmp_path)  # which does not run: the link tries again
    native, emulated, of_arm64 = (
        measured(make_edge(tmp_path, hub), trees[architecture], is_emulated)
        for architecture, is_emulated in (("amd64", False), ("amd64", True), ("arm64", True))
    )
    own = of_arm64[0] - (emulated[0] - native[0])
    print(f"MiB, s to its first answer: amd64 {native}, emulated {emulated}; arm64 emulated {of_arm64}, own {own:.1f}")
    assert own < MEMORY_MIB_MAX


def measured(edge: Edge, tree: EdgeTree, is_emulated: bool) -> tuple[float, float]:
    """Return the resident memory of a node that has just answered, in MiB, and the seconds until then."""
    tree.put_into(edge, is_emulated)
    began = time.perf_counter()
    edge.start()
    try:
        took_s = time.perf_counter() - began
        text = Path(f"/proc/{edge.pid}/status").read_text()
    finally:
        edge.kill()
    found = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
    assert found is not None
    return round(int(found[1]) / 1024, 1), round(took_s, 1)


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_an_edge_on_arm64_needs_no_compiler(tmp_path: Path, python: str) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={tmp_path}"]
    command = [*pip, *wheels_for("arm64", python), *wanted("edge")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any("aarch64" in path.name for path in tmp_path.glob("*.whl"))
