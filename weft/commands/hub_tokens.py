"""``weft hub token``: tokens in the cluster log, which every hub process of the store admits."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from weft.cloud_hub.auth.tokens import TokenIdentity, TokensUnusable, hash_token, new_token, read_tokens
from weft.cloud_hub.facts.fact import TOKEN, listed
from weft.cloud_hub.facts.tokens import (
    Pairing,
    TokenCache,
    add_token,
    demands_tokens,
    import_token,
    new_pairing,
    pair_token,
)
from weft.cloud_hub.facts.tokens import open_hubs as declare_open_hubs
from weft.commands.common import config_argument, confirm, json_option, load_hub, tenant_option, using, yes_option
from weft.commands.hub_access import (
    administration_of,
    begin,
    decision_options,
    declare,
    declare_all,
    declaring,
    end_of,
    read_facts,
)
from weft.commands.new_files import write_new
from weft.commands.running import (
    RunningHub,
    access_options,
    any_hub_argument,
    certificate_of,
    hub_argument,
    names_a_config,
    tls_of,
    url_here,
    whole,
)
from weft.config.units import approximate_duration
from weft.hub_api.answers import parse_moment
from weft.hub_api.operation import IMPORT_BYTES_MAX
from weft.hub_api.rights import InvalidGrant, Right, Rights, Scope, role_grants
from weft.hub_api.tokens import CODE_VALID, IMPORTED_MAX, HashedToken, SecretAnswer
from weft.network.reload import read_token
from weft.output import Failed, Refused, counted, print_json, print_table
from weft.protocols.lane import NAME_RULE, valid_name
from weft.storage.filesystem import replace_private_file
from weft.text.hub_status import ENDS_SOON_S

if TYPE_CHECKING:
    from weft.cloud_hub.facts.fact import Decision
    from weft.config.models import HubConfig


# Options that say what a token opens, and how lists show it.


def scope_options(function: Callable[..., None]) -> Callable[..., None]:
    """Add the options that say what a token opens to a command."""
    for option in (
        click.option(
            "--tenant",
            default="default",
            show_default=True,
            help="Tenant whose data the token opens; `*` for all, with the scope region.",
        ),
        click.option("--edge", help="Edge that may link with the token; for the scope edge and grants to write."),
        click.option(
            "--grant",
            "grants",
            multiple=True,
            metavar="RIGHT[:PATTERN]|ROLE",
            callback=_with_roles,
            help="Instead of a scope, several times: write, read, pull, relay or declare with STREAM, publish with "
            "EDGE, edges, report with PIPELINE, status, metrics. `*` matches any characters. Or a role: viewer, "
            "operator, administrator.",
        ),
        click.option(
            "--scope",
            type=click.Choice(["edge", "reader", "publish", "pull", "region", "admin"]),
            help="Access that the token grants.",
        ),
    ):
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


def read_file(path: str) -> list[TokenIdentity]:
    """Return the tokens of a file. ``Refused`` and ``Failed`` say why it cannot be used."""
    try:
        with using(path), click.open_file(path, "rb") as file:
            return read_tokens(file.read(), path)
    except TokensUnusable as error:
        raise Refused(str(error)) from None


# The first token of a store, which closes hubs that were open, and ``weft hub open``, the way back.


@click.command("open")
@config_argument
@decision_options
@yes_option
def open_hubs(config_file: str, *, reason: str, by: str | None, yes: bool) -> None:
    """Let the hubs of CONFIG serve requests without a token again, after their last token was withdrawn.

    It reverts the first token of a store (`weft hub token add`), for hubs without `jwt` or `anonymous: never`. The next
    token that is declared closes them again.

    \b
    weft hub open hub.yaml --reason "the trial of tokens is over"
    """
    config = load_hub(config_file)
    if not yes:
        confirm(
            "from now on everybody who reaches a hub of this store may link as any edge and read all streams. Open it?",
            "nothing was declared",
        )
    declare(config_file, declare_open_hubs, by, reason)
    click.echo("hubs of this store demand no token from now on, until the next one is declared")
    if reasons := closed_anyway(config):
        click.echo(f"warning: the hub of {config_file} still demands one: {reasons}", err=True)


def closed_anyway(config: HubConfig) -> str:
    """Return the settings by which a hub demands a token, whatever the cluster log says; empty for none."""
    given = {"jwt": config.jwt is not None, "anonymous: never": config.anonymous == "never"}
    return ", ".join(name for name, is_set in given.items() if is_set)


def _is_first(config_file: str) -> bool:
    """Return whether a token would close hubs that are open."""
    return not closed_anyway(load_hub(config_file)) and not demands_tokens(read_facts(config_file))


def _linked(config_file: str) -> list[str] | None:
    """Return the edges that are linked to the running hub, which is open; None if it does not answer."""
    config = load_hub(config_file)
    certificate = certificate_of(config)
    try:
        running = RunningHub(url_here(config.listen, certificate), tls=tls_of(certificate))
        edges = whole("edges", running.edges).edges
    except Failed:
        return None
    return sorted(f"{each.tenant}/{each.edge}" for each in edges if each.connected_since is not None)


def print_preview(config_file: str, names: Sequence[str], *, as_json: bool) -> None:
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


def confirm_first(config_file: str, decisions: Sequence[Decision], by: str | None, reason: str, *, yes: bool) -> None:
    """Ask before the first token of a store in use. A new store is made: no hub of it can be open.

    Args:
        decisions: those that are declared next.
    """
    if begin(config_file, decisions, by, reason) or yes or not _is_first(config_file):
        return
    ends = _linked(config_file)
    some = "" if ends is None else f" ({len(ends)} are open now)"
    confirm(
        "this is the first token of the store: from now on, all of its hubs demand a token, and links without one "
        f"end{some}. `weft hub open` reverts this. Add it?",
        "nothing was declared",
    )


# Secrets of tokens in files, and tokens for a whole fleet, in one run.

FLEET_MAX = 10_000
"""Maximum number of tokens of one run."""
FILE_BYTES_MAX = 4 << 20
SUFFIX = ".token"


def check_name(name: str) -> None:
    """Refuse a name that a new token cannot have."""
    if not name.isprintable() or any(map(str.isspace, name)):
        raise Refused(f"{name!r} is not a valid name of a token: expected printable characters without spaces")


@contextlib.contextmanager
def reserved_file(path: str | None) -> Iterator[Callable[[str], None]]:
    """Make a new file, for its owner alone, before the hub makes the secret for it. It is removed if nothing is written
    into it.

    Args:
        path: None for no file.

    Yields:
        what writes the secret into the file.
    """
    if path is None:
        yield lambda _: None
        return
    write_new({path: b""}, replaced="")
    is_filled = False

    def fill(secret: str) -> None:
        nonlocal is_filled
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # perhaps a link by now, whose mode and owner would count
            replace_private_file(path, f"{secret}\n".encode())
        except OSError as error:
            raise Failed(
                f"{path}: {error.strerror}. The hub has the new secret, which is lost: run `weft hub token rotate`"
            ) from None
        is_filled = True

    try:
        yield fill
    finally:
        # Also after Ctrl-C: an empty file would refuse the next try.
        if not is_filled:
            with contextlib.suppress(OSError):
                os.unlink(path)


class _FleetToken(NamedTuple):
    name: str
    edge: str | None
    path: str
    """File of its secret."""


class Fleet:
    """Tokens with the same access, a line of a file for each.

    Secrets are written before tokens are declared, so a run that was stopped continues when it is given again: it takes
    the secrets that are there.

    Args:
        path: file of names.
        folder: place of the secrets.
        scope, grants, tenant: of all tokens.
        until: their end, nanoseconds since 1970; None for no end.
    """

    def __init__(
        self, path: str, folder: str, *, scope: str | None, grants: tuple[str, ...], tenant: str, until: int | None
    ) -> None:
        self.folder = folder
        self.tokens = list(_wanted(path, folder, has_edge=scope == "edge" or any(map(_writes, grants))))
        if not self.tokens:
            raise Refused(f"{path}: expected a line for each token: NAME, or NAME and EDGE")
        access, known = access_of(scope, grants, self.tokens[0].edge), TokenCache()
        if os.path.lexists(folder) and not os.path.isdir(folder):
            raise Refused(f"--to: {folder} is not a folder. Name another place for the secrets")
        there = {each.path: _read_secret(each.path) for each in self.tokens if os.path.lexists(each.path)}
        self._new = {each.path: new_token() for each in self.tokens if each.path not in there}
        secrets = there | self._new
        with declaring():
            self.decisions = [
                import_token(
                    TokenIdentity(each.name, hash_token(secrets[each.path]), access, tenant, each.edge, grants),
                    known,
                    until,
                )
                for each in self.tokens
            ]

    def declare(self, config_file: str, by: str | None, reason: str, *, as_json: bool) -> None:
        """Write the secrets, and declare the tokens."""
        declared = read_facts(config_file).facts(TOKEN)
        if taken := [each.name for each in self.tokens if each.name in declared and each.path in self._new]:
            raise Failed(
                f"nothing was declared: tokens with these names exist, and {self.folder} has no secrets of them: "
                f"{listed(taken)}. Leave them out, or give them new secrets: `weft hub token rotate`"
            )
        with using(self.folder):
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        for path, secret in self._new.items():
            write_new({path: f"{secret}\n".encode()})
        changed = declare_all(config_file, self.decisions, by, reason)
        added = [each.name for each, is_new in zip(self.tokens, changed, strict=True) if is_new]
        if as_json:
            print_json({"added": added, "there": len(self.tokens) - len(added), "folder": self.folder})
            return
        click.echo(f"declared {counted(len(added), 'token')}; {len(self.tokens) - len(added)} existed already")
        click.echo(f"{self.folder} has the secret of each, NAME{SUFFIX}: give it to its owner, and delete it here")


def _writes(grant: str) -> bool:
    return grant == "write" or grant.startswith("write:")


def _wanted(path: str, folder: str, *, has_edge: bool) -> Iterator[_FleetToken]:
    with using(path), open(path, encoding="utf-8", errors="replace") as file:
        lines = file.read(FILE_BYTES_MAX + 1).splitlines()
    names = set[str]()
    for number, line in enumerate(lines, 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, edge = words[0], words[-1] if has_edge else None
        if len(words) > (2 if has_edge else 1):
            raise Refused(f"{path}:{number}: expected {'NAME, or NAME and EDGE' if has_edge else 'NAME'}")
        for each in words:
            if not valid_name(each):
                raise Refused(f"{path}:{number}: {each!r} is not a valid name: {NAME_RULE}")
        if name in names:
            raise Refused(f"{path}:{number}: {name} is listed twice")
        names.add(name)
        if len(names) > FLEET_MAX:
            raise Refused(f"{path}:{number}: more than {FLEET_MAX} tokens. Give them in several files")
        yield _FleetToken(name, edge, os.path.join(folder, f"{name}{SUFFIX}"))


def _read_secret(path: str) -> str:
    """Return the secret in a file, which an earlier run has left."""
    try:
        with using(path):
            return read_token(path)
    except ValueError as error:
        raise Failed(str(error)) from None


NEVER = "never"
NO_HASH = "0" * 64
"""Hash of no token, for a decision that only shows whether the hub would take its token."""
to_option = click.option(
    "--to", metavar="FILE", type=click.Path(), help="Write the token to FILE, new and of mode 600, and do not print it."
)
expires_option = click.option(
    "--expires", metavar="TIME", help="End of the token: a duration such as 90d, or a date. None by default."
)


TOKENS_BYTES_MAX = IMPORT_BYTES_MAX - (8 << 10)
"""Bytes of the tokens of one request, beside its reason."""


def _requests(tokens: Iterable[HashedToken]) -> Iterator[list[HashedToken]]:
    """Yield the tokens of each request: as many as one may have, and no more bytes."""
    part, size = list[HashedToken](), 0
    for each in tokens:
        bytes_ = len(msgspec.json.encode(each)) + 1
        if part and (len(part) == IMPORTED_MAX or size + bytes_ > TOKENS_BYTES_MAX):
            yield part
            part, size = [], 0
        part.append(each)
        size += bytes_
    if part:
        yield part


@click.command()
@hub_argument
@click.argument("name", required=False)
@scope_options
@expires_option
@to_option
@click.option(
    "--from",
    "names",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Add a token for each line of FILE: NAME, or NAME and EDGE. --to is then a folder, with NAME.token for each. "
    "Takes a configuration.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Declare nothing: show what would be declared, and which links would end. Takes a configuration.",
)
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@json_option
@yes_option
def add(
    hub: str,
    name: str | None,
    *,
    scope: str | None,
    grants: tuple[str, ...],
    edge: str | None,
    tenant: str,
    expires: str | None,
    to: str | None,
    names: str | None,
    dry_run: bool,
    token_file: str | None,
    reason: str,
    by: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Add token NAME at HUB and print it, or write it to a file of mode 600 with --to.

    HUB is a configuration on this machine, a URL or the name of a login. The first token of a store needs the
    configuration.

    The token is shown only once and stored nowhere else. After the first token of a store, its hubs admit no one
    without a token, and links without one end: --dry-run lists them. `weft hub open` reverts this.

    \b
    weft hub token add hub.yaml press-7 --scope edge --edge press-shop-7 --expires 365d --to press-7.token
    weft hub token add https://hub.example.com quality --grant 'read:press-*' --grant edges
    weft hub token add hub.yaml --from edges.txt --scope edge --to tokens
    """
    if (name is None) == (names is None):
        raise Refused("expected a NAME, or a file of names with --from")
    is_config = names_a_config(hub)
    if not is_config and (names is not None or dry_run):
        option = "--dry-run" if names is None else "--from"
        raise Refused(f"{option} reads the store of a hub: name its CONFIG, not a URL or a login")
    until = end_of(expires, time.time_ns(), "--expires")
    if names is not None:
        if edge is not None:
            raise Refused("--from names the edges: leave out --edge")
        if to is None:
            raise Refused("expected a folder for the secrets: --to FOLDER")
        fleet = Fleet(names, to, scope=scope, grants=grants, tenant=tenant, until=until)
        if dry_run:
            print_preview(hub, [each.name for each in fleet.tokens], as_json=as_json)
            return
        confirm_first(hub, fleet.decisions, by, reason, yes=yes)
        fleet.declare(hub, by, reason, as_json=as_json)
        return
    assert name is not None, "it was checked"
    access = access_of(scope, grants, edge)
    check_name(name)
    more = {"scope": str(access), "tenant": tenant, "edge": edge, "grants": grants}
    if is_config:
        with declaring():
            decision = add_token(TokenIdentity(name, NO_HASH, access, tenant, edge, grants), until)
        if dry_run:
            print_preview(hub, [name], as_json=as_json)
            return
    with reserved_file(to) as fill:
        if is_config:
            confirm_first(hub, [decision], by, reason, yes=yes)
        made = administration_of(hub, token_file, by).add_token(
            name, scope=scope, tenant=tenant, edge=edge, grants=grants, expires=expires, reason=reason
        )
        fill(made.token)
    _print_secret(made, to, as_json=as_json, **more)


