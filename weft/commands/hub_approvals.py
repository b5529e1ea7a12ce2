"""``weft hub second-person``, ``requests`` and ``approve``: acts without a way back that one person cannot do alone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import click

from weft.cloud_hub.facts.approvals import (
    VALID_S_MAX,
    VALID_S_MIN,
    Approval,
    SecondPersonDocument,
    change_setting,
    forget,
    options_of,
    requests_of,
    setting_of,
    withdraw,
)
from weft.cloud_hub.facts.approvals import approve as declare_approve
from weft.cloud_hub.facts.fact import CannotDeclare
from weft.commands.common import config_argument, json_option
from weft.commands.hub_access import FactChange, changing, decision_options, load_facts, on_store, read_facts
from weft.config.units import approximate_duration, parse_duration_ns
from weft.hub_api.answers import moment
from weft.output import Failed, Refused, harmless, print_json, print_table
from weft.protocols.errors import CodecError
from weft.storage.cluster_log import ChangeRefused, Contended
from weft.storage.object_store import ObjectStore

OFF = "off"
_SECOND = 10**9


@click.command("second-person")
@config_argument
@click.option(
    "--require",
    type=click.Choice(["names", OFF]),
    help="`names`: a person with another name, as another user, approves. `off`: one person does all.",
)
@click.option("--valid", metavar="DURATION", default="24h", show_default=True, help="Time until a request ends.")
@decision_options
def second_person(config_file: str, *, require: str | None, valid: str, reason: str, by: str | None) -> None:
    """Require a second person at the hub of CONFIG for irreversible acts, whether nodes run or not.

    These are `erase`, `skip`, `retire`, `declare-deletion`, `stream delete`, `finalize` and `clock --set-back`. Such a
    command then only makes a request. After another person has approved it (`weft hub approve`), the same command
    carries it out, once. A change of this setting needs a second person, too. Without --require, the command shows it.

    \b
    weft hub second-person hub.yaml --require names --reason "audit of 2026"
    """
    if require is None:
        _show_setting(config_file)
        return
    try:
        valid_s = parse_duration_ns(valid) // _SECOND
    except ValueError as error:
        raise Refused(f"--valid: {error}") from None
    if not VALID_S_MIN <= valid_s <= VALID_S_MAX:
        raise Refused(f"--valid: expected 1m to 30d, got {valid}")
    wanted = None if require == OFF else SecondPersonDocument(require, valid_s)  # type: ignore[arg-type]
    target = f"second person: {require}" + ("" if wanted is None else f", requests valid for {valid}")
    _change(_set(changing(config_file, by, reason, target), wanted))
    click.echo(
        "one person does all acts alone" if wanted is None else "irreversible acts need the approval of another person"
    )


def _show_setting(config_file: str) -> None:
    try:
        setting = setting_of(read_facts(config_file))
    except CannotDeclare as error:
        raise Failed(str(error)) from None
    if setting is None:
        click.echo("one person does all acts alone")
    else:
        click.echo(
            f"irreversible acts need the approval of another person, within {approximate_duration(setting.valid_s)}"
        )


async def _waiting(store: ObjectStore) -> list[dict[str, Any]]:
    found = []
    for name, request in requests_of(await load_facts(store)).items():
        kept = await options_of(store, name)
        found.append(
            {
                "id": name,
                "command": request.command,
                "target": request.target,
                "options": None if kept is None else kept.options,
                "by": request.by,
                "origin": request.origin,
                "reason": request.reason,
                "until": moment(request.expires),
                "approved_by": [each.by for each in request.approvals],
            }
        )
    return found


@click.command("requests")
@config_argument
@json_option
def requests(config_file: str, *, as_json: bool) -> None:
    """Show the acts at the hub of CONFIG that wait for approval, with all their options.

    The options may name a person. They are deleted when the request is over.
    """
    try:
        found = on_store(config_file, _waiting)
    except CodecError as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found)
        return
    rows = [
        (
            each["id"],
            f"{each['command']}: {each['target']}",
            _shown(each["options"]),
            each["by"],
            each["origin"],
            each["reason"],
            (each["until"] or "")[:19].replace("T", " "),
            ", ".join(each["approved_by"]),
        )
        for each in found
    ]
    titles = ("id", "act", "options", "by", "from", "why", "until", "approved by")
    print_table(titles, [[harmless(str(cell)) for cell in row] for row in rows])


def _shown(options: dict[str, Any] | None) -> str:
    if options is None:
        return "missing: ask again"
    return " ".join(
        f"{name}={value}" for name, value in options.items() if name != "reason" and value not in (False, [])
    )


@click.command("approve")
@config_argument
@click.argument("request", metavar="ID")
@click.option("--refuse", is_flag=True, help="Withdraw the request instead.")
@decision_options
def approve(config_file: str, request: str, *, refuse: bool, reason: str, by: str | None) -> None:
    """Approve request ID at the hub of CONFIG. `weft hub requests` shows it.

    The approver must differ from the requester in both name and user. Nothing is done yet: the requester runs the same
    command again, with the same options, which carries it out once.

    \b
    weft hub approve hub.yaml 5f0c2d9a41b7e836 --by mara
    """
    if refuse:
        why = f"refused: {reason}" if reason else "refused"
        _change(_refuse(changing(config_file, by, why), request))
        click.echo(f"refused {request}")
        return

    _change(_approve(changing(config_file, by, reason), request))
    click.echo(f"approved {request}: the same command does it now, once")


async def _set(change: FactChange, wanted: SecondPersonDocument | None) -> None:
    async with change as (_, log, author):
        await log.append(change_setting(wanted), author)


async def _approve(change: FactChange, request: str) -> None:
    async with change as (_, log, author):
        await log.append(declare_approve(request, Approval(author.by, author.origin, author.at)), author)


async def _refuse(change: FactChange, request: str) -> None:
    async with change as (store, log, author):
        await log.append(withdraw(request), author)
        await forget(store, request)


def _change(work: Coroutine[Any, Any, None]) -> None:
    """Do a change of facts, and report its errors."""
    try:
        asyncio.run(work)
    except (CannotDeclare, ChangeRefused, Contended, CodecError) as error:
        raise Failed(str(error)) from None
