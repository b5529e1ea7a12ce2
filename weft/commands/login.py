"""``weft login``: hubs by their names, each with its token."""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit

import click

from weft.client import logins
from weft.client.logins import Login, LoginsUnusable
from weft.commands.common import ExistingPath, json_option, using
from weft.commands.running import RunningHub, trusting
from weft.network.admission import is_loopback
from weft.network.reload import TOKEN_BYTES_MAX, read_token, token_in
from weft.output import Failed, Refused, harmless, print_json, print_table


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
    help="Client certificate (PEM) that the hub gives rights by `tls.readers`, in the place of a token.",
)
@click.option("--key", type=ExistingPath(dir_okay=False), help="The certificate's key (PEM), not encrypted.")
@click.option("--forget", is_flag=True, help="Remove NAME and its token instead.")
@json_option
def login_command(
    name: str | None, url: str | None, *, token_file: str | None, no_token: bool, ca_file: str | None,
    certificate: str | None, key: str | None, forget: bool, as_json: bool,
) -> None:  # fmt: skip
    """Keep the hub at URL with its token as NAME, which then stands where a command takes HUB.

    The hub is asked whose token it is before anything is kept. The file, ~/.config/weft/hubs.json, has mode 600.
    Without NAME and URL, the command lists the hubs in it. A token cannot be an argument: other users would see it.

    \b
    weft login plant https://hub.example.com
    weft login plant https://hub.example.com --token-file admin.token --ca-file ca.pem
    weft login plant https://hub.example.com --certificate mara.crt --key mara.key
    weft hub status plant
    """
    known = _read()
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
        raise Refused("--certificate and --key belong together: give both")
    try:
        name, url = logins.check_name(name), logins.check_url(url)
    except ValueError as error:
        raise Refused(str(error)) from None
    if certificate is not None and not url.startswith("https://"):
        raise Refused("a certificate is shown by TLS: the URL has to begin with https://")
    is_without = no_token or (certificate is not None and token_file is None)
    token = None if is_without else _token(name, token_file)
    made = Login(url, token, *(None if each is None else os.path.abspath(each) for each in (ca_file, certificate, key)))
    tls = trusting(made.ca_file, made.certificate, made.key)
    told = RunningHub(url, token=token, tls=tls).get("/v1/whoami")
    with using(logins.path()):
        try:
            logins.write({**_read(), name: made})
        except LoginsUnusable as error:
            raise Failed(str(error)) from None
    if as_json:
        print_json({"name": name, "url": url, "whoami": told})
        return
    by_certificate = told.get("certificate")
    whose = told["token"] or (f"the certificate {by_certificate!r}" if by_certificate else "no token: the hub has none")
    click.echo(harmless(f"{name} is {url}, as {whose}, tenant {told['tenant'] or 'all'}: kept in {logins.path()}"))
    if token is not None and url.startswith("http://") and not is_loopback(urlsplit(url).hostname or ""):
        click.echo("warning: the URL begins with http://, so the token crosses the network readable", err=True)


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
            each["name"], each["url"], "yes" if each["has_token"] else "no", each["ca_file"] or "",
            each["certificate"] or "",
        )
        for each in facts
    ]  # fmt: skip
    print_table(("name", "url", "token", "authorities", "certificate"), rows)


def _read() -> dict[str, Login]:
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