SHARE_EXPIRES = "30d"
SHARE_SUFFIX = ".share"


@click.command()
@hub_argument
@click.argument("name")
@click.option(
    "--stream",
    "streams",
    multiple=True,
    required=True,
    metavar="PATTERN",
    help="Stream whose tables are shared, several times; `*` matches any characters.",
)
@tenant_option("Tenant of the streams.")
@click.option(
    "--expires",
    metavar="TIME",
    default=SHARE_EXPIRES,
    show_default=True,
    help="End of the profile: a duration such as 90d, or a date.",
)
@click.option(
    "--url", help="URL at which readers reach the hub. The first one of `advertise`, or that of HUB, by default."
)
@click.option(
    "--to",
    metavar="FILE",
    type=click.Path(),
    help=f"New file for the profile, of mode 600. NAME{SHARE_SUFFIX} by default.",
)
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@yes_option
def share(
    hub: str,
    name: str,
    *,
    streams: tuple[str, ...],
    tenant: str,
    expires: str,
    url: str | None,
    to: str | None,
    token_file: str | None,
    reason: str,
    by: str | None,
    yes: bool,
) -> None:
    """Write a profile with which clients of Delta Sharing read tables of HUB, which has `sharing: true`.

    HUB is a configuration on this machine, a URL or the name of a login. The profile has a new token called NAME. It
    opens the tables of the streams by that protocol and nothing else, and ends with `weft hub token remove`.

    \b
    weft hub share hub.yaml quality-team --stream 'press-*' --expires 30d
    weft hub share https://hub.example.com supplier --stream flow --tenant acme --to supplier.share
    """
    check_name(name)
    to = f"{name}{SHARE_SUFFIX}" if to is None else to
    grants = tuple(f"{Right.SHARE}:{pattern}" for pattern in streams)
    access, until = access_of(None, grants, None), end_of(expires, time.time_ns(), "--expires")
    is_config = names_a_config(hub)
    with reserved_file(to) as fill:
        if is_config:
            with declaring():
                decision = add_token(TokenIdentity(name, NO_HASH, access, tenant, None, grants), until)
            confirm_first(hub, [decision], by, reason, yes=yes)
        there = administration_of(hub, token_file, by)
        made = there.add_token(name, tenant=tenant, grants=grants, expires=expires, reason=reason)
        if url is None:
            url = there.url if isinstance(there, RunningHub) else _advertised(load_hub(hub))
        fill(_profile(url, made.token, made.until))
    if is_config and not load_hub(hub).sharing:
        click.echo(f"warning: {hub} does not have `sharing: true`, so that the hub shares nothing yet", err=True)
    click.echo(f"wrote the profile to {to}: give it to its reader, and delete it here")


