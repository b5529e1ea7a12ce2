"""``weft user``, ``weft login`` and ``weft hub whoami``: passwords of a node's clients, and tokens for hubs."""

from __future__ import annotations

import getpass
import os
import sys
import warnings
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import click
import msgspec

from weft.client import logins
from weft.client.logins import Login, LoginsUnusable
from weft.commands.acts import Decided, acting_on_file, decision_options
from weft.commands.common import ExistingPath, json_option, using
from weft.commands.running import RunningHub, access_options, any_hub_argument, running_hub, trusting
from weft.edge_node.access import users
from weft.network.admission import is_loopback
from weft.network.reload import TOKEN_BYTES_MAX, read_token, token_in
from weft.output import Failed, Refused, harmless, print_facts, print_json, print_table

# ``weft user``: manage the user names and passwords of an edge node's MQTT clients.

PASSWORD_FILE_BYTES_MAX = 4096

users_file_option = click.option(
    "--file", "path", required=True, type=click.Path(dir_okay=False, readable=False), help="The node's auth.users_file."
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
                "there is no terminal to ask for the password on. Use --password-file FILE, or --password-file - for "
                "standard input"
            ) from None
    return asked.encode()


# ``weft login``: hubs by their names, each with its token; and what a token opens there.


@click.command("login")
@click.argument("name", required=False)
@click.argument("url", required=False)
@click.option(
    "--token-file",
    type=ExistingPath(dir_okay=False),
    help="File with the token, which is copied. Unset: it is asked for, or read from standard input.",
)
@click.option("--no-token", is_flag=True, help="The hub needs no token, or the environment has it.")
@click.option(
    "--ca-file", type=ExistingPath(dir_okay=False), help="Authorities that the hub's certificate is trusted by (PEM)."
)
@click.option(
    "--certificate",
    type=ExistingPath(dir_okay=False),
    help="Client certificate (PEM) to use instead of a token; `tls.readers` of the hub gives it rights.",
)
@click.option("--key", type=ExistingPath(dir_okay=False), help="The certificate's key (PEM), not encrypted.")
@click.option("--forget", is_flag=True, help="Remove NAME and its token instead.")
@json_option
def login_command(
    name: str | None,
    url: str | None,
    *,
    token_file: str | None,
    no_token: bool,
    ca_file: str | None,
    certificate: str | None,
    key: str | None,
    forget: bool,
    as_json: bool,
) -> None:
    """Save the hub at URL and its token as NAME, which commands then accept as HUB.

    The command first asks the hub whose token it is, and saves nothing if the hub refuses. The file,
    ~/.config/weft/hubs.json, has mode 600. Without NAME and URL, the command lists the hubs in it. A token cannot be an
    argument: other users would see it.

    \b
    weft login plant https://hub.example.com
    weft login plant https://hub.example.com --token-file admin.token --ca-file ca.pem
    weft login plant https://hub.example.com --certificate mara.crt --key mara.key
    weft hub status plant
    """
    known = _known_logins()
    if name is None:
        _list(known, as_json=as_json)
        return
    if forget:
        _forget(name, known)
        return
    if url is None:
        raise Refused("give NAME and URL: weft login plant https://hub.example.com")
    if no_token and token_file is not None:
        raise Refused("--no-token and --token-file exclude each other: choose one")
    if (certificate is None) != (key is None):
        raise Refused("--certificate and --key need each other: give both")
    try:
        name, url = logins.check_name(name), logins.check_url(url)
    except ValueError as error:
        raise Refused(str(error)) from None
    if certificate is not None and not url.startswith("https://"):
        raise Refused("a client certificate needs TLS: use a URL that begins with https://")
    is_without = no_token or (certificate is not None and token_file is None)
    token = None if is_without else _token(name, token_file)
    made = Login(url, token, *(None if each is None else os.path.abspath(each) for each in (ca_file, certificate, key)))
    tls = trusting(made.ca_file, made.certificate, made.key)
    identity = RunningHub(url, token=token, tls=tls).whoami()
    with using(logins.path()):
        try:
            logins.write({**_known_logins(), name: made})
        except LoginsUnusable as error:
            raise Failed(str(error)) from None
    if as_json:
        print_json({"name": name, "url": url, "whoami": identity})
        return
    whose = identity.token or (
        f"the certificate {identity.certificate!r}" if identity.certificate else "no token: the hub has none"
    )
    click.echo(harmless(f"{name} is {url}, as {whose}, tenant {identity.tenant or 'all'}: kept in {logins.path()}"))
    if token is not None and url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        click.echo("warning: the URL begins with http://, so the token is sent unencrypted", err=True)


def _forget(name: str, known: dict[str, Login]) -> None:
    if name not in known:
        raise Failed(f"there is no login {name!r}. `weft login` lists them")
    with using(logins.path()):
        logins.write({each: login for each, login in known.items() if each != name})
    click.echo(f"forgot {name}; at the hub, its token remains until `weft hub token remove`")


def _list(known: dict[str, Login], *, as_json: bool) -> None:
    facts = [
        {
            "name": name,
            "url": login.url,
            "has_token": login.token is not None,
            "ca_file": login.ca_file,
            "certificate": login.certificate,
        }
        for name, login in sorted(known.items())
    ]
    if as_json:
        print_json({"hubs": facts})
        return
    if not facts:
        click.echo("no hub has a name yet: weft login NAME URL")
        return
    rows = [
        (
            each["name"],
            each["url"],
            "yes" if each["has_token"] else "no",
            each["ca_file"] or "",
            each["certificate"] or "",
        )
        for each in facts
    ]
    print_table(("name", "url", "token", "authorities", "certificate"), rows)


def _known_logins() -> dict[str, Login]:
    try:
        return logins.read()
    except LoginsUnusable as error:
        raise Refused(str(error)) from None


def _token(name: str, token_file: str | None) -> str:
    try:
        if token_file is not None:
            with using(token_file):
                return read_token(token_file)
        if sys.stdin.isatty():
            return token_in(click.prompt(f"Token for {name}", hide_input=True, err=True).encode(), "the answer")
        return token_in(sys.stdin.buffer.read(TOKEN_BYTES_MAX + 1), "standard input")
    except ValueError as error:
        raise Refused(str(error)) from None


@click.command()
@any_hub_argument
@access_options("a token of any scope")
@json_option
def whoami(hub: str | None, *, token_file: str | None, as_json: bool) -> None:
    """Show the rights of a token, or of a login's certificate, at the running hub HUB: name, scope, tenant and end.

    \b
    weft hub whoami hub.yaml --token-file press-7.token
    """
    identity = running_hub(hub, token_file).whoami()
    if as_json:
        print_json(identity)
        return
    no_token = "none" if identity.certificate else "none: the hub has no tokens"
    without = {"token": no_token, "certificate": "none", "edge": "none", "until": "none", "rights": "all"}
    facts: dict[str, Any] = msgspec.to_builtins(identity)
    fields = {name: " ".join(value) if isinstance(value, list) else value for name, value in facts.items()}
    print_facts({name: harmless(str(value or without.get(name, ""))) for name, value in fields.items()})
