"""``weft ca``: a certificate authority for a plant that has none."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import json_option, using
from weft.commands.set_up.authority import (
    AUTHORITY_DAYS,
    CERTIFICATE_FILE,
    DAYS,
    DAYS_MAX,
    LIST_DAYS,
    LIST_FILE,
    Authority,
    AuthorityUnusable,
    Kind,
    create,
    now_utc,
    opened,
)
from weft.commands.set_up.new_files import check_user, replace, write_new
from weft.output import Failed, Refused, counted, print_json, print_table
from weft.protocols.lane import NAME_RULE, valid_name

if TYPE_CHECKING:
    from weft.commands.set_up.authority import Issued

folder_argument = click.argument("folder", type=click.Path(file_okay=False, readable=False))
_days = click.IntRange(1, DAYS_MAX)
days_option = click.option("--days", type=_days, default=DAYS, show_default=True, help="Days for which it counts.")
to_option = click.option(
    "--to", default=".", show_default=True, type=click.Path(file_okay=False), help="Folder for the files."
)
replace_option = click.option("--replace", "replaces", is_flag=True, help="Replace files that are there: a renewal.")
list_days_option = click.option(
    "--list-days", type=_days, default=LIST_DAYS, show_default=True,
    help="Days until the list of revoked certificates has to be renewed.",
)  # fmt: skip
host_help = "Name or address by which others call it; repeatable."


@click.group("ca")
def ca_group() -> None:
    """Make certificates for hubs, edges and devices by an authority of your own, and revoke them.

    The folder of the authority has its key: keep it on one machine, with a copy in a safe place. Nodes need the key of
    their own certificate and the authority's certificate, and never its key. Needs the library cryptography, which the
    extras hub, encryption and signatures bring.

    \b
    weft ca init plant-ca --name "Plant A"
    weft ca hub plant-ca --host hub.plant.example --to hub
    weft ca edge plant-ca press-7 --to press-7
    """


@contextlib.contextmanager
def _told(folder: str) -> Iterator[None]:
    """Turn errors of an authority into sentences."""
    try:
        with using(folder):
            yield
    except AuthorityUnusable as error:
        raise Failed(str(error)) from None
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "cryptography":
            raise
        message = 'certificates need the library cryptography: pip install "weft-fabric[encryption]"'
        raise Failed(message) from None


@ca_group.command()
@folder_argument
@click.option("--name", default="Weft authority", show_default=True, help="Name of the authority, for people.")
@click.option("--days", type=_days, default=AUTHORITY_DAYS, show_default=True, help="Days for which it counts.")
def init(folder: str, *, name: str, days: int) -> None:
    """Make an authority in FOLDER, which is new or has none yet. Its files are for their owner alone."""
    with _told(folder):
        create(folder, name, days, now_utc(time.time()))
    click.echo(f"made the authority {name!r} in {folder}. A thief of {folder} could make edges and hubs")
    click.echo(f"Next:\n  weft ca hub {folder} --host HOST --to hub")


@ca_group.command()
@folder_argument
@click.option("--host", "hosts", multiple=True, required=True, help=host_help)
@to_option
@days_option
@replace_option
@json_option
def hub(folder: str, *, hosts: Sequence[str], to: str, days: int, replaces: bool, as_json: bool) -> None:
    """Issue the certificate of a hub, for the names by which edges and readers call it.

    Files: hub.crt and hub.key, the authority's certificate, and its list of revoked certificates (`tls.crl_file`).
    """
    told = issue(folder, Kind.HUB, hosts[0], hosts, to, days=days, replaces=replaces)
    _say(told, as_json=as_json)


@ca_group.command()
@folder_argument
@click.argument("edge")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the edge.")
@click.option("--host", "hosts", multiple=True, help=f"{host_help} For its listeners with TLS.")
@to_option
@days_option
@replace_option
@json_option
def edge(
    folder: str, edge: str, *, tenant: str, hosts: Sequence[str], to: str, days: int, replaces: bool, as_json: bool
) -> None:
    """Issue the certificate of EDGE, by which a hub with `tls.client_ca` knows it without a token.

    With --host, the listeners of the edge may show the same certificate to devices.
    """
    for each in (tenant, edge):
        if not valid_name(each):
            raise Refused(f"{each!r} cannot be a name: {NAME_RULE}")
    name = edge if tenant == "default" else f"{tenant}/{edge}"
    _say(issue(folder, Kind.EDGE, name, hosts, to, days=days, replaces=replaces, file=edge), as_json=as_json)


@ca_group.command()
@folder_argument
@click.argument("user")
@to_option
@days_option
@replace_option
@json_option
def device(folder: str, user: str, *, to: str, days: int, replaces: bool, as_json: bool) -> None:
    """Issue the certificate of a device, which logs in at edges as USER (`listeners.<name>.tls.client_ca`)."""
    check_user(user)
    _say(issue(folder, Kind.DEVICE, user, (), to, days=days, replaces=replaces), as_json=as_json)


@ca_group.command()
@folder_argument
@click.argument("name")
@list_days_option
def revoke(folder: str, name: str, *, list_days: int) -> None:
    """Revoke the certificates of NAME, or the one of a serial number, and sign the list of revoked ones again.

    Then copy the list to each hub and edge that has one (`crl_file`). They read it again by themselves, and end the
    connections of revoked certificates.
    """
    with _told(folder), opened(folder) as authority:
        revoked = authority.revoke(name, now_utc(time.time()), list_days)
    click.echo(f"revoked {counted(len(revoked), 'certificate')} of {name}")
    click.echo(f"Next: copy {os.path.join(folder, LIST_FILE)} to the `crl_file` of each hub and edge that has one")


@ca_group.command("renew-list")
@folder_argument
@list_days_option
def renew_list(folder: str, *, list_days: int) -> None:
    """Sign the list of revoked certificates again. After its end, every certificate of the authority is refused."""
    with _told(folder), opened(folder) as authority:
        until = authority.renew_list(now_utc(time.time()), list_days)
    click.echo(f"{os.path.join(folder, LIST_FILE)} counts until {until:%Y-%m-%d}. Copy it to each `crl_file` before")


@ca_group.command("list")
@folder_argument
@json_option
def list_certificates(folder: str, *, as_json: bool) -> None:
    """Show every certificate that the authority has issued, the newest last."""
    with _told(folder), opened(folder) as authority:
        issued, ends = list(authority.issued), authority.until
    if as_json:
        print_json({"authority_until": ends.isoformat(), "issued": [_facts(each) for each in issued]})
        return
    rows = [(each.name, each.kind, f"{each.until:%Y-%m-%d}", _state(each), each.serial) for each in issued]
    print_table(("name", "kind", "until", "state", "serial"), rows)


def issue(
    folder: str, kind: Kind, name: str, hosts: Sequence[str], to: str, *, days: int, replaces: bool,
    file: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Issue a certificate and write it, with its key and the authority's own certificate, into a folder.

    Args:
        name: its common name.
        file: begin of the files' names; a hub's are called hub.

    Returns:
        What was written, and the day on which it ends.
    """
    stem = "hub" if kind is Kind.HUB else re.sub(r"[^A-Za-z0-9._-]+", "-", file or name).lstrip(".-") or "device"
    place: Callable[[str], str] = lambda each: os.path.normpath(os.path.join(to, each))  # noqa: E731
    with _told(folder), opened(folder) as authority:
        own = {place(f"{stem}.key"), place(f"{stem}.crt")}
        shared = _shared(authority, kind, place)
        if not replaces:
            _check_free(own, shared)
        with using(to):
            os.makedirs(to, mode=0o700, exist_ok=True)
        pem = authority.issue(kind, name, hosts, days, now_utc(time.time()))
    mine = {place(f"{stem}.key"): pem.key, place(f"{stem}.crt"): pem.certificate}
    new = {path: data for path, data in shared.items() if not os.path.lexists(path)}
    write = replace if replaces else write_new
    write({**mine, **(shared if replaces else new)})
    return {"written": [*mine, *shared], "name": name, "until": pem.until.isoformat()}


