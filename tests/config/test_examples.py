"""Every configuration that we show to people loads: the examples, and the blocks marked so in README and docs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft.cloud_hub.check import check as check_hub
from weft.config.load import load, parse
from weft.config.models import EdgeConfig, HubConfig
from weft.config.pipelines.pipeline import Pipeline, check_pipeline
from weft.config.schema import settings
from weft.edge_node.check import check as check_edge

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "config/examples").glob("*.yaml"))
_FUNCTION = ".functions[]."
_BLOCK = re.compile(r"<!-- config: (edge|hub|pipeline) -->\s*\n```yaml\n(.*?)```", re.DOTALL)
_YAML = re.compile(r"^( *)```yaml$", re.MULTILINE)


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks() -> Iterator[tuple[str, str, str]]:
    for path in pages():
        for found in _BLOCK.finditer(path.read_text()):
            line = path.read_text().count("\n", 0, found.start())
            yield f"{path.relative_to(ROOT)}:{line}", found[1], found[2]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_examples_load(path: Path) -> None:
    if path.name.startswith("edge"):
        load(str(path), EdgeConfig, check_edge)
    elif path.name.startswith("pipeline"):
        load(str(path), Pipeline, check_pipeline)
    else:
        load(str(path), HubConfig, check_hub)


def test_there_are_examples_of_both_kinds() -> None:
    assert {path.stem for path in EXAMPLES} >= {"edge-minimal", "edge-full", "hub-minimal", "hub-s3", "pipeline-table"}


def missing(text: str, paths: Iterator[str]) -> list[str]:
    keys = {path.rpartition(".")[2].removesuffix("[]") for path in paths} - {"<name>"}
    return [key for key in sorted(keys) if not re.search(rf"\b{key}:", text)]


def test_the_full_example_shows_every_setting() -> None:
    text = (ROOT / "config/examples/edge-full.yaml").read_text()
    assert missing(text, (each.path for each in settings(EdgeConfig) if _FUNCTION not in each.path)) == []


def test_the_examples_of_pipelines_show_every_setting() -> None:
    text = "\n".join(path.read_text() for path in EXAMPLES if path.name.startswith("pipeline"))
    assert missing(text, (each.path for each in settings(Pipeline))) == []


def test_the_examples_of_functions_show_every_setting_of_them() -> None:
    files = [*EXAMPLES, *(ROOT / "docs/functions").glob("*.md")]
    text = "\n".join(path.read_text() for path in files)
    assert missing(text, (each.path for each in settings(EdgeConfig) if _FUNCTION in each.path)) == []


@pytest.mark.parametrize(("place", "kind", "text"), list(blocks()))
def test_configurations_in_the_docs_load(place: str, kind: str, text: str) -> None:
    if kind == "edge":
        parse(text, place, EdgeConfig, check_edge)
    elif kind == "pipeline":
        parse(text, place, Pipeline, check_pipeline)
    else:
        parse(text, place, HubConfig, check_hub)


def test_every_yaml_block_in_the_docs_says_what_it_is() -> None:
    for path in pages():
        text = path.read_text()
        assert len(_YAML.findall(text)) == len(_BLOCK.findall(text)), f"{path}: mark YAML with <!-- config: edge -->"
