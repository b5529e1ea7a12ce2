"""A hub of several processes, as real processes: started, killed one by one, stopped."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support import forked
from tests.support.certificates import Authority, Pem
from tests.support.processes import Log, Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from weft.commands.running import get_status
from weft.protocols.shard.placement import shard_of

pytestmark = pytest.mark.processes

HUB = "listen: 127.0.0.1:{port}\nstore: store\nshards: 4\nprocesses: 2\ncommit_interval: 20ms\ntables: null\n"


@pytest.fixture
def port() -> int:
    """A free port with a free one behind it."""
    while True:
        first = free_port()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", first + 1))
            except OSError:
                continue
            return first


@pytest.fixture
def config(tmp_path: Path, port: int) -> Path:
    path = tmp_path / "hub.yaml"
    path.write_text(HUB.format(port=port))
    return path


def ask(port: int, path: str = "v1/status") -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=PATIENCE_S) as answer:
        return json.load(answer)


def answers(port: int) -> bool:
    try:
        return bool(ask(port))
    except OSError:
        return False


def children(supervisor: int) -> list[int]:
    """The ids of a hub's processes, by their numbers."""
    pids = [int(pid) for pid in Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()]
    return sorted(pids, key=lambda pid: Path(f"/proc/{pid}/cmdline").read_text().partition("--part")[2])


@pytest.mark.slow
def test_each_process_has_shards_of_its_own_and_answers_for_all(config: Path, port: int, start: Start) -> None:
    hub = start("hub", config)
    assert hub.url == f"http://127.0.0.1:{port}/"
    owned = [[shard["shard"] for shard in ask(port + number)["shards"]] for number in (0, 1)]
    assert sorted(owned[0] + owned[1]) == [0, 1, 2, 3]
    assert len(owned[0]) == len(owned[1]) == 2
    assert [peer["port"] for peer in ask(port)["peers"]] == [port + 1]
    assert ask(port + 1, "v1/streams")["streams"] == []
    status = json.loads(weft("hub", "status", config, "--json").output)
    assert [shard["shard"] for shard in status["shards"]] == [0, 1, 2, 3]
    assert {shard["chunk"] for shard in status["shards"]} == {None}, "a shard without a chunk has none"
    checked = weft("hub", "check", config)
    assert f"a hub answers at 127.0.0.1:{port + 1} already" in checked.stderr
    assert hub.stop() == 0
    assert not answers(port)
    assert not answers(port + 1)


@pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="needs proc(5)")
@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_others_go_on(
    config: Path, port: int, start: Start, log: Log
) -> None:
    hub = start("hub", config)
    for victim in (0, 1):
        os.kill(children(hub.process.pid)[victim], signal.SIGKILL)
        assert answers(port + 1 - victim)
        wait_until(lambda: all(answers(port + number) for number in (0, 1)))
        assert log.has(f"process {victim} ended: killed by SIGKILL; starting it again")
    assert hub.stop() == 0


@pytest.mark.slow
def test_processes_end_with_their_supervisor(config: Path, port: int, start: Start) -> None:
    hub = start("hub", config)
    hub.kill()
    wait_until(lambda: not answers(port) and not answers(port + 1))
    again = start("hub", config)
    assert answers(port + 1)
    assert again.stop() == 0


@pytest.mark.slow
def test_a_hang_up_reaches_every_process(config: Path, start: Start, log: Log, tmp_path: Path) -> None:
    hub = start("hub", config)
    hub.process.send_signal(signal.SIGHUP)
    wait_until(lambda: log.text.count("SIGHUP: no certificate is set") == 2)
    wait_until(lambda: log.has("no setting in"))
    assert log.text.count("no setting in") == 1
    assert hub.stop() == 0


@pytest.mark.slow
def test_what_keeps_a_process_from_starting_is_told_once(config: Path, port: int, log: Log) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port + 1))
        taken.listen()
        checked = weft("hub", "check", config)
        assert f"127.0.0.1:{port + 1}" in str(checked.stderr)
        command = [sys.executable, "-m", "weft", "hub", "run", str(config)]
        done = forked.run(command, stderr=log.file, timeout=PATIENCE_S, check=False)
        assert done.returncode == 1
    assert log.has(f"weft: {config}:1: listen: ")
    assert [line for line in log.text.splitlines() if " INFO " not in line and not line.startswith("weft: ")] == []
    assert not answers(port)


EDGE = """\
node: {name}
data_dir: {name}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links: {{cloud: {{to: "http://127.0.0.1:{port}", retry_min: 50ms, retry_max: 200ms}}}}
"""


def names(port: int) -> list[str]:
    """An edge of a shard of each process."""
    own = [next(shard["shard"] for shard in ask(port + number)["shards"] if shard["own"]) for number in (0, 1)]
    return [next(f"press-{n}" for n in range(64) if shard_of("default", f"press-{n}", 4) == shard) for shard in own]


def edges(port: int) -> list[str]:
    return [link["edge"] for link in ask(port)["links"]]


def stored(port: int) -> int:
    return sum(stream["records"] for stream in ask(port, "v1/streams")["streams"])


