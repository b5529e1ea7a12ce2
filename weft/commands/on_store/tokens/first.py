"""The first token of a store, which closes hubs that were open, and ``weft hub open``, the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from weft.commands.common import (
    certificate_of,
    config_argument,
    confirm,
    load_hub,
    tls_of,
    url_here,
    yes_option,
)
from weft.commands.on_store.declaring import declare, read_facts
from weft.commands.on_store.opening import by_option, reason_option
from weft.commands.running import RunningHub
from weft.output import Failed, counted, print_json

if TYPE_CHECKING:
    from weft.config.models import HubConfig


@click.command("open")
@config_argument
@reason_option
@by_option
@yes_option
def open_hubs(config_file: str, *, reason: str, by: str | None, yes: bool) -> None:
    """Let the hubs of CONFIG serve requests without a token again, after their last token was withdrawn.

    The way back from a first token (`weft hub token add`), for hubs without `tokens_file`, `jwt` or
    `anonymous: never`. The next token that is declared closes them again.

    \b
    weft hub open hub.yaml --reason "the trial of tokens is over"
    """
    from weft.cloud_hub.declared import changes

    config = load_hub(config_file)
    if not yes:
        confirm(
            "from now on everybody who reaches a hub of this store may link as any edge and read all streams. Open it?",
            "nothing was declared",
        )
    declare(config_file, lambda _: changes.open_hubs, by, reason)
    click.echo("hubs of this store demand no token from now on, until the next one is declared")
    if reasons := closed_anyway(config):
        click.echo(f"warning: the hub of {config_file} still demands one: {reasons}", err=True)


def closed_anyway(config: HubConfig) -> str:
    """Return the settings by which a hub demands a token, whatever the cluster log says; empty for none."""
    given = {
        "tokens_file": config.tokens_file is not None, "jwt": config.jwt is not None,
        "anonymous: never": config.anonymous == "never",
    }  # fmt: skip
    return ", ".join(name for name, is_set in given.items() if is_set)


def _is_first(config_file: str) -> bool:
    """Return whether a token would close hubs that are open."""
    from weft.cloud_hub.declared.credentials import demands_tokens

    return not closed_anyway(load_hub(config_file)) and not demands_tokens(read_facts(config_file))


def _linked(config_file: str) -> list[str] | None:
    """Return the edges that are linked to the running hub, which is open; None if it does not answer."""
    config = load_hub(config_file)
    certificate = certificate_of(config)
    try:
        running = RunningHub(url_here(config.listen, certificate), tls=tls_of(certificate))
        edges = running.pages("/v1/edges", "edges")["edges"]
    except Failed:
        return None
    return sorted(f"{each['tenant']}/{each['edge']}" for each in edges if each["connected_since"] is not None)


def say_what_would_be(config_file: str, names: Sequence[str], *, as_json: bool) -> None:
    """Say what tokens would do."""
    is_first = _is_first(config_file)
    ends = _linked(config_file) if is_first else []
    if as_json:
        print_json({"names": list(names), "is_first": is_first, "links_that_end": ends})
        return
    click.echo(f"would declare {counted(len(names), 'token')}; nothing was declared")
    if not is_first:
        click.echo("the hubs demand a token already, or their settings do: no link ends")
        return
    click.echo("it is the first one: from then on the hubs demand a token, and links without one end")
    if ends is None:
        click.echo(f"which links these are is unknown: no hub answers at {load_hub(config_file).listen}")
        return
    click.echo(f"links that end, unless the edge shows a certificate: {len(ends)}")
    for each in ends:
        click.echo(f"  {each}")


def confirm_first(config_file: str, yes: bool) -> None:
    if yes or not _is_first(config_file):
        return
    ends = _linked(config_file)
    some = "" if ends is None else f" ({len(ends)} are open now)"
    confirm(
        f"this is the first token of the store: from now on, all of its hubs demand a token, and links without one "
        f"end{some}. `weft hub open` is the way back. Add it?",
        "nothing was declared",
    )