def _shared(authority: Authority, kind: Kind, place: Callable[[str], str]) -> dict[str, bytes]:
    found = {place(CERTIFICATE_FILE): authority.certificate}
    if kind is Kind.HUB:
        found[place(LIST_FILE)] = authority.revocations
    return found


def _check_free(own: set[str], shared: dict[str, bytes]) -> None:
    """Refuse files that are there, before a certificate is issued. Those of the same authority may be."""
    for path in sorted(own):
        if os.path.lexists(path):
            raise Refused(f"{path} is there already. Choose another folder with --to, or renew it with --replace")
    for path, data in shared.items():
        if os.path.lexists(path) and path.endswith(CERTIFICATE_FILE):
            with using(path), open(path, "rb") as file:
                if file.read(len(data) + 1) != data:
                    raise Refused(f"{path} is of another authority. Choose another folder with --to")


def _say(told: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(told)
        return
    for path in told["written"]:
        click.echo(f"wrote {path}")
    click.echo(f"the certificate of {told['name']} counts until {told['until'][:10]}")


def _state(issued: Issued) -> str:
    if issued.revoked is not None:
        return f"revoked {issued.revoked:%Y-%m-%d}"
    return "ended" if issued.until <= now_utc(time.time()) else "counts"


def _facts(issued: Issued) -> dict[str, Any]:
    revoked = None if issued.revoked is None else issued.revoked.isoformat()
    until = issued.until.isoformat()
    return {"name": issued.name, "kind": issued.kind, "until": until, "revoked": revoked, "serial": issued.serial}
