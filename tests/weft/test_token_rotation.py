"""A token of an edge that sends is rotated and ends: nothing is started again, and each record is there once."""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Node, Start, publish, weft
from tests.support.waiting import PATIENCE_S, wait_until
from tests.weft.test_hub_declares import EDGE, HUB

TOPIC = "plant/a/b/telemetry"


class Sender(threading.Thread):
    """A device that publishes one numbered message after the other until it is stopped."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._port, self._going, self.sent = port, threading.Event(), 0

    def run(self) -> None:
        while not self._going.is_set():
            publish(self._port, TOPIC, [f"n {self.sent}"])
            self.sent += 1
            time.sleep(0.01)

    def stop(self) -> None:
        self._going.set()
        self.join()


def ask(hub: Node, path: str, token: str) -> Any:
    request = urllib.request.Request(f"{hub.url}{path}", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.loads(answer.read())


def is_open(hub: Node, token: str) -> bool:
    try:
        return bool(ask(hub, "v1/status", token))
    except urllib.error.HTTPError:
        return False


@pytest.mark.slow
@pytest.mark.processes
def test_a_token_is_rotated_twice_under_load_and_ends_without_a_lost_record(start: Start, tmp_path: Path) -> None:
    port = free_port()
    hub_yaml, edge_yaml, token_file = tmp_path / "hub.yaml", tmp_path / "edge.yaml", tmp_path / "token"
    hub_yaml.write_text(HUB.format(port=port, processes=1))
    hub = start("hub", hub_yaml)
    admin = weft("hub", "token", "add", hub_yaml, "ops", "--scope", "admin").stdout.strip()
    press = ("--scope", "edge", "--edge", "press-shop-7", "--expires", "1h")
    token_file.write_text(weft("hub", "token", "add", hub_yaml, "press", *press).stdout)
    edge_yaml.write_text(EDGE.format(port=port))
    wait_until(lambda: is_open(hub, admin), what="the admin token to open the hub")
    edge = start("edge", edge_yaml)

    def links() -> Any:
        return ask(hub, "v1/status", admin)["links"]

    wait_until(lambda: len(links()) == 1, what="the link")
    sender = Sender(edge.mqtt_port)
    sender.start()
    try:
        # In time: the new secret is there before the old one ends, and the link is away for a moment.
        since = links()[0]["connected_since"]
        token_file.write_text(weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "5s").stdout)
        wait_until(lambda: [each["connected_since"] for each in links()] not in ([since], []), what="the new link")
        # Late: the edge has an ended secret for a while, and says so.
        late = weft("hub", "token", "rotate", hub_yaml, "press", "--overlap", "2s", "--expires", "90d").stdout
        wait_until(lambda: not links(), what="the end of the link")
        wait_until(
            lambda: "(401): the token 'press' ended at" in edge.json("status")["links"]["cloud"]["last_error"],
            what="the reason at the edge",
        )
        sent = sender.sent
        wait_until(lambda: sender.sent > sent + 20, what="messages that wait at the edge")
        token_file.write_text(late)
        wait_until(lambda: len(links()) == 1, what="the link with the new secret")
    finally:
        sender.stop()

    def received() -> list[str]:
        found: list[str] = []
        for shard in range(2):
            offset = 0
            while True:
                path = f"v1/streams/telemetry/records?shard={shard}&offset={offset}&limit=1000"
                answer = ask(hub, path, admin)
                found += [each["payload"] for each in answer["records"]]
                if not answer["records"]:
                    break
                offset = answer["next_offset"][str(shard)]
        return found

    wait_until(lambda: len(received()) >= sender.sent, what="all records")
    assert sorted(received()) == sorted(f"n {each}" for each in range(sender.sent)), "each once"
    assert hub.process.poll() is None
    assert edge.process.poll() is None
    status = weft("hub", "token", "list", hub_yaml, "--json").output
    assert next(each for each in json.loads(status) if each["name"] == "press")["until"].startswith("20")
