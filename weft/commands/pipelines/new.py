"""``weft spark new``: a copy of a shipped pipeline."""

from __future__ import annotations

import click

from weft.output import Refused


@click.command("new")
@click.argument("name", required=False)
def spark_new(name: str | None) -> None:
    """Print the YAML of shipped pipeline NAME, as a start for your own; without NAME, list all names.

    \b
    weft spark new machine-hours > machine-hours.yaml
    """
    from spark_sinks.pipelines.catalog import UnknownPipeline, names, text_of

    if name is None:
        click.echo("\n".join(names()))
        return
    try:
        click.echo(text_of(name), nl=False)
    except UnknownPipeline as error:
        raise Refused(str(error)) from None