def _advertised(config: HubConfig) -> str:
    """Return the URL at which clients reach the hub of a configuration."""
    return config.advertise[0] if config.advertise else url_here(config.listen, certificate_of(config))


def _profile(url: str, token: str, until: str | None) -> str:
    """Return the profile of a token, in the form of the protocol's section "Profile File Format"."""
    profile = {
        "shareCredentialsVersion": 1,
        "endpoint": f"{url.rstrip('/')}/delta-sharing",
        "bearerToken": token,
        "expirationTime": until,
    }
    return msgspec.json.format(msgspec.json.encode(profile)).decode()


@click.command()
@hub_argument
@click.argument("edge")
@tenant_option("Tenant of the edge.")
@click.option("--name", help="Name of the token; that of the edge by default.")
@click.option(
    "--within", metavar="DURATION", default=CODE_VALID, show_default=True, help="Time for which the code counts."
)
@expires_option
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@json_option
@yes_option
def pair(
    hub: str,
    edge: str,
    *,
    tenant: str,
    name: str | None,
    within: str,
    expires: str | None,
    token_file: str | None,
    reason: str,
    by: str | None,
    as_json: bool,
    yes: bool,
) -> None:
    """Show a code by which the machine of EDGE gets a token from HUB: `weft edge pair URL CODE`.

    HUB is a configuration on this machine, a URL or the name of a login. The first token of a store needs the
    configuration.

    The code counts once, and for a short time. The store has its hash. Another code for the edge replaces it. A token
    that the edge has already ends when the new code is used: the machine was replaced.

    \b
    weft hub token pair hub.yaml press-7
    weft hub token pair https://hub.example.com press-7 --within 8h --expires 365d
    """
    name = edge if name is None else name
    check_name(name)
    if names_a_config(hub):
        with declaring():
            decision = pair_token(TokenIdentity(name, NO_HASH, Scope.EDGE, tenant, edge), _pairing(within, expires))
        confirm_first(hub, [decision], by, reason, yes=yes)
    # The code's time begins now, however long the answer took.
    there = administration_of(hub, token_file, by)
    made = there.pair_token(name, edge=edge, tenant=tenant, within=within, expires=expires, reason=reason)
    if as_json:
        print_json({"code": made.code, "edge": edge, "tenant": tenant, "token": name, "until": made.until})
        return
    click.echo(made.code)
    click.echo(f"counts once, until {made.until}. At the edge: weft edge pair URL {made.code}", err=True)


