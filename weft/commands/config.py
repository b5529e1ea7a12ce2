"""``weft config``: describe the configuration files."""

from __future__ import annotations

import click

from weft.output import print_json


@click.group("config")
def command() -> None:
    """Describe the configuration files."""


@command.command()
@click.argument("kind", type=click.Choice(["edge", "hub"]))
def schema(kind: str) -> None:
    """Print the JSON Schema of an edge's or a hub's configuration, for editors."""
    from weft.config.models import EdgeConfig, HubConfig
    from weft.config.schema import schema as schema_of

    print_json(schema_of(EdgeConfig if kind == "edge" else HubConfig))
