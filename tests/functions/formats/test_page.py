"""Payloads on the page of formats become the fields that the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from weft.config.load import parse
from weft.config.models import EdgeConfig
from weft.config.streams import Stream
from weft.functions.contract import PayloadError
from weft.functions.registry import format_of

PAGE = Path(__file__).parents[3] / "docs/functions/formats.md"
_CONFIG = re.compile(r"<!-- config: edge -->\s*\n```yaml\n(.*?)```", re.DOTALL)
_PAYLOADS = re.compile(r"<!-- payloads: (\S+) -->\s*\n```text\n(.*?)```", re.DOTALL)


def examples() -> list[Any]:
    text = PAGE.read_text()
    streams: dict[str, Stream] = {}
    for found in _CONFIG.finditer(text):
        streams |= parse(found[1], str(PAGE), EdgeConfig).config.streams
    return [
        pytest.param(streams[block[1]].payload, *line.split("->"), id=f"{block[1]}-{at}")
        for block in _PAYLOADS.finditer(text)
        for at, line in enumerate(block[2].splitlines())
    ]


@pytest.mark.parametrize(("settings", "given", "said"), examples())
def test_the_example_does_what_the_page_says(settings: Any, given: str, said: str) -> None:
    format_ = format_of(settings)
    payload = ast.literal_eval(given.strip()).encode() if '"' in given else bytes.fromhex(given)
    if not said.strip().startswith("{"):
        with pytest.raises(PayloadError, match=f"^{re.escape(said.strip())}$"):
            format_.decode(payload)
        return
    values = format_.decode(payload)
    assert msgspec.json.decode(msgspec.json.encode(values)) == msgspec.json.decode(said)
    assert format_.decode(format_.encode(values)) == values


def test_there_are_examples_of_each_kind() -> None:
    assert len(examples()) > 8