def _pairing(within: str, expires: str | None) -> Pairing:
    """Return a code as the hub is about to make it; refuse times that it cannot have."""
    try:
        return new_pairing(NO_HASH, within, expires, time.time_ns())
    except ValueError as error:
        raise Refused(f"--{error}") from None


@click.command("import")
@hub_argument
@click.option(
    "--file",
    "path",
    required=True,
    type=click.Path(dir_okay=False, allow_dash=True),
    help="File of tokens and their hashes.",
)
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@yes_option
def import_tokens(hub: str, path: str, *, token_file: str | None, reason: str, by: str | None, yes: bool) -> None:
    """Declare the tokens of a file at HUB. The tokens stay the same: edges need no new ones.

    HUB is a configuration on this machine, a URL or the name of a login. The first token of a store needs the
    configuration.

    The file has the SHA-256 of each token, and not the token; `-` is standard input. Tokens that are declared already
    are skipped, so that the command can be repeated. One that was removed is declared again: remove it from the file as
    well. Their tenants must be declared before. Of a file with more than 1,000 tokens, those before an error stay.

    \b
    tokens:
    - name: press-7
      sha256: 2f7b...            # printf %s "$TOKEN" | sha256sum
      scope: edge
      edge: press-shop-7
    \b
    weft hub token import hub.yaml --file tokens.yaml
    """
    identities, known = read_file(path), TokenCache()
    if names_a_config(hub):
        with declaring():
            decisions = [import_token(each, known) for each in identities]
        confirm_first(hub, decisions, by, reason, yes=yes)
    there = administration_of(hub, token_file, by)
    added = list[str]()
    for part in _requests(msgspec.convert(identities, list[HashedToken], from_attributes=True)):
        done = there.import_tokens(part, reason=reason)
        added += done.added
        for name in done.other_secret:
            remedy = "`weft hub token rotate` gives it a new one; remove rotated tokens from the file"
            click.echo(f"warning: {name} has another secret at the hubs, and keeps it. {remedy}", err=True)
    shown = f": {listed(added)}" if added else ""
    click.echo(f"declared {counted(len(added), 'token')}{shown}; {len(identities) - len(added)} existed already")


