"""The example on the page of the function does what the page says."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from tests.functions.kinds.sparkplug.messages import Plant, made
from tests.functions.restart import run
from tests.support.processes import weft
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import definitions

PAGE = Path(__file__).parents[4] / "docs/functions/sparkplug.md"
_BLOCK = re.compile(r"<!-- (\w+): (\S+) -->\s*\n```\w+\n(.*?)```", re.DOTALL)


def test_the_example_does_what_the_page_says() -> None:
    blocks = [found.groups() for found in _BLOCK.finditer(PAGE.read_text())]
    text, host = (body for kind, _, body in blocks if kind == "config")
    lines = {kind: body.splitlines() for kind, _, body in blocks}
    config = parse(text, "/etc/weft/edge.yaml", EdgeConfig, check).config
    settings = config.streams["metrics"].functions[0].sparkplug
    assert settings is not None
    plant = Plant()
    for line in lines["messages"]:
        kind, place, message = line.split(maxsplit=2)
        fields = msgspec.json.decode(message)
        plant.say(f"{kind} {place}", *fields.pop("metrics", ()), **fields)
    chain = run(lambda: made(**msgspec.structs.asdict(settings)), plant.rows)
    assert [(row.key.decode(), row.values) for row in chain.emitted] == [
        (key, msgspec.json.decode(values)) for key, values in (line.split(maxsplit=1) for line in lines["rows"])
    ]
    assert chain.out.rejected() == lines["reasons"]
    # The functions behind know the place of a tag, and the stream in one piece is JSON as well.
    found = {each.name: each for each in definitions(config)}
    assert found["shifts"].make_chain()
    assert Flow(config).patterns("shifts") == ("{group}/{node}/{device}/#",)
    short = parse(host, "/etc/weft/edge.yaml", EdgeConfig, check).config
    assert (Flow(short).payload("metrics").format, Flow(short).input_payload("metrics").format) == ("json", "sparkplug")
    assert short.sparkplug is not None
    assert short.sparkplug.host_id == "plant-historian"


def test_the_command_prints_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: dict[str, str] = {}
    for kind, _, body in _BLOCK.findall(PAGE.read_text()):
        blocks.setdefault(kind, body)
    monkeypatch.chdir(tmp_path)
    Path("edge.yaml").write_text(blocks["config"])
    Path("sample.jsonl").write_text(blocks["sample"])
    done = weft("edge", "test-function", "edge.yaml", "metrics", "--input", "sample.jsonl")
    assert done.exception is None, done.exception
    assert done.stdout == blocks["answer"]
