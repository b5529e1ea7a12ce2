"""``weft edge pair``: a token for this machine, by a code that an operator has made at the hub."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

import click

from weft.commands.common import json_option, load_edge, using
from weft.commands.set_up.new_files import write_new
from weft.config.units import Address
from weft.output import Failed, Refused, print_json

if TYPE_CHECKING:
    from weft.client import Client
    from weft.network.tls.files import ClientTlsFiles
    from weft.protocols.link.pairing import PairAnswer, PairRequest

TOKEN_FILE = "edge.token"
PENDING = ".pending"
TRIES, PAUSE_S = 3, 2.5
"""Tries of one code: hub processes know it two seconds after it was made."""
ANSWER_S_MAX = 30.0
ANSWER_BYTES_MAX = 64 << 10


class _Asking(NamedTuple):
    """The machine that asks, and the way to its hub."""

    tenant: str | None
    edge: str | None
    path: str
    """File of the token."""
    tls: ClientTlsFiles
    is_replaced: bool
    """True if a token that is there gives way."""


@click.command("pair")
@click.argument("url")
@click.argument("code", required=False)
@click.option("--config", "config_file", metavar="CONFIG", help="Configuration whose link gets the token.")
@click.option("--to", metavar="FILE", help=f"File for the token, of mode 600 ({TOKEN_FILE}).")
@click.option("--ca-file", metavar="FILE", help="Authorities that the hub is trusted by. Default: those of the system.")
@click.option("--replace", "replaces", is_flag=True, help="Replace a token that is there.")
@click.option("--plain-http", is_flag=True, help="Send the code without TLS to another machine.")
@json_option
def edge_pair(
    url: str, code: str | None, *, config_file: str | None, to: str | None, ca_file: str | None, replaces: bool,
    plain_http: bool, as_json: bool,
) -> None:  # fmt: skip
    """Get a token from the hub at URL for this machine, by the CODE that `weft hub token pair` has shown.

    The token is made here, and only its hash goes to the hub. Without CODE the command asks for it. With --config,
    authority and token_file are those of the link with this URL, and the code must be for this node. If the answer is
    lost, the same command goes on with the same token.

    \b
    weft edge pair https://hub.example.com K7QF-9XDM-2RPT --to press-7.token
    weft edge pair https://hub.example.com --config edge.yaml
    """
    _check_url(url, plain_http=plain_http)
    asking = _asking(url, config_file, to, ca_file, replaces=replaces)
    if os.path.lexists(asking.path) and not asking.is_replaced:
        raise Refused(f"{asking.path} is there already. Name another file, or replace it with --replace")
    code = code or click.prompt("Code (`weft hub token pair` at the hub shows it)", err=True)
    pending = asking.path + PENDING
    answer = _paired(url, code, asking, _secret(pending))
    with using(asking.path):
        os.replace(pending, asking.path)
        _sync(os.path.dirname(asking.path) or ".")
    if as_json:
        print_json({"file": asking.path, "tenant": answer.tenant, "edge": answer.edge, "until": answer.until})
        return
    ends = "" if answer.until is None else f", until {answer.until[:10]}"
    click.echo(f"wrote {asking.path}: this machine is edge {answer.edge} of tenant {answer.tenant}{ends}")
    if config_file is None:
        trust = f" --ca-file {ca_file}" if ca_file else ""
        click.echo(f"Next:\n  weft edge init --node {answer.edge} --hub {url} --token-file {asking.path}{trust}")


def _check_url(url: str, *, plain_http: bool) -> None:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise Refused(f"expected the URL of a hub, such as https://hub.example.com, got {url!r}")
    if parts.scheme == "http" and not Address(parts.hostname, 0).is_loopback and not plain_http:
        raise Refused(f"the code would cross the network in clear text to {url}. Use https, or add --plain-http")


def _asking(url: str, config_file: str | None, to: str | None, ca_file: str | None, *, replaces: bool) -> _Asking:
    from weft.network.tls.files import ClientTlsFiles

    if config_file is None:
        return _Asking(None, None, to or TOKEN_FILE, ClientTlsFiles(ca_file=ca_file), replaces)
    config = load_edge(config_file)
    named = {name: link for name, link in config.links.items() if url.rstrip("/") in {u.rstrip("/") for u in link.to}}
    if not named:
        known = ", ".join(url for link in config.links.values() for url in link.to) or "none"
        raise Refused(f"{config_file} has no link to {url}; there are: {known}")
    name, link = next(iter(named.items()))
    path = to or link.token_file
    if path is None:
        raise Refused(f"{config_file}: links.{name} has no token_file. Add `token_file: {TOKEN_FILE}` to it")
    files = ClientTlsFiles(ca_file=ca_file or link.ca_file, certificate=link.certificate, key=link.key)
    return _Asking(config.tenant, config.node, path, files, replaces)


def _secret(pending: str) -> str:
    """Return the token of an earlier try, or a new one that is on the disk before anything is asked."""
    from weft.cloud_hub.api.tokens import new_token
    from weft.network.token_file import read_token

    if os.path.lexists(pending):
        try:
            with using(pending):
                return read_token(pending)
        except ValueError as error:
            raise Failed(f"{error}. Remove that file, and ask for a new code") from None
    token = new_token()
    write_new({pending: f"{token}\n".encode()})
    return token


def _paired(url: str, code: str, asking: _Asking, token: str) -> PairAnswer:
    from weft.client import Client
    from weft.cloud_hub.api.tokens import hash_token
    from weft.network.tls.contexts import client_context
    from weft.network.tls.files import TlsUnusable
    from weft.protocols.link.pairing import PairRequest

    try:
        tls = client_context(asking.tls) if url.startswith("https:") else None
    except TlsUnusable as error:
        raise Failed(str(error)) from None
    client = Client(url, tls=tls, timeout_s=ANSWER_S_MAX, bytes_max=ANSWER_BYTES_MAX)
    return _asked(client, PairRequest(code=code, sha256=hash_token(token), tenant=asking.tenant, edge=asking.edge))


def _asked(client: Client, request: PairRequest) -> PairAnswer:
    """Ask until the hub knows the code, or an error says that it will not."""
    import msgspec

    from weft.client import HubRefusal, HubUnreachable
    from weft.protocols.link.pairing import PAIR_PATH, PairAnswer

    for left in reversed(range(TRIES)):
        try:
            body = client.fetch(PAIR_PATH, msgspec.json.encode(request)).body
            return msgspec.json.decode(body, type=PairAnswer)
        except HubRefusal as refusal:
            if refusal.status == 403 and left:
                time.sleep(PAUSE_S)
                continue
            if not refusal.detail:
                message = "no hub answers there, or one of a release without pairing. Check the URL"
                raise Failed(f"{message} ({refusal.status})") from None
            raise Failed(f"{refusal.detail}: {refusal.advice}") from None
        except HubUnreachable as error:
            raise Failed(f"{error}. The same command goes on with the same token") from None
        except msgspec.MsgspecError:
            raise Failed("what answers there is no hub of this release. Check the URL") from None
    raise AssertionError("the last try returns or raises")


def _sync(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
