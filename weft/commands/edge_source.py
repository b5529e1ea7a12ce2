"""``weft edge browse``, ``test-source`` and ``trust``: a server that a source of a configuration names."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from time import time_ns
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from weft.commands.common import config_argument, confirm, json_option, load_edge
from weft.config.sources import ModbusSource, OpcuaBrowse, OpcuaNode, OpcuaSource, Source
from weft.edge_node.sources.credentials import library_missing
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, print_facts, print_json, print_table

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
def edge_test_source(config_file: str, source: str, *, as_json: bool) -> int:
    """Read each value of a SOURCE of OPC UA or Modbus once, and print it. Nothing is stored; the node need not run.

    A Modbus device that accepts one connection must not have the node's at the same time. Exit status 1 if a value is
    missing.

    \b
    weft edge test-source edge.yaml press
    """
    config = load_edge(config_file)
    found = _source(config.sources, source)
    if missing := library_missing(found):
        raise Failed(f"sources.{source} {missing}")
    if found.modbus is not None:
        return _test_modbus(found.modbus, as_json=as_json)
    return _test_opcua(config_file, source, as_json=as_json)


def _test_modbus(settings: ModbusSource, *, as_json: bool) -> int:
    # Imported here: it loads pymodbus.
    from weft.edge_node.sources.connection import SourceDown
    from weft.edge_node.sources.modbus import read_once

    try:
        values, requests = asyncio.run(read_once(settings))
    except (OSError, SourceDown) as error:
        reason = str(error) or "no answer. Is the address right, and the network up?"
        raise Failed(f"{settings.url}: {reason}") from None
    if as_json:
        print_json({"values": [each._asdict() for each in values], "requests": requests})
    else:
        print_table(
            ("value of", "is", "unit", "register", "trouble"),
            [
                (each.item, "" if each.trouble else json.dumps(each.value), each.unit, each.register, each.trouble)
                for each in values
            ],
        )
        click.echo(f"{counted(len(values), 'value')} with {counted(requests, 'request')}", err=True)
    return FAILURE_EXIT_CODE if any(each.trouble for each in values) else 0


def _test_opcua(config_file: str, source: str, *, as_json: bool) -> int:
    name, settings = _opcua(config_file, source)
    left_out: list[str] = []

    async def look(_: Session, space: Space) -> list[dict[str, Any]]:
        from weft.edge_node.sources.opcua_space import facts

        found, missing = await space.resolve(each for each in settings.nodes if not each.events)
        items = await space.items(found)
        await space.learn(items)
        values = await space.read([each.id for each in found])
        left_out.extend([*(f"{each.topic}: {each.why}" for each in missing), *space.problems])
        return [
            {"topic": item.topic, **facts(item, value, time_ns(), space.definitions)}
            for item, value in zip(items, values, strict=True)
        ]

    rows = _run(config_file, name, settings, look)
    if as_json:
        print_json(rows)
    else:
        print_table(
            ("topic", "value", "unit", "status", "source time"),
            [
                (
                    row["topic"],
                    str(row["value"])[:60],
                    row.get("unit", ""),
                    row["status_name"],
                    row["source_time"] or "",
                )
                for row in rows
            ],
        )
    for problem in left_out:
        click.echo(f"left out: {problem}", err=True)
    return FAILURE_EXIT_CODE if left_out else 0


@click.command("trust")
@config_argument
@source_argument
@click.option("--fingerprint", help="Expected SHA-256 fingerprint; with it, nothing is asked.")
def edge_trust(config_file: str, source: str, fingerprint: str | None) -> None:
    """Show the certificate of the OPC UA server of a SOURCE, and trust it after a confirmation.

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
        confirm("trust it?", "nothing is trusted", option="--fingerprint")
    elif fingerprint.replace(":", "").upper() != found.replace(":", ""):
        raise Refused(f"the server's certificate has another fingerprint: {found}. Nothing is trusted")
    client.trust(security, certificate)
    click.echo(f"added to {security.trusted}")


def _source(sources: Mapping[str, Source], name: str) -> Source:
    found = sources.get(name)
    if found is None or (found.modbus is None and found.opcua is None):
        names = ", ".join(each for each, kind in sources.items() if kind.modbus or kind.opcua) or "there are none"
        raise Refused(f"there is no source {name} with values to read. Sources of that kind: {names}")
    return found


def _opcua(config_file: str, source: str) -> tuple[str, OpcuaSource]:
    config = load_edge(config_file)
    settings = _source(config.sources, source).opcua
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
