"""``weft config``: describe the configuration files, and sign settings for edges."""

from __future__ import annotations

import click
import msgspec

from weft.commands.credentials import signing
from weft.output import print_json


@click.group("config")
def config_group() -> None:
    """Describe the configuration files, and sign settings and functions of edges."""


for _command in (signing.keygen, signing.sign_settings, signing.sign_code, signing.verify):
    config_group.add_command(_command)


@config_group.command()
@click.argument("kind", type=click.Choice(["edge", "hub", "pipeline"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of an edge's or a hub's configuration or of a pipeline, for editors."""
    from weft.config.models import EdgeConfig, HubConfig
    from weft.config.pipelines.pipeline import Pipeline
    from weft.config.schema import schema as schema_of

    models: dict[str, type[msgspec.Struct]] = {"edge": EdgeConfig, "hub": HubConfig, "pipeline": Pipeline}
    print_json(schema_of(models[kind]))
