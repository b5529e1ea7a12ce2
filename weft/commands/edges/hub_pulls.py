"""``weft hub pull`` and ``weft hub pulls``: windows of records that edges keep, brought to the hub."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

import click

from weft.commands.common import json_option
from weft.commands.messages import tenant_option
from weft.commands.node_log import parse_since
from weft.commands.running import any_hub_argument, hub_argument, running_hub
from weft.config.units import approximate_duration, approximate_size, parse_duration, parse_size
from weft.output import Failed, Refused, counted, harmless, print_json, print_table

LOOK_S = 1.0
SILENT_S_MAX = 60.0
"""Time for which a hub may give no answer while a command waits for a pull."""
OVER = ("done", "refused", "failed", "cancelled", "expired")
token_option = click.option(
    "--token-file", type=click.Path(dir_okay=False), help="File with a token of scope pull or admin."
)


@click.command()
@hub_argument
@click.argument("edge", required=False)
@click.argument("stream", required=False)
@click.option("--from", "since", help="Beginning of the window: 2026-11-25T10:00 (UTC), or -2h.")
@click.option("--to", "until", help="End of the window, likewise, or a time of the same day: 10:15.")
@click.option("--max", "size", default="1GiB", show_default=True, help="Size beyond which the edge refuses.")
@click.option("--expires", default="24h", show_default=True, help="Time after which the hub asks no more; 30d at most.")
@click.option("--wait", is_flag=True, help="Wait until all records have come, or none will.")
@click.option("--cancel", metavar="ID", help="Cancel pull ID instead. What has come stays.")
@tenant_option
@token_option
@json_option
def pull(
    hub: str, edge: str | None, stream: str | None, *, since: str | None, until: str | None, size: str,
    expires: str, wait: bool, cancel: str | None, tenant: str, token_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Ask EDGE for the records of STREAM that it received from --from on and before --to.

    For streams that no link carries: their records become those of the same stream at the hub, and rows of its table. A
    record comes once, however often it is asked for. They count for no completeness. The edge's configuration decides
    what a hub may ask for (`links.<name>.pull`); by default nothing. An edge that is not linked is asked when it links,
    within --expires.

    \b
    weft hub pull hub.yaml press-7 vibration --from 2026-11-25T10:00 --to 10:15 --wait
    weft hub pull hub.yaml --cancel 5f0c3a9b1d2e
    """
    running = running_hub(hub, token_file)
    query = urlencode({"tenant": tenant})
    if cancel is not None:
        if edge is not None:
            raise Refused("give either EDGE and STREAM, or --cancel ID")
        made = running.request(f"/v1/pulls/{quote(cancel, safe='')}?{query}", method="DELETE")
    else:
        if edge is None or stream is None or since is None or until is None:
            raise Refused("give EDGE, STREAM, --from and --to; or --cancel ID")
        first, end = window(since, until, time.time_ns())
        try:
            body: dict[str, Any] = {"bytes_max": parse_size(size), "expires_s": parse_duration(expires)}
        except ValueError as error:
            raise Refused(f"--max or --expires: {error}") from None
        body |= {"edge": edge, "stream": stream, "from": str(first), "to": str(end)}
        made = running.request(f"/v1/pulls?{query}", body)
    if wait:
        asked = f"/v1/pulls?{urlencode({'tenant': tenant, 'id': made['id']})}"
        made = until_over(made, lambda: running.request(asked)["pulls"][0])
    if as_json:
        print_json(made)
    else:
        click.echo(said(made))
    if made["state"] in ("refused", "failed", "expired"):
        raise Failed(f"pull {made['id']} has brought {counted(made['records_received'], 'record')}: see the reason")


@click.command()
@any_hub_argument
@click.option("--edge", help="Only those of one edge.")
@tenant_option
@token_option
@json_option
def pulls(hub: str | None, *, edge: str | None, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show the pulls of the running hub HUB, the latest first, those of the last week included.

    \b
    weft hub pulls hub.yaml --edge press-7
    """
    running = running_hub(hub, token_file)
    query = {"tenant": tenant} | ({} if edge is None else {"edge": edge})
    facts = running.request(f"/v1/pulls?{urlencode(query)}")
    if as_json:
        print_json(facts)
        return
    rows = [
        (
            each["id"], each["edge"], each["stream"], _short(each["from"]), _short(each["to"]), each["state"],
            f"{each['records_received']}/{each['records']}", approximate_size(each["bytes_received"]),
            "" if each["rest_seconds"] is None else approximate_duration(each["rest_seconds"]), _why(each),
        )
        for each in facts["pulls"]
    ]  # fmt: skip
    print_table(
        ("pull", "edge", "stream", "from", "to", "state", "records", "bytes", "rest", "why"),
        [[harmless(str(cell)) for cell in row] for row in rows],
    )
    if facts["more"]:
        click.echo(f"and {facts['more']} older ones")


def until_over(
    made: dict[str, Any], look: Callable[[], dict[str, Any]], sleep: Callable[[float], None] = time.sleep
) -> dict[str, Any]:  # fmt: skip
    """Return a pull that is over. A hub that restarts meanwhile does not end the wait.

    Raises:
        Failed: the hub does not answer for a minute.
    """
    silent_s = 0.0
    while made["state"] not in OVER:
        sleep(LOOK_S)
        try:
            made, silent_s = look(), 0.0
        except Failed:
            silent_s += LOOK_S
            if silent_s >= SILENT_S_MAX:
                raise
    return made


def window(since: str, until: str, now_ns: int) -> tuple[int, int]:
    """Return the window of ``--from`` and ``--to``, nanoseconds since 1970.

    Raises:
        Refused: one is no time.
    """
    first = parse_since("--from", since, now_ns)
    if len(until) in (5, 8) and until[2:3] == ":":
        until = f"{datetime.fromtimestamp(first // 10**9, UTC):%Y-%m-%d}T{until}"
    return first, parse_since("--to", until, now_ns)


def said(made: dict[str, Any]) -> str:
    """Return a pull for people."""
    text = f"pull {made['id']}: {made['state']}"
    if made["records"]:
        text += f", {made['records_received']} of {counted(made['records'], 'record')}"
        text += f", about {approximate_size(made['bytes'])} in all"
    why = _why(made)
    return harmless(f"{text}; {why}" if why else text)


def _why(made: dict[str, Any]) -> str:
    lost = [f"{each['first']}-{each['end'] - 1}" for each in made["lost"][:3]]
    more = f" and {len(made['lost']) - 3} more ranges" if len(made["lost"]) > 3 else ""
    told = f"the edge no longer had the records {', '.join(lost)}{more}" if lost else ""
    reason = made["reason"] or ""
    if made["state"] == "refused" and made["kept_from"]:
        reason += f"; its oldest record of the stream is of {_short(made['kept_from'])}"
    if made["state"] == "asked" and not made["linked_here"]:
        reason = reason or "waits until the edge links"
    return "; ".join(each for each in (reason, told) if each)


def _short(moment: str) -> str:
    return moment[:19].replace("T", " ")
