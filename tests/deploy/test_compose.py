"""deploy/compose: read by the reference reader of such files, and its services run as processes of this machine."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from examples.demo.fabric import free_port
from tests.support.processes import Node, publish, weft
from tests.support.s3_servers import VERSITYGW, built, listens
from tests.support.third_party import COMPOSE
from tests.support.waiting import PATIENCE_S, wait_until

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
KEY = {"STORE_ACCESS_KEY": "weft", "STORE_SECRET_KEY": "weft-secret"}

pytestmark = [pytest.mark.slow, pytest.mark.processes]


def test_the_reference_reader_takes_the_file(tmp_path: Path) -> None:
    try:
        reader = COMPOSE.program()
    except LookupError as error:
        pytest.skip(str(error))
    text = (FOLDER / "compose.yaml").read_text()
    for name, value in KEY.items():
        assert f"${{{name}:?" in text
        text = _without_question(text, name, value)
    for file in FOLDER.iterdir():
        shutil.copy(file, tmp_path)
    (tmp_path / "compose.yaml").write_text(text)
    command = [reader, "-format", "json", str(tmp_path / "compose.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    services = json.loads(done.stdout)["services"]
    assert sorted(services) == ["bucket", "edge", "hub-1", "hub-2", "store"]
    for name, service in services.items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["read_only"] is True, name
        assert service["security_opt"] == ["no-new-privileges:true"], name
    published = [port["host_ip"] for service in services.values() for port in service.get("ports", [])]
    assert set(published) == {"127.0.0.1"}, "nothing is open to other machines"


def _without_question(text: str, name: str, value: str) -> str:
    before, _, rest = text.partition(f"${{{name}:?")
    if not rest:
        return text
    return before + value + _without_question(rest.partition("}")[2], name, value)


class Fabric:
    """The services of the file, each a process here; names of containers stand for ports of this machine."""

    def __init__(self, folder: Path) -> None:
        self.services: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
        self.folder = folder
        self.ports = {name: free_port() for name in ("store:7070", "hub-1:8090", "hub-2:8090", "mqtt", "status")}
        self._processes: list[subprocess.Popen[bytes]] = []

    def here(self, text: str) -> str:
        for name, port in self.ports.items():
            text = text.replace(name, f"127.0.0.1:{port}") if ":" in name else text
        text = text.replace("*:1883", f"127.0.0.1:{self.ports['mqtt']}")
        return text.replace("*:8080", f"127.0.0.1:{self.ports['status']}").replace("/var/lib/weft", "data")

    def environment(self, service: str) -> dict[str, str]:
        found = {name: self.here(value) for name, value in self.services[service]["environment"].items()}
        for name, value in KEY.items():
            found = {each: value if text.startswith(f"${{{name}") else text for each, text in found.items()}
        return {**os.environ, **found}

    def start_store(self) -> None:
        data = self.folder / "store"
        python, *arguments = self.services["bucket"]["command"]
        assert python == "python", "an image of deploy/images has no other program"
        subprocess.run([sys.executable, *(word.replace("/data", str(data)) for word in arguments)], check=True)
        environment = {**self.environment("store"), "VGW_PORT": f"127.0.0.1:{self.ports['store:7070']}"}
        command = [word.replace("/data", str(data)) for word in self.services["store"]["command"]]
        with open(self.folder / "store.log", "wb") as log:
            self._processes.append(
                subprocess.Popen([built(VERSITYGW), *command], env=environment, stdout=log, stderr=log)
            )
        wait_until(lambda: listens(self.ports["store:7070"]), what="the store")

    def start_hub(self, name: str) -> Node:
        port = self.ports[f"{name}:8090"]
        path = self.folder / f"{name}.yaml"
        path.write_text((FOLDER / "hub.yaml").read_text().replace("*:8090", f"127.0.0.1:{port}"))
        weft_command, *arguments = self.services[name]["command"]
        assert (weft_command, arguments[:3]) == ("weft", ["hub", "run", "/etc/weft/hub.yaml"])
        more = [self.here(each) for each in arguments[3:]]
        return _Hub(path, more, self.environment(name))

    def start_edge(self) -> Node:
        path = self.folder / "edge.yaml"
        path.write_text(self.here((FOLDER / "edge.yaml").read_text()))
        return Node("edge", path)

    def stop(self) -> None:
        for each in self._processes:
            each.terminate()
            each.wait(PATIENCE_S)


class _Hub(Node):
    """A hub with arguments and an environment of its own."""

    def __init__(self, config: Path, arguments: list[str], environment: dict[str, str]) -> None:
        command = [sys.executable, "-m", "weft", "hub", "run", str(config), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self.process.stdout is not None
        self.ready = self.process.stdout.readline()
        assert "ready" in self.ready


@pytest.fixture
def fabric(tmp_path: Path) -> Iterator[Fabric]:
    try:
        built(VERSITYGW)
    except LookupError as error:
        pytest.skip(str(error))
    assert f"versitygw:{VERSITYGW.package.name.rpartition('@')[2]}" in (FOLDER / "compose.yaml").read_text()
    made = Fabric(tmp_path)
    made.start_store()
    yield made
    made.stop()


def stored(hub: Node) -> int:
    return sum(stream["records"] for stream in hub.json("v1/streams")["streams"])


STRANGER = "pages.example:8090"
"""Host of a web page whose name resolves to 127.0.0.1."""


def status_for(host: str, port: int, path: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path, headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("kind", ["hub", "edge"])
def test_web_pages_of_strangers_get_nothing(kind: str, tmp_path: Path) -> None:
    """With the files of the folder, published to 127.0.0.1."""
    port = free_port()
    text = (FOLDER / f"{kind}.yaml").read_text().replace("s3://plant-data/weft", "store")
    text = text.replace('"*:8090"' if kind == "hub" else '"*:8080"', f'"*:{port}"')
    text = text.replace("*:1883", "127.0.0.1:0").replace("/var/lib/weft", "data")
    config = tmp_path / f"{kind}.yaml"
    config.write_text(text)
    node = Node(kind, config)
    try:
        path = "/v1/streams" if kind == "hub" else "/status"
        assert status_for(STRANGER, port, path) == 421
        assert status_for(f"127.0.0.1:{port}", port, path) == 200
        if kind == "hub":
            assert status_for("hub-2:8090", port, path) == 200
    finally:
        assert node.stop() == 0


def test_its_services_carry_data_and_one_hub_may_go(fabric: Fabric) -> None:
    """What each container would run is run, with its files and variables; one hub is stopped as `docker stop` does."""
    hubs = {name: fabric.start_hub(name) for name in ("hub-1", "hub-2")}
    edge = fabric.start_edge()
    try:
        publish(fabric.ports["mqtt"], "plant/press/m1/telemetry", ["1", "2", "3"])
        wait_until(lambda: stored(hubs["hub-1"]) == 3)
        assert hubs["hub-1"].json("v1/status")["name"] == f"http://127.0.0.1:{fabric.ports['hub-1:8090']}"
        hubs["hub-1"].process.send_signal(signal.SIGTERM)
        grace_s = int(fabric.services["hub-1"]["stop_grace_period"].removesuffix("s"))
        assert hubs["hub-1"].process.wait(grace_s) == 0
        publish(fabric.ports["mqtt"], "plant/press/m1/telemetry", ["4"])
        wait_until(lambda: stored(hubs["hub-2"]) == 4)
        assert weft("edge", "check", fabric.folder / "edge.yaml").exception is None
    finally:
        for each in (edge, hubs["hub-2"]):
            assert each.stop() == 0