@click.command()
@hub_argument
@click.argument("name")
@click.option(
    "--expires",
    metavar="TIME",
    help="End of the new secret: a duration such as 90d, a date, or `never`. That of the one before by default.",
)
@click.option(
    "--overlap",
    metavar="DURATION",
    default="7d",
    show_default=True,
    help="Time for which the secret before stays in force; 0s for none.",
)
@click.option("--end-oldest", is_flag=True, help="If two secrets are in force already, end the older one now.")
@to_option
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@json_option
def rotate(
    hub: str,
    name: str,
    *,
    expires: str | None,
    overlap: str,
    end_oldest: bool,
    to: str | None,
    token_file: str | None,
    reason: str,
    by: str | None,
    as_json: bool,
) -> None:
    """Replace the secret of token NAME at HUB and print the new one.

    HUB is a configuration on this machine, a URL or the name of a login. The previous secret remains valid for a while,
    in which the token's owner switches; then links with it end. Access, name and end remain the same.

    \b
    weft hub token rotate hub.yaml press-7 --overlap 14d --expires 365d
    """
    now = time.time_ns()
    end_of(None if expires == NEVER else expires, now, "--expires")
    end_of(overlap, now, "--overlap")
    there = administration_of(hub, token_file, by)
    with reserved_file(to) as fill:
        made = there.rotate_token(name, expires=expires, overlap=overlap, end_oldest=end_oldest, reason=reason)
        fill(made.token)
    _print_rotated(made, to, now, as_json=as_json, keeps_end=expires is None)


