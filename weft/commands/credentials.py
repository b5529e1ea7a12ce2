"""``weft token`` and ``weft user``: tokens of a hub and users of an edge node, in files."""

from __future__ import annotations

import getpass
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from weft.cloud_hub.api.tokens import (
    InvalidGrant,
    Right,
    Rights,
    Scope,
    TokensUnusable,
    create_token,
    read_tokens,
    revoke_token,
    role_grants,
)
from weft.commands.acts import Decided, acting_on_file, decision_options
from weft.commands.common import (
    ExistingPath,
    json_option,
    using,
)
from weft.commands.running import any_hub_argument, running_hub
from weft.edge_node.access import users
from weft.output import Failed, Refused, harmless, print_facts, print_json, print_table

if TYPE_CHECKING:
    from weft.cloud_hub.api.tokens import TokenIdentity


# ``weft token``: manage the tokens of a hub.

tokens_file_option = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, readable=False),
    help="The hub's tokens_file; created if it is missing.",
)


def scope_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a token opens to a command."""
    for option in (
        click.option(
            "--tenant", default="default", show_default=True,
            help="Tenant whose data the token opens; `*` for all, with the scope region.",
        ),
        click.option("--edge", help="Edge that may link with the token; for the scope edge and grants to write."),
        click.option(
            "--grant", "grants", multiple=True, metavar="RIGHT[:PATTERN]|ROLE", callback=_with_roles,
            help="Instead of a scope, several times: write, read, pull or relay with STREAM, publish with EDGE, edges, "
            "report with PIPELINE, status, metrics. `*` stands for any characters. Or a role: viewer, operator, "
            "administrator.",
        ),
        click.option(
            "--scope", type=click.Choice(["edge", "reader", "publish", "pull", "region", "admin"]),
            help="Access that the token gives.",
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def _with_roles(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> tuple[str, ...]:

    return role_grants(given)


def access_of(scope: str | None, grants: tuple[str, ...], edge: str | None) -> Scope:
    """Return the scope of some options; refuse those that do not fit each other."""

    if (scope is None) != bool(grants):
        raise Refused("a token has a scope, or grants. Give --scope, or --grant once or more")
    try:
        writes = scope == "edge" or Right.WRITE in Rights(grants)
    except InvalidGrant as error:
        raise Refused(f"--grant: {error}") from None
    if writes != (edge is not None):
        advice = "Name it with --edge" if edge is None else "Leave out --edge"
        others = (
            "grants to write need an edge, the others" if grants else "scope 'edge' needs an edge, the other scopes"
        )
        raise Refused(f"{others} must not have one. {advice}")
    return Scope.GRANTED if scope is None else Scope(scope)


@click.command("add")
@click.argument("name")
@tokens_file_option
@scope_options
@decision_options
@json_option
def add_token(
    name: str,
    path: str,
    *,
    scope: str | None,
    grants: tuple[str, ...],
    edge: str | None,
    tenant: str,
    reason: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Add token NAME and print it. The token is shown only once and stored nowhere."""

    access = access_of(scope, grants, edge)
    rights = " ".join(grants) or access.value
    target = f"token {name}: {rights}, tenant {tenant}" + (f", edge {edge}" if edge else "")
    try:
        with using(path), acting_on_file(path, target, Decided(by, reason)):
            token = create_token(path, name, access, tenant, edge, grants=grants)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    if as_json:
        facts = {"name": name, "scope": str(access), "tenant": tenant, "edge": edge, "grants": grants}
        print_json({**facts, "token": token})
    else:
        click.echo(token)


@click.command("remove")
@click.argument("name")
@tokens_file_option
@decision_options
@json_option
def remove_token(name: str, path: str, *, reason: str, by: str | None, as_json: bool) -> None:
    """Remove token NAME. Running hubs reject it immediately, and its links end within seconds."""

    try:
        with using(path), acting_on_file(path, f"token {name}", Decided(by, reason)):
            removed = revoke_token(path, name)
    except TokensUnusable as error:
        raise Refused(str(error)) from None
    if as_json:
        print_json({"removed": _facts(removed)})
    else:
        click.echo(f"removed {name}")


@click.command("list")
@tokens_file_option
@json_option
def list_tokens(path: str, as_json: bool) -> None:
    """List the names of the tokens, not the tokens themselves."""
    facts = [_facts(each) for each in read_file(path)]
    if as_json:
        print_json(facts)
    else:
        print_table(
            ("name", "scope", "tenant", "edge"),
            [(each["name"], shown_access(each), each["tenant"], each["edge"] or "") for each in facts],
        )


