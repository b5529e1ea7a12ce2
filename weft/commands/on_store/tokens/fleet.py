"""Secrets of tokens in files, and tokens for a whole fleet, in one run."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import NamedTuple

import click

from weft.commands.common import using
from weft.commands.credentials.token import access_of
from weft.commands.on_store.declaring import declare_all, read_facts
from weft.commands.set_up.new_files import write_new
from weft.output import Failed, Refused, counted, print_json
from weft.protocols.lane import NAME_RULE, valid_name

FLEET_MAX = 10_000
"""Maximum number of tokens of one run."""
FILE_BYTES_MAX = 4 << 20
SUFFIX = ".token"


def check_name(name: str) -> None:
    """Refuse a name that a new token cannot have."""
    if not name.isprintable() or any(map(str.isspace, name)):
        raise Refused(f"{name!r} cannot be the name of a token: expected printable characters without spaces")


@contextlib.contextmanager
def secret_file(path: str | None, token: str) -> Iterator[None]:
    """Write a secret to a new file for its owner alone, before the token is declared. An error of that removes it.

    Args:
        path: None for no file.
    """
    if path is None:
        yield
        return
    write_new({path: f"{token}\n".encode()}, replaced="")
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise


class _FleetToken(NamedTuple):
    name: str
    edge: str | None
    path: str
    """File of its secret."""


class Fleet:
    """Tokens with the same access, a line of a file for each.

    Secrets are written before tokens are declared, so a run that was stopped goes on when it is given again: it takes
    the secrets that are there.

    Args:
        path: file of names.
        folder: place of the secrets.
        scope, grants, tenant: of all tokens.
    """

    def __init__(self, path: str, folder: str, scope: str | None, grants: tuple[str, ...], tenant: str) -> None:
        self.folder, self._tenant, self._grants = folder, tenant, grants
        self.tokens = list(_wanted(path, folder, has_edge=scope == "edge" or any(map(_writes, grants))))
        if not self.tokens:
            raise Refused(f"{path}: expected a line for each token: NAME, or NAME and EDGE")
        self._access = access_of(scope, grants, self.tokens[0].edge)

    def declare(self, config_file: str, until: int | None, by: str | None, reason: str, *, as_json: bool) -> None:
        """Write the secrets, and declare the tokens.

        Args:
            until: end of all, nanoseconds since 1970; None for no end.
        """
        from weft.cloud_hub.api.tokens import TokenIdentity, hash_token
        from weft.cloud_hub.declared import changes
        from weft.cloud_hub.declared.documents import TOKEN

        declared = read_facts(config_file).facts(TOKEN)
        if taken := [each.name for each in self.tokens if each.name in declared and not os.path.lexists(each.path)]:
            raise Failed(
                f"nothing was declared: tokens of these names are there, and {self.folder} has no secrets of them: "
                f"{changes.listed(taken)}. Leave them out, or give them new secrets: `weft hub token rotate`"
            )
        with using(self.folder):
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
        secrets = [_secret(each.path) for each in self.tokens]
        known = changes.KnownTokens()
        decisions = [
            changes.import_token(
                TokenIdentity(each.name, hash_token(secret), self._access, self._tenant, each.edge, self._grants),
                known, until,
            )
            for each, secret in zip(self.tokens, secrets, strict=True)
        ]  # fmt: skip
        changed = declare_all(config_file, decisions, by, reason)
        added = [each.name for each, is_new in zip(self.tokens, changed, strict=True) if is_new]
        if as_json:
            print_json({"added": added, "there": len(self.tokens) - len(added), "folder": self.folder})
            return
        click.echo(f"declared {counted(len(added), 'token')}; {len(self.tokens) - len(added)} were there already")
        click.echo(f"{self.folder} has the secret of each, NAME{SUFFIX}: take it to its owner, and delete it here")


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
                raise Refused(f"{path}:{number}: {each!r} cannot be a name: {NAME_RULE}")
        if name in names:
            raise Refused(f"{path}:{number}: {name} is there twice")
        names.add(name)
        if len(names) > FLEET_MAX:
            raise Refused(f"{path}:{number}: more than {FLEET_MAX} tokens. Give them in several files")
        yield _FleetToken(name, edge, os.path.join(folder, f"{name}{SUFFIX}"))


def _secret(path: str) -> str:
    """Return the secret in a file, which an earlier run has left, or write a new one there."""
    from weft.cloud_hub.api.tokens import new_token
    from weft.network.token_file import read_token

    if os.path.lexists(path):
        try:
            with using(path):
                return read_token(path)
        except ValueError as error:
            raise Failed(str(error)) from None
    token = new_token()
    write_new({path: f"{token}\n".encode()}, replaced="")
    return token
