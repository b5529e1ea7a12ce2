"""A hub with TLS and edge nodes with certificates, as real processes."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.certificates import Authority, Pem
from tests.support.processes import Log, Node, Start, publish, weft
from tests.support.waiting import wait_until
from tests.weft.test_hub_processes import port
from weft.commands.running import get_status

pytestmark = [pytest.mark.processes, pytest.mark.slow]
__all__ = ["port"]

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 4
processes: 2
commit_interval: 20ms
tables: null
tls: {{certificate: hub.crt, key: hub.key, client_ca: authority.pem, crl_file: revoked.crl}}
"""
EDGE = """\
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
        self.hub.write_text(HUB.format(port=port))

    def status(self, process: int = 0) -> Any:
        return get_status(f"127.0.0.1:{self.port + process}", "/v1/status", None, self.certificate.certificate)

    def edges(self, process: int) -> list[str]:
        return [link["edge"] for link in self.status(process)["links"] if link["edge"]]

    def edge(self, name: str) -> Path:
        self.certificates[name] = self.authority.sign(name)
        path = self._folder / f"{name}.yaml"
        # The first URL names a port where nothing listens: links try the next one.
        path.write_text(EDGE.format(name=name, urls=f"'https://localhost:1', 'https://127.0.0.1:{self.port}'"))
        return path


def stored(place: Place) -> int:
    result = weft("streams", place.hub, "--json")
    return sum(stream["records"] for stream in json.loads(result.output)["streams"])


def last_error(node: Node) -> str:
    return str(node.json("status")["links"]["cloud"]["last_error"])


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
    wait_until(lambda: stored(place) == len(names))

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
    wait_until(lambda: stored(place) == len(names) + len(others))

    status = weft("hub", "status", place.hub)
    assert "valid until" in status.output
    assert "certificates valid until 20" in weft("hub", "check", place.hub).output
    assert "certificates valid until 20" in weft("edge", "check", tmp_path / "press-1.yaml").output
    assert hub.stop() == 0
