"""A real hub whose owner would change what an edge runs: it takes what a key signed, and the hub shows why not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from examples.demo.fabric import free_port
from tests.support.processes import Start, publish, weft
from tests.support.waiting import wait_until

HUB = """\
listen: 127.0.0.1:{port}
store: store
shards: 2
processes: 1
commit_interval: 20ms
tables: null
"""
EDGE = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams: {{telemetry: {{from: "plant/#"}}}}
links:
  cloud:
    to: "http://127.0.0.1:{port}"
    config_from_hub: allowed
    config_signed_by: [ops.pub]
    retry_min: 50ms
    retry_max: 1s
"""
GROUP = ("presses", "--group")
EACH = 20


class Hall:
    """A hub, an edge, and an operator with keys."""

    def __init__(self, start: Start, folder: Path) -> None:
        port = free_port()
        self.folder, self.config, self.edge_file = folder, folder / "hub.yaml", folder / "edge.yaml"
        self.config.write_text(HUB.format(port=port))
        self.edge_file.write_text(EDGE.format(port=port, http=free_port()))
        for name in ("ops", "next", "thief"):
            self.done("config", "keygen", folder / name)
        self.hub, self.edge = start("hub", self.config), start("edge", self.edge_file)
        self.done("hub", "group", "set", self.config, "presses", "press-*")
        self.sent: list[str] = []

    def done(self, *arguments: object) -> str:
        result = weft(*arguments)
        assert result.exit_code == 0, result.exception
        return result.output

    def signed(self, stream: str, number: int, key: str = "ops", whose: tuple[str, ...] = GROUP) -> str:
        """Settings with one more stream, signed."""
        plain, path = self.folder / "plain.yaml", self.folder / "signed.yaml"
        plain.write_text(f"streams: {{{stream}: {{from: '{stream}/#'}}}}\n")
        edges = ("--edges", "press-*") if "--group" in whose else ()
        self.done(
            "config",
            "sign",
            plain,
            "--key",
            self.folder / f"{key}.key",
            "--for",
            *whose,
            *edges,
            "--number",
            number,
            "--out",
            path,
        )
        return path.read_text()

    def declare(self, text: str, whose: tuple[str, ...] = GROUP) -> int:
        """Have the hub want some settings; their version."""
        (self.folder / "declared.yaml").write_text(text)
        said = self.done("hub", "config", "set", self.config, whose[0], self.folder / "declared.yaml", *whose[1:])
        return int(said.split()[2])

    def outcome(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = json.loads(self.done("hub", "config", "status", self.config, "--json"))
        return next(iter(rows), {})

    def refuses(self, text: str, reason: str, whose: tuple[str, ...] = GROUP) -> None:
        self.declare(text, whose)
        self.shows_refusal(reason)

    def shows_refusal(self, reason: str) -> None:
        wait_until(
            lambda: self.outcome().get("outcome") == "refused" and reason in self.outcome()["reason"],
            what=f"the refusal: {reason}",
            seconds=30,
        )
        self.publish()

    def publish(self) -> None:
        """Devices continue, whatever is declared."""
        payloads = [f"{len(self.sent) + n}" for n in range(EACH)]
        publish(self.edge.mqtt_port, "plant/1", payloads)
        self.sent += payloads

    def streams(self) -> list[str]:
        return sorted(self.edge.json("status")["streams"])


@pytest.mark.slow
@pytest.mark.processes
def test_an_edge_takes_what_its_keys_signed_and_the_hub_shows_why_not(start: Start, tmp_path: Path) -> None:
    hall = Hall(start, tmp_path)
    wait_until(lambda: hall.hub.json("v1/status")["links"], what="the link")
    hall.refuses("streams: {spy: {from: '#'}}\n", "has no signature")
    first = hall.signed("alarms", 1)
    hall.declare(hall.signed("energy", 2))
    wait_until(lambda: hall.outcome()["outcome"] == "confirmed", what="the confirmation", seconds=120)
    assert "energy" in hall.streams()
    hall.publish()
    hall.refuses(first, "has the number 1, an earlier one again: the edge has had 2")
    hall.refuses(hall.signed("alarms", 3).replace("alarms/#", "#"), "it was changed after it was signed")
    hall.refuses(hall.signed("alarms", 3, "thief"), "which is none of config_signed_by")
    # The command says it first. A writer to the store could declare them all the same.
    other = hall.signed("alarms", 3, whose=("ovens", "--group"))
    refused = weft("hub", "config", "set", hall.config, "presses", tmp_path / "signed.yaml", "--group").exception
    assert "it is signed for group ovens of tenant default, not for group presses" in str(refused)
    hall.refuses(other.replace("target: group ovens", "target: group presses"), "it was changed after it was signed")
    hall.done("hub", "config", "remove", hall.config, *GROUP)
    hall.shows_refusal("group presses is missing, and nothing that is signed withdraws its settings")
    assert "energy" in hall.streams()
    assert "alarms" not in hall.streams()
    # Another key takes over, and the node runs on.
    hall.edge_file.write_text(hall.edge_file.read_text().replace("[ops.pub]", "[ops.pub, next.pub]"))
    hall.done("edge", "reload", hall.edge_file)
    version = hall.declare(hall.signed("alarms", 3, "next"))
    wait_until(lambda: hall.outcome().get("active") == version, what="settings of the next key", seconds=30)
    assert "alarms" in hall.streams()
    hall.publish()
    assert hall.edge.process.poll() is None
    wait_until(
        lambda: len(hall.hub.json("v1/streams/telemetry/records?limit=10000")["records"]) == len(hall.sent),
        what="every record",
        seconds=60,
    )
    records = hall.hub.json("v1/streams/telemetry/records?limit=10000")["records"]
    assert [each["payload"] for each in records] == hall.sent


FUNCTION = """\
node: press-7
data_dir: data
listeners: {{mqtt: {{bind: "127.0.0.1:0"}}}}
http: {{bind: "127.0.0.1:{http}"}}
disk: {{budget: 64MiB, segment: 4MiB}}
streams:
  telemetry: {{from: "plant/#", payload: json}}
  scored: {{from_stream: telemetry, functions: [{{python: score.py}}]}}
"""
CODE = "def process(record, ctx):\n    return {'n': record['n'], 'by': '%s'}\n"


@pytest.mark.slow
@pytest.mark.processes
def test_a_node_runs_code_as_it_was_signed_and_goes_on_with_it(start: Start, tmp_path: Path) -> None:
    config, code = tmp_path / "edge.yaml", tmp_path / "score.py"
    config.write_text(FUNCTION.format(http=free_port()))
    code.write_text(CODE % "one")
    assert weft("config", "keygen", tmp_path / "ops").exit_code == 0
    edge = start("edge", config)

    def sign() -> None:
        assert weft("config", "sign-code", code, "--key", tmp_path / "ops.key").exit_code == 0

    def scored(n: int) -> list[dict[str, Any]]:
        publish(edge.mqtt_port, "plant/1", [json.dumps({"n": n})])
        lines: list[dict[str, Any]] = []

        def came() -> bool:
            said = weft("edge", "tail", config, "scored", "--json", "--last", 100).output.splitlines()
            lines[:] = [json.loads(json.loads(line)["payload"]) for line in said if "payload" in json.loads(line)]
            return any(line["n"] == n for line in lines)

        wait_until(came, what=f"record {n}", seconds=60)
        return lines

    assert scored(1) == [{"n": 1, "by": "one"}]
    config.write_text(config.read_text() + "functions_signed_by: [ops.pub]\n")
    refused = weft("edge", "reload", config)
    assert "score.py has no signature beside it" in str(refused.exception)
    assert scored(2)[-1] == {"n": 2, "by": "one"}
    assert edge.stop() == 0
    edge = start("edge", config)
    wait_until(lambda: "score.py has no signature beside it" in edge.text("status"), what="the function to wait")
    sign()
    assert scored(3)[-1] == {"n": 3, "by": "one"}
    code.write_text(CODE % "two")
    wait_until(
        lambda: scored(4)[-1]["by"] == "one" and "was changed after it was signed" in edge.text("status"),
        what="the changed code to be refused",
        seconds=60,
    )
    sign()
    wait_until(lambda: scored(5)[-1]["by"] == "two", what="the signed code", seconds=60)
    assert {line["by"] for line in scored(6) if line["n"] < 5} == {"one"}
    assert edge.stop() == 0
