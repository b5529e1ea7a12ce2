"""The JSON schema and the settings list agree with what the loader takes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from weft.cloud_hub.auth.tokens import read_tokens
from weft.cloud_hub.check import check as check_hub
from weft.config.load import load, parse, parse_rules
from weft.config.models import EdgeConfig, HubConfig
from weft.config.payload_schema.model import PayloadSchema, check_schema
from weft.config.pipelines import Pipeline, check_pipeline
from weft.config.schema import schema, settings
from weft.edge_node.check.rules import check as check_edge

DESCRIPTION_MIN = 15
MODELS = pytest.mark.parametrize("model", [EdgeConfig, HubConfig, Pipeline])


@MODELS
def test_every_setting_says_what_it_means(model: type[msgspec.Struct]) -> None:
    silent = [setting.path for setting in settings(model) if len(setting.description) < DESCRIPTION_MIN]
    assert silent == [], (
        f"give each a description=... of at least {DESCRIPTION_MIN} characters, or its section a docstring: "
        "what it does, and what happens without it"
    )


@MODELS
def test_the_schema_speaks_of_what_people_write(model: type[msgspec.Struct]) -> None:
    text = msgspec.json.encode(schema(model)).decode()
    assert "x-unit" not in text
    assert "_bytes" not in re.sub("chunk_bytes_max", "", text)


def test_the_schema_gives_defaults_in_units() -> None:
    definitions: dict[str, Any] = schema(EdgeConfig)["$defs"]
    assert definitions["Disk"]["properties"]["budget"]["default"] == "16GiB"
    assert re.search(definitions["Disk"]["properties"]["budget"]["pattern"], "10MB")
    assert definitions["Stream"]["properties"]["from"]["anyOf"][0] == {"type": "string"}
    assert definitions["EdgeConfig"]["properties"]["unrouted"]["anyOf"] == [
        {"$ref": "#/$defs/Unrouted"},
        {"$ref": "#/$defs/Unrouted/properties/policy"},
    ]
    assert definitions["Unrouted"]["properties"]["policy"]["enum"] == ["keep", "live", "refuse"]
    assert definitions["EdgeConfig"]["required"] == ["node", "data_dir"]
    assert definitions["EdgeConfig"]["additionalProperties"] is False


def test_settings_show_units_bounds_and_defaults() -> None:
    by_path = {setting.path: setting for setting in settings(EdgeConfig)}
    assert by_path["links.<name>.to"].default == "required"
    assert by_path["disk.budget"].default == "16GiB"
    assert "at most 1GiB" in by_path["disk.segment"].expected
    assert by_path["links.<name>.token_file"].default == "none"


def test_a_setting_that_may_be_null_shows_its_default_in_units() -> None:
    by_path = {setting.path: setting for setting in settings(HubConfig)}
    assert by_path["retired_after"].default == "90d"
    assert schema(HubConfig)["$defs"]["HubConfig"]["properties"]["retired_after"]["default"] == "90d"


# --- Every configuration that we show to people loads: the examples, and the blocks marked so in README and docs


ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "config/examples").glob("*.yaml"))
_FUNCTION = ".functions[]."
_BLOCK = re.compile(r"<!-- config: (edge|hub|pipeline|schema|quality|tokens) -->\s*\n```yaml\n(.*?)```", re.DOTALL)
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


def missing(texts: Iterable[str], paths: Iterable[str]) -> list[str]:
    """The settings of which no example has a value, by their whole paths."""
    examples = [node for text in texts if (node := yaml.compose(text)) is not None]
    return [path for path in paths if not any(shows(each, path.replace("[]", ".[]").split(".")) for each in examples)]


def shows(node: yaml.Node, path: Sequence[str]) -> bool:
    """Whether an example has a value at a path, whose words are keys, ``<name>`` for any key, and ``[]`` for items."""
    if not path:
        return True
    if path[0] == "[]":
        items = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return any(shows(item, path[1:]) for item in items)
    if not isinstance(node, yaml.MappingNode):
        return False
    return any(shows(value, path[1:]) for key, value in node.value if path[0] in (key.value, "<name>"))


def test_the_full_example_shows_every_setting() -> None:
    text = (ROOT / "config/examples/edge-full.yaml").read_text()
    absent = missing([text], (each.path for each in settings(EdgeConfig) if _FUNCTION not in each.path))
    assert absent == [], "show them in config/examples/edge-full.yaml"


def test_the_examples_of_pipelines_show_every_setting() -> None:
    texts = [path.read_text() for path in EXAMPLES if path.name.startswith("pipeline")]
    absent = missing(texts, (each.path for each in settings(Pipeline)))
    assert absent == [], "show them in a file config/examples/pipeline-NAME.yaml"


def test_the_examples_of_functions_show_every_setting_of_them() -> None:
    texts = [path.read_text() for path in EXAMPLES]
    texts += [text for place, kind, text in blocks() if kind == "edge" and place.startswith("docs/functions/")]
    absent = missing(texts, (each.path for each in settings(EdgeConfig) if _FUNCTION in each.path))
    assert absent == [], "show them in config/examples/edge-functions.yaml, or in an example of docs/functions"


def test_a_setting_is_shown_under_its_whole_path() -> None:
    text = "a: {b: 1, one: {c: null}}\nd: [{e: 1}, {f: 2}]\non: {g: [h]}\n"
    shown = ["a", "a.b", "a.<name>.c", "d[]", "d[].f", "on.g[]"]
    assert missing([text], [*shown, "b", "a.c", "d.f", "d[].g", "on.h"]) == ["b", "a.c", "d.f", "d[].g", "on.h"]


@pytest.mark.parametrize(("place", "kind", "text"), list(blocks()))
def test_configurations_in_the_docs_load(place: str, kind: str, text: str) -> None:
    if kind == "edge":
        parse(text, place, EdgeConfig, check_edge)
    elif kind == "pipeline":
        parse(text, place, Pipeline, check_pipeline)
    elif kind == "schema":
        parse(text, place, PayloadSchema, lambda schema: list(check_schema(schema)))
    elif kind == "quality":
        parse_rules(text, place)
    elif kind == "tokens":
        read_tokens(text.encode(), place)
    else:
        parse(text, place, HubConfig, check_hub)


def test_every_yaml_block_in_the_docs_says_what_it_is() -> None:
    for path in pages():
        text = path.read_text()
        assert len(_YAML.findall(text)) == len(_BLOCK.findall(text)), (
            f"{path}: mark YAML with <!-- config: edge -->, hub, pipeline, schema, quality or tokens"
        )
