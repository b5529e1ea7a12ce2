"""``weft config``: describe the configuration files."""

from __future__ import annotations

import click
import msgspec

from weft.output import print_json


@click.group("config")
def command() -> None:
    """Describe the configuration files."""


@command.command()
@click.argument("kind", type=click.Choice(["edge", "hub", "pipeline"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of an edge's or a hub's configuration or of a pipeline, for editors."""
    from weft.config.models import EdgeConfig, HubConfig
    from weft.config.pipelines.pipeline import Pipeline
    from weft.config.schema import schema as schema_of

    models: dict[str, type[msgspec.Struct]] = {"edge": EdgeConfig, "hub": HubConfig, "pipeline": Pipeline}
    print_json(schema_of(models[kind]))
