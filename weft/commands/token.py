"""``weft token``: manage the tokens of a hub."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from weft.commands.common import json_option, using
from weft.output import Refused, print_json, print_table

if TYPE_CHECKING:
    from weft.cloud_hub.api.tokens import TokenIdentity

file_option = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, readable=False),
    help="The hub's tokens_file; created if it is missing.",
)


def scope_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a token opens to a command."""
    for option in (
        click.option("--tenant", default="default", show_default=True, help="Tenant whose data the token opens."),
        click.option("--edge", help="Edge that may link with the token; for the scope edge."),
        click.option(
            "--scope", type=click.Choice(["edge", "reader", "admin"]), required=True,
            help="Access that the token gives.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def check_scope(scope: str, edge: str | None) -> None:
    """Refuse options that do not fit each other."""
    if (scope == "edge") != (edge is not None):
        advice = "Name it with --edge" if edge is None else "Leave out --edge"
        raise Refused(f"scope 'edge' needs an edge, the other scopes must not have one. {advice}")


@click.group("token")
def command() -> None:
    """Manage the tokens file of a hub.

    The file holds only hashes. A running hub picks up changes by itself. `weft hub token` manages tokens in the store
    instead, for the hubs of all hosts, with an end and a second secret for their rotation.
    """


@command.command()
@click.argument("name")
@file_option
@scope_options
@json_option
def create(name: str, path: str, *, scope: str, edge: str | None, tenant: str, as_json: bool) -> None:
    """Create token NAME and print it. The token is shown only once and stored nowhere."""
    from weft.cloud_hub.api.tokens import Scope, TokensUnusable, create_token

    check_scope(scope, edge)
    try:
        with using(path):
            token = create_token(path, name, Scope(scope), tenant, edge)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    if as_json:
        print_json({"name": name, "scope": scope, "tenant": tenant, "edge": edge, "token": token})
    else:
        click.echo(token)


@command.command()
@click.argument("name")
@file_option
@json_option
def revoke(name: str, path: str, *, as_json: bool) -> None:
    """Revoke token NAME. Running hubs reject it immediately, and its links end within seconds."""
    from weft.cloud_hub.api.tokens import TokensUnusable, revoke_token

    try:
        with using(path):
            revoked = revoke_token(path, name)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    if as_json:
        print_json({"revoked": _facts(revoked)})
    else:
        click.echo(f"revoked {name}")


@command.command("list")
@file_option
@json_option
def list_tokens(path: str, as_json: bool) -> None:
    """List the names of the tokens, not the tokens themselves."""
    facts = [_facts(each) for each in _read(path)]
    if as_json:
        print_json(facts)
    else:
        print_table(
            ("name", "scope", "tenant", "edge"),
            [(each["name"], each["scope"], each["tenant"], each["edge"] or "") for each in facts],
        )


def _facts(identity: TokenIdentity) -> dict[str, str | None]:
    return {
        "name": identity.name, "scope": str(identity.scope), "tenant": identity.tenant, "edge": identity.edge
    }  # fmt: skip


def _read(path: str) -> list[TokenIdentity]:
    from weft.cloud_hub.api.tokens import TokensUnusable, read_tokens

    try:
        with using(path, makes="weft token create"), open(path, "rb") as file:
            return read_tokens(file.read(), path)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
