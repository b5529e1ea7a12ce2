"""``weft token``: who may use a hub."""

from __future__ import annotations

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
    help="The hub's tokens_file; made when missing.",
)


@click.group("token")
def command() -> None:
    """Who may use a hub.

    The tokens file keeps hashes only. A running hub takes changes up by itself.
    """


@command.command()
@click.argument("name")
@file_option
@click.option("--scope", type=click.Choice(["edge", "reader", "admin"]), required=True, help="What the token opens.")
@click.option("--edge", help="The edge that may link with it; for the scope edge.")
@click.option("--tenant", default="default", show_default=True, help="Whose data.")
@json_option
def create(name: str, path: str, *, scope: str, edge: str | None, tenant: str, as_json: bool) -> None:
    """Make a token called NAME and print it. It is shown this once and stored nowhere."""
    from weft.cloud_hub.api.tokens import Scope, TokensUnusable, create_token

    if (scope == Scope.EDGE) != (edge is not None):
        advice = "Name it with --edge" if edge is None else "Leave out --edge"
        raise Refused(f"scope 'edge' needs an edge, the other scopes must not have one. {advice}")
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
    """Revoke the token called NAME: running hubs let nobody in with it any more.

    A link that is open already stays open until it ends; to end it now, restart the hub.
    """
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
    """List the tokens by name, without the tokens themselves."""
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
