"""A changed configuration is in force as a whole, or not at all."""

from __future__ import annotations

import asyncio

import pytest

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.part import Part, Undo
from weft.edge_node.reconfigure import ConfigFile, ConfigUnusable, Reconfigure

BASE = """\
node: a
data_dir: /data
disk: {budget: 64MiB}
streams: {telemetry: {from: t/#}}
links: {cloud: {to: "http://hub"}}
"""
OTHER = BASE.replace("t/#", "other/#")


def edge(text: str) -> EdgeConfig:
    return parse(text, "edge.yaml", EdgeConfig, check).config


class Counted(Part):
    """A part that takes everything over, or refuses what has a certain stream."""

    def __init__(self, name: str, refuses: str = "", error: type[Exception] = ValueError) -> None:
        self.name = name
        self.now: EdgeConfig | None = None
        self._refuses = refuses
        self._error = error

    def adopt(self, before: EdgeConfig, now: EdgeConfig) -> Undo:
        if self._refuses in now.streams:
            raise self._error("the log is full")
        self.now = now

        def undo() -> None:
            self.now = before

        return undo


def made(*parts: Part, file: ConfigFile | None = None) -> Reconfigure:
    ticks = iter(range(10**9, 10**12, 10**9))
    return Reconfigure(edge(BASE), parts, lambda: next(ticks), file)


def test_all_parts_work_by_the_new_configuration_and_the_version_goes_up() -> None:
    one, two = Counted("one"), Counted("two")
    found = made(one, two)
    digest = found.version.digest
    outcome = found.apply(edge(OTHER))
    assert one.now == two.now == found.running == edge(OTHER)
    assert (outcome.applied, outcome.restart) == (["streams.telemetry.from"], [])
    assert (outcome.version.number, outcome.version.since) == (2, 2.0)
    assert outcome.version.digest != digest
    assert found.apply(edge(BASE)).version.digest == digest, "the same settings have the same digest"
    assert found.facts()["number"] == 3


def test_what_needs_a_restart_is_named_and_everything_else_is_taken_over() -> None:
    part = Counted("part")
    found = made(part)
    wanted = edge(OTHER.replace("64MiB", "128MiB") + "commit_interval: 1s\n")
    outcome = found.apply(wanted)
    assert (outcome.applied, outcome.restart) == (["streams.telemetry.from"], ["commit_interval", "disk.budget"])
    assert part.now is not None
    assert part.now.disk.budget_bytes == 64 << 20
    assert found.facts()["restart"] == ["commit_interval", "disk.budget"]
    assert found.apply(wanted).version.number == 2, "nothing more has changed"
    assert found.apply(edge(OTHER)).restart == []


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_one_part_that_refuses_takes_everything_back(error: type[Exception]) -> None:
    one, two, three = Counted("one"), Counted("two", "more", error), Counted("three")
    found = made(one, two, three)
    wanted = edge(BASE.replace("streams: {", "streams: {more: {from: m}, "))
    with pytest.raises(ConfigUnusable, match="two: the log is full"):
        found.apply(wanted)
    assert one.now == found.running == edge(BASE)
    assert three.now is None
    assert (found.version.number, found.facts()["refused"]) == (1, "two: the log is full")
    found.apply(edge(OTHER))
    assert found.facts()["refused"] == ""


def test_new_sections_that_contradict_what_needs_a_restart_are_not_taken_over() -> None:
    part = Counted("part")
    found = made(part)
    wanted = BASE.replace("64MiB", "1GiB").replace("from: t/#", "from: t/#, retain: {size: 512MiB}")
    with pytest.raises(ConfigUnusable, match=r"size: expected at most disk\.budget\. Restart the node, as disk"):
        found.apply(edge(wanted))
    assert part.now is None
    assert found.running == edge(BASE)


async def test_a_file_that_is_not_valid_changes_nothing_and_is_told_of() -> None:
    def read() -> EdgeConfig:
        raise ConfigUnusable("edge.yaml:4: streams: expected names")

    part = Counted("part")
    found = made(part, file=ConfigFile("edge.yaml", read))
    with pytest.raises(ConfigUnusable, match="expected names"):
        await found.reload()
    assert part.now is None
    assert found.facts()["refused"] == "edge.yaml:4: streams: expected names"


async def test_reloads_come_one_after_the_other() -> None:
    files = [BASE.replace("t/#", f"t{at}/#") for at in range(5)]
    waiting = list(files)
    part = Counted("part")
    found = made(part, file=ConfigFile("edge.yaml", lambda: edge(waiting.pop(0))))
    outcomes = await asyncio.gather(*(found.reload() for _ in files))
    assert [outcome.version.number for outcome in outcomes] == [2, 3, 4, 5, 6]
    assert found.running == edge(files[-1])
