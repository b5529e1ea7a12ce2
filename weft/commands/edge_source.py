"""``weft edge browse``, ``test-source`` and ``trust``: a server that a source of a configuration names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from weft.commands.common import config_argument, json_option, load_edge
from weft.config.sources import OpcuaBrowse, OpcuaNode, OpcuaSource
from weft.output import Failed, Refused, print_facts, print_json, print_table

if TYPE_CHECKING:
    from weft.edge_node.sources.opcua_client import Session
    from weft.edge_node.sources.opcua_space import Space

Result = TypeVar("Result")
source_argument = click.argument("source", metavar="SOURCE")


@click.command("browse")
@config_argument
@source_argument
@click.option("--below", default="Objects", show_default=True, help="Browse path or node id to begin at.")
@click.option("--depth", type=click.IntRange(1, 64), default=8, show_default=True, help="Levels below it.")
@json_option
def edge_browse(config_file: str, source: str, below: str, depth: int, *, as_json: bool) -> None:
    """List the variables that the OPC UA server of a SOURCE offers, as YAML for its `nodes`. The node need not run.

    \b
    weft edge browse edge.yaml press --below Objects/2:Press
    """
    name, settings = _opcua(config_file, source)
    wanted = OpcuaNode(browse=OpcuaBrowse(below=below, depth=depth))

    async def look(_: Session, space: Space) -> list[dict[str, str]]:
        found, missing = await space.resolve([wanted])
        if missing:
            raise Failed(missing[0].why)
        for problem in space.problems:
            click.echo(f"left out: {problem}", err=True)
        return [{"id": space.text(each.id), "topic": each.topic, "type": each.type} for each in found]

    rows = _run(config_file, name, settings, look)
    if as_json:
        print_json(rows)
        return
    for row in rows:
        identifier = msgspec.json.encode(row["id"]).decode()
        click.echo(f"        - {{id: {identifier}}}  # {row['type']}, {row['topic']}")


@click.command("test-source")
@config_argument
@source_argument
@json_option
def edge_test_source(config_file: str, source: str, *, as_json: bool) -> None:
    """Read each variable of a SOURCE once, and print what would be stored. Nothing is stored, and no subscription made.

    \b
    weft edge test-source edge.yaml press
    """
    name, settings = _opcua(config_file, source)

    async def look(_: Session, space: Space) -> list[dict[str, Any]]:
        from weft.edge_node.sources.opcua_space import facts

        found, missing = await space.resolve(settings.nodes)
        items = await space.items(found)
        values = await space.read([each.id for each in found])
        rows = [
            {"topic": item.topic, **facts(item, value, time_ns())} for item, value in zip(items, values, strict=True)
        ]
        for problem in [*(f"{each.topic}: {each.why}" for each in missing), *space.problems]:
            click.echo(f"left out: {problem}", err=True)
        return rows

    rows = _run(config_file, name, settings, look)
    if as_json:
        print_json(rows)
        return
    print_table(
        ("topic", "value", "unit", "status", "source time"),
        [
            (row["topic"], str(row["value"])[:60], row.get("unit", ""), row["status_name"], row["source_time"] or "")
            for row in rows
        ],
    )


@click.command("trust")
@config_argument
@source_argument
@click.option("--fingerprint", help="Expected SHA-256 fingerprint; with it, nothing is asked.")
def edge_trust(config_file: str, source: str, fingerprint: str | None) -> None:
    """Show the certificate of the OPC UA server of a SOURCE, and trust it when you say so.

    The certificate is added to the file `security.trusted`. Compare its fingerprint with what the server shows, or its
    operator tells you. The node's own certificate and key are made where neither exists. Run it as the node's user.

    \b
    weft edge trust edge.yaml press
    """
    name, settings = _opcua(config_file, source)
    security = settings.security
    if security is None:
        raise Refused(f"sources.{name}.opcua has no `security`: no certificate is shown. Set it first")
    from asyncua import Client, ua

    from weft.edge_node.sources import opcua_client as client
    from weft.edge_node.sources.connection import SourceDown

    async def offered() -> Any:
        if await client.make_certificate(security, _session_name(config_file, name), socket.gethostname()):
            click.echo(f"made {security.certificate} and {security.key}; the server must trust the former")
        return await client.certificate_of(Client(settings.url[0], client.REQUEST_TIMEOUT_S), security)

    try:
        certificate = asyncio.run(offered())
    except (SourceDown, ua.UaError, TimeoutError, ConnectionError) as error:
        raise Failed(client.failure_text(error)) from None
    found = client.fingerprint(certificate)
    print_facts(
        {
            "server": settings.url[0],
            "subject": certificate.subject.rfc4514_string(),
            "valid": f"{certificate.not_valid_before_utc:%Y-%m-%d} to {certificate.not_valid_after_utc:%Y-%m-%d}",
            "SHA-256": found,
        }
    )
    if certificate in client.trusted_in(security.trusted):
        click.echo(f"{security.trusted} has it already")
        return
    if fingerprint is None:
        click.confirm("Trust it?", abort=True)
    elif fingerprint.replace(":", "").upper() != found.replace(":", ""):
        raise Refused(f"the server's certificate has another fingerprint: {found}. Nothing is trusted")
    client.trust(security, certificate)
    click.echo(f"added to {security.trusted}")


def _opcua(config_file: str, source: str) -> tuple[str, OpcuaSource]:
    config = load_edge(config_file)
    if source not in config.sources:
        raise Refused(f"no source is called {source}; the file has {', '.join(config.sources) or 'none'}")
    settings = config.sources[source].opcua
    if settings is None:
        raise Refused(f"sources.{source} is not an OPC UA source")
    return source, settings


def _session_name(config_file: str, source: str) -> str:
    config = load_edge(config_file)
    return f"weft-{config.tenant}-{config.node}-{source}"


def _run(
    config_file: str, name: str, settings: OpcuaSource, look: Callable[[Session, Space], Awaitable[Result]]
) -> Result:
    """Return what a look at the server finds, in a session of its own."""
    from asyncua import ua

    from weft.edge_node.sources.connection import SourceDown
    from weft.edge_node.sources.credentials import CredentialsUnusable, read_password
    from weft.edge_node.sources.opcua_client import Session, failure_text
    from weft.edge_node.sources.opcua_space import Space

    @asynccontextmanager
    async def opened() -> AsyncIterator[Session]:
        session = Session(settings.url[0], settings, _session_name(config_file, name), read_password(settings))
        await session.open(time_ns())
        try:
            yield session
        finally:
            await session.close()

    async def run() -> Result:
        async with opened() as session:
            space = Space(session.services, name, settings)
            await space.look()
            return await look(session, space)

    try:
        return asyncio.run(run())
    except (SourceDown, CredentialsUnusable, ua.UaError, TimeoutError, ConnectionError) as error:
        raise Failed(failure_text(error)) from None