def _facts(identity: TokenIdentity) -> dict[str, Any]:
    return {
        "name": identity.name, "scope": str(identity.scope), "tenant": identity.tenant, "edge": identity.edge,
        "grants": list(identity.grants),
    }  # fmt: skip


def shown_access(facts: Mapping[str, Any]) -> str:
    """Return the scope of a token, or its grants, for a table."""
    return " ".join(facts["grants"]) or str(facts["scope"])


def read_file(path: str) -> list[TokenIdentity]:
    """Return the tokens of a file. ``Refused`` and ``Failed`` say why it cannot be used."""

    try:
        with using(path, makes="weft token add"), open(path, "rb") as file:
            return read_tokens(file.read(), path)
    except TokensUnusable as error:
        raise Refused(str(error)) from None


@click.command()
@any_hub_argument
@click.option("--token-file", type=ExistingPath(dir_okay=False), help="File with a token of any scope.")
@json_option
def whoami(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the rights of a token, or of a login's certificate, at the running hub HUB: name, scope, tenant and end.

    \b
    weft hub whoami hub.yaml --token-file press-7.token
    """
    facts = running_hub(hub, token_file).get("/v1/whoami")
    if as_json:
        print_json(facts)
        return
    no_token = "none: the hub has no tokens" if facts.get("certificate") is None else "none"
    without = {"token": no_token, "certificate": "none", "edge": "none", "until": "none", "rights": "all"}
    told = {name: " ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    print_facts({name: harmless(str(value or without.get(name, ""))) for name, value in told.items()})


# ``weft user``: manage the user names and passwords of an edge node's MQTT clients.

PASSWORD_FILE_BYTES_MAX = 4096

users_file_option = click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, readable=False),
    help="The node's auth.users_file.",
)
password_option = click.option(
    "--password-file",
    type=click.File("rb"),
    help="File with the password on its first line, `-` for standard input. Without it, the command asks.",
)


@click.command("add")
@click.argument("name")
@users_file_option
@password_option
@decision_options
def add_user(name: str, path: str, password_file: BinaryIO | None, *, reason: str, by: str | None) -> None:
    """Add NAME to the file, which is created if it is missing, or give NAME a new password."""

    try:
        users.check_name(name)
        password = password_of(password_file, confirm=True)
        with using(path), acting_on_file(path, f"user {name}", Decided(by, reason)):
            is_new = users.add(path, name, password)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"added {name}" if is_new else f"{name} has a new password")


@click.command("remove")
@click.argument("name")
@users_file_option
@decision_options
def remove_user(name: str, path: str, *, reason: str, by: str | None) -> None:
    """Remove NAME from the file. A running node disconnects the clients that use this name."""

    try:
        with using(path, makes="weft user add"), acting_on_file(path, f"user {name}", Decided(by, reason)):
            users.remove(path, name)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None
    click.echo(f"removed {name}")


@click.command("list")
@users_file_option
@json_option
def list_users(path: str, as_json: bool) -> None:
    """List the names in the file."""
    names = list(_read(path))
    if as_json:
        print_json(names)
        return
    for name in names:
        click.echo(name)


@click.command()
@click.argument("name")
@users_file_option
@password_option
def check(name: str, path: str, password_file: BinaryIO | None) -> None:
    """Check the password of NAME. Exit status 1 if it is wrong."""

    hashed = _read(path).get(name)
    if hashed is None:
        raise Failed(f"{path}: there is no user {name!r}")
    if not users.verify(hashed, password_of(password_file, confirm=False)):
        raise Failed(f"that is not the password of {name}")
    click.echo(f"that is the password of {name}")


def _read(path: str) -> dict[str, str]:

    try:
        with using(path, makes="weft user add"):
            return users.read(path)
    except users.UsersUnusable as error:
        raise Refused(str(error)) from None


def password_of(file: BinaryIO | None, *, confirm: bool) -> bytes:
    """Return the password on the first line of a file, or ask for it at the terminal."""
    if file is None:
        return _asked(confirm=confirm)
    line: bytes = file.readline(PASSWORD_FILE_BYTES_MAX)
    return line.rstrip(b"\r\n")


def _asked(*, confirm: bool) -> bytes:
    """Ask for a password at the terminal. Refuse without a terminal: the password would be read from a pipe by mistake,
    or shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", getpass.GetPassWarning)
        try:
            asked: str = click.prompt("Password", hide_input=True, confirmation_prompt=confirm)
        except getpass.GetPassWarning:
            raise Refused(
                "there is no terminal to ask for the password on. Give it with --password-file FILE, or "
                "--password-file - for standard input"
            ) from None
    return asked.encode()