@pytest.mark.slow
def test_an_edge_goes_to_its_process_and_is_served_by_another_while_that_is_away(
    config: Path, port: int, start: Start, tmp_path: Path
) -> None:
    hub = start("hub", config)
    nodes, edge_names = [], names(port)
    for name in edge_names:
        path = tmp_path / f"{name}.yaml"
        path.write_text(EDGE.format(name=name, port=port))
        nodes.append(start("edge", path))
    wait_until(lambda: (edges(port), edges(port + 1)) == ([edge_names[0]], [edge_names[1]]))
    for node in nodes:
        publish(node.mqtt_port, "plant/a", ["first"])
    wait_until(lambda: (stored(port), stored(port + 1)) == (2, 2))
    os.kill(children(hub.process.pid)[1], signal.SIGKILL)
    wait_until(
        lambda: set(edges(port)) == set(edge_names) or (answers(port + 1) and edges(port + 1) == [edge_names[1]])
    )
    for node in nodes:
        publish(node.mqtt_port, "plant/a", ["second"])
    wait_until(lambda: answers(port + 1))
    wait_until(lambda: (stored(port), stored(port + 1)) == (4, 4))
    found = ask(port, "v1/streams/telemetry/records")["records"]
    expected = [(name, seq) for name in sorted(edge_names) for seq in (0, 1)]
    assert sorted((record["edge"], record["seq"]) for record in found) == expected
    assert [node.stop() for node in nodes] == [0, 0]
    assert hub.stop() == 0


# --- A hub with TLS and edge nodes with certificates, as real processes


__all__ = ["port"]

HUB_TLS_HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 4
processes: 2
commit_interval: 20ms
tables: null
tls: {{certificate: hub.crt, key: hub.key, client_ca: authority.pem, crl_file: revoked.crl}}
"""
HUB_TLS_EDGE = """\
node: {name}
data_dir: {name}
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:0"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: [{urls}]
    ca_file: authority.pem
    certificate: {name}.crt
    key: {name}.key
    retry_min: 50ms
    retry_max: 200ms
"""


class Place:
    """A hub's folder, with an authority and edges of both processes."""

    def __init__(self, folder: Path, port: int) -> None:
        self.authority, self.port, self._folder = Authority(folder), port, folder
        self.certificate = self.authority.sign("hub")
        self.certificates: dict[str, Pem] = {}
        self.authority.revoke()
        self.hub = folder / "hub.yaml"
        self.hub.write_text(HUB_TLS_HUB.format(port=port))

    def status(self, process: int = 0) -> Any:
        return get_status(f"127.0.0.1:{self.port + process}", "/v1/status", None, self.certificate.certificate)

    def edges(self, process: int) -> list[str]:
        return [link["edge"] for link in self.status(process)["links"] if link["edge"]]

    def edge(self, name: str) -> Path:
        self.certificates[name] = self.authority.sign(name)
        path = self._folder / f"{name}.yaml"
        # The first URL names a port where nothing listens: links try the next one.
        path.write_text(HUB_TLS_EDGE.format(name=name, urls=f"'https://localhost:1', 'https://127.0.0.1:{self.port}'"))
        return path


def hub_tls_stored(place: Place) -> int:
    result = weft("streams", place.hub, "--json")
    return sum(stream["records"] for stream in json.loads(result.output)["streams"])


def last_error(node: Node) -> str:
    return str(node.json("status")["links"]["cloud"]["last_error"])


@pytest.mark.slow
def test_edges_come_by_certificate_to_their_own_process_and_a_revoked_one_is_shut_out(
    tmp_path: Path, port: int, start: Start, log: Log
) -> None:
    place = Place(tmp_path, port)
    hub = start("hub", place.hub)
    assert hub.ready.strip().endswith(f"https://127.0.0.1:{port}")
    names = ["press-1", "press-2", "press-3", "press-4", "press-5"]
    nodes = {name: start("edge", place.edge(name)) for name in names}
    wait_until(lambda: sorted(place.edges(0) + place.edges(1)) == names)
    assert place.edges(0), "each process has some: REDIRECT leads from one to the other by TLS"
    assert place.edges(1)
    for node in nodes.values():
        publish(node.mqtt_port, "plant/a", ["first"])
        assert 'weft_edge_link_certificate_expires_timestamp_seconds{link="cloud"}' in node.text("metrics")
    wait_until(lambda: hub_tls_stored(place) == len(names))

    before = {link["edge"]: link["connected_since"] for process in (0, 1) for link in place.status(process)["links"]}
    new = place.authority.sign("hub", "next")
    os.replace(new.certificate, place.certificate.certificate)
    os.replace(new.key, place.certificate.key)
    hub.process.send_signal(signal.SIGHUP)
    wait_until(lambda: log.text.count("read the certificates again") >= 2)
    assert before == {
        link["edge"]: link["connected_since"] for process in (0, 1) for link in place.status(process)["links"]
    }

    place.authority.revoke(place.certificates["press-2"])
    wait_until(lambda: "certificate revoked" in last_error(nodes["press-2"]))
    assert "press-2" not in place.edges(0) + place.edges(1)
    others = [node for name, node in nodes.items() if name != "press-2"]
    for node in others:
        publish(node.mqtt_port, "plant/a", ["second"])
    wait_until(lambda: hub_tls_stored(place) == len(names) + len(others))

    status = weft("hub", "status", place.hub)
    assert "valid until" in status.output
    assert "certificates valid until 20" in weft("hub", "check", place.hub).output
    assert "certificates valid until 20" in weft("edge", "check", tmp_path / "press-1.yaml").output
    assert hub.stop() == 0