def _print_rotated(made: SecretAnswer, to: str | None, now: int, *, as_json: bool, keeps_end: bool) -> None:
    _print_secret(made, to, as_json=as_json)
    left_ns = None if made.until is None else parse_moment(made.until) - now
    if keeps_end and left_ns is not None and left_ns < ENDS_SOON_S * 1e9:
        left = approximate_duration(left_ns / 1e9)
        click.echo(
            f"the new secret of {made.name} ends with the one before, in {left}: --expires 365d sets a later end",
            err=True,
        )


@click.command()
@hub_argument
@click.argument("name")
@access_options("a token that has the grant tokens, for a URL or a login")
@decision_options
@json_option
def remove(hub: str, name: str, *, token_file: str | None, reason: str, by: str | None, as_json: bool) -> None:
    """Withdraw token NAME at HUB: a configuration on this machine, a URL or the name of a login. Its links end two
    seconds later."""

    left = administration_of(hub, token_file, by).remove_token(name, reason=reason).left
    if as_json:
        print_json({"removed": name, "left": left})
        return
    click.echo(f"withdrew {name}")
    if not left:
        click.echo(
            "no token is left in the cluster log: its hubs admit no one until `weft hub token add`, or `weft hub open`",
            err=True,
        )


@click.command("list")
@any_hub_argument
@access_options("a token that has the grant acts, for a URL or a login")
@json_option
def list_tokens(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """List the tokens in the cluster log of HUB, not the tokens themselves.

    HUB is a configuration on this machine, a URL or the name of a login. A use is shown within an hour; the first one
    of a token within two minutes. A link that is open is a use.
    """

    found = whole("tokens", administration_of(hub, token_file).tokens).tokens
    if as_json:
        print_json(found)
        return
    columns = (
        "name",
        "scope",
        "tenant",
        "edge",
        "secrets in force",
        "until",
        "older secret until",
        "last used",
        "changed",
        "by",
        "reason",
    )
    print_table(
        columns,
        [
            (
                each.name,
                f"not usable: {each.unusable}" if each.unusable else " ".join(each.grants) or each.scope,
                each.tenant or "",
                each.edge or "",
                each.secrets,
                each.until or "",
                each.older_until or "",
                each.last_used or "not seen",
                each.changed,
                each.by,
                each.reason,
            )
            for each in found
        ],
    )


def _print_secret(made: SecretAnswer, to: str | None, *, as_json: bool, **more: Any) -> None:
    secret = {"token": made.token} if to is None else {"token_file": to}
    if as_json:
        print_json({"name": made.name, **more, "until": made.until, **secret})
    else:
        click.echo(made.token if to is None else f"wrote the token to {to}")
