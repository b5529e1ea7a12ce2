"""Where the function may stand, and what follows for the streams around it."""

from __future__ import annotations

import sys

import pytest

from tests.functions.kinds.sparkplug.messages import made
from weft.config.errors import ConfigError
from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.edge_node.check.rules import check
from weft.edge_node.check.streams import Flow
from weft.edge_node.derived.definitions import function_findings, function_notes

HEAD = "node: a\ndata_dir: /data\nstreams:\n"
RAW = '  raw: {from: "spBv1.0/#", payload: sparkplug}\n'


def parsed(streams: str) -> EdgeConfig:
    return parse(HEAD + streams, "/etc/weft/edge.yaml", EdgeConfig, check).config


def test_its_rows_are_json_unless_the_stream_says_otherwise() -> None:
    config = parsed(
        RAW
        + "  tags: {from_stream: raw, functions: [sparkplug: {rows: message}]}\n"
        + "  again: {from_stream: raw, payload: cbor, functions: [sparkplug: {}]}\n"
        + "  behind: {from_stream: tags, functions: [where: node == 'line1']}\n"
    )
    flow = Flow(config)
    formats = [flow.payload(name).format for name in config.streams]
    assert formats == ["sparkplug", "json", "cbor", "json"]
    assert flow.patterns("behind") == ("{group}/{node}/{device}",)
    assert list(function_findings(config)) == []
    assert list(function_notes(config)) == []


def test_the_stream_that_it_asks_in_may_be_its_own_input() -> None:
    """`spBv1.0/#` takes the requests as well: that is no circle, as commands are answered with nothing."""
    parsed('  tags: {from: "spBv1.0/#", functions: [sparkplug: {}]}\n')


@pytest.mark.parametrize(
    ("streams", "reason"),
    [
        (
            RAW + "  tags: {from_stream: raw, functions: [{where: x > 1}, {sparkplug: {}}]}\n",
            "sparkplug reads messages as they were received, so it must be the first function of its stream",
        ),
        (RAW + "  tags: {from_stream: raw, functions: [sparkplug: {rows: tag}]}\n", "rows"),
        (RAW + "  tags: {from_stream: raw, functions: [sparkplug: {rebirth_every: 0s}]}\n", "rebirth_every"),
        (RAW + "sparkplug: {host_id: a/b}\n", "host_id"),
    ],
)
def test_settings_that_are_refused(streams: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parsed(streams)


def test_it_has_a_memory() -> None:
    config = parsed('  tags: {from: "spBv1.0/#", raw: discard, functions: [sparkplug: {}]}\n')
    (found,) = function_findings(config)
    assert "functions without a memory, and sparkplug have one" in found.message


def test_without_its_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "weft.functions.sparkplug", None)
    with pytest.raises(ValueError, match=r"pip install 'weft-fabric\[sparkplug\]'"):
        made()
