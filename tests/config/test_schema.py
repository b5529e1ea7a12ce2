"""The JSON schema and the settings list agree with what the loader takes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from weft.config.models import EdgeConfig, HubConfig
from weft.config.pipelines import Pipeline
from weft.config.schema import schema, settings

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
