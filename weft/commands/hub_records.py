"""``weft hub tail`` and ``weft hub trace``: records of a stream at a running hub, and the way of one."""

from __future__ import annotations

import base64
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

import click
import msgspec

from weft.commands.common import ExistingPath, json_option
from weft.commands.running import hub_argument, running_hub
from weft.output import FAILURE_EXIT_CODE, STOPPED_EXIT_CODE, Failed, Refused, harmless, print_facts, print_json
from weft.text.record import shown, shown_payload

if TYPE_CHECKING:
    from collections.abc import Iterator

    from weft.cloud_hub.openapi.streams import RecordOfStream

NAME, PLACE = re.compile(r"([^/]+)/([0-9a-f]{16})/([0-9]{1,19})"), re.compile(r"([0-9]{1,9})/([0-9]{1,19})")
token_option = click.option(
    "--token-file", type=ExistingPath(dir_okay=False), help="File with a token of scope reader or admin."
)
tenant_option = click.option("--tenant", help="Tenant of the stream. Unset: the token's; without tokens, `default`.")


@click.command()
@hub_argument
@click.argument("stream")
@click.option("--edge", help="Only records of this edge.")
@click.option("--key", metavar="FILTER", help="Only keys that match an MQTT filter: plant/+/m1/#.")
@click.option("--position", help="Go on here: the position that an earlier tail ended with, or 0:0 for all of shard 0.")
@click.option("--count", type=click.IntRange(1), help="End after this many records.")
@tenant_option
@token_option
@json_option
def tail(
    hub: str, stream: str, *, edge: str | None, key: str | None, position: str | None, count: int | None,
    tenant: str | None, token_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Show new records of STREAM at the running hub HUB, one per line, until Ctrl-C: edge, time, number, key, payload.

    Each record comes once, also when hub processes restart meanwhile. The position behind the last one is printed at
    the end: with it a later tail goes on and misses nothing.

    \b
    weft hub tail https://hub.example.com telemetry --token-file reader.token
    weft hub tail plant telemetry --key 'plant/press/#' --json
    """
    running = running_hub(hub, token_file)
    reached, left = position, count
    try:
        with _told():
            events = running.client().tail(stream, position=position, tenant=tenant, edge=edge, key=key)
            for event in events:
                for record in event.records[:left]:
                    text = msgspec.json.encode(record).decode() if as_json else _line(record)
                    sys.stdout.write(harmless(text) + "\n")
                sys.stdout.flush()
                if left is not None and (left := left - len(event.records)) <= 0:
                    return  # no position: the event may have had more records
                reached = event.position
    except KeyboardInterrupt:
        sys.stdout.flush()
        if reached is not None:
            click.echo(f"\n-- to go on behind the last record: --position {reached}", err=True)
        raise SystemExit(STOPPED_EXIT_CODE) from None  # Ctrl-C is its ordinary end


@contextmanager
def _told() -> Iterator[None]:
    """Turn the end of a tail into a sentence."""
    from weft.client import HubRefusal

    try:
        yield
    except HubRefusal as refusal:
        raise Failed(f"the hub answered {refusal}") from None
    except BrokenPipeError:
        raise  # of the reader of our output
    except (OSError, ValueError) as error:  # a token's file without a token
        raise Failed(str(error)) from None


def _line(record: RecordOfStream) -> str:
    payload = (
        record.payload.encode() if isinstance(record.payload, str)
        else base64.b64decode(record.payload_base64) if isinstance(record.payload_base64, str) else b""
    )  # fmt: skip
    parts = [record.edge, record.time, str(record.seq), shown(record.key), shown_payload(payload)]
    if isinstance(record.headers, list):
        parts.append("{" + ", ".join(f"{shown(name)}: {shown(str(value))}" for name, value in record.headers) + "}")
    if isinstance(record.origin, str):
        parts.append(f"<{shown(record.origin)}>")
    return " ".join(parts)


@click.command()
@hub_argument
@click.argument("stream")
@click.argument("record", metavar="EDGE/LOG/SEQ|SHARD/OFFSET")
@tenant_option
@token_option
@json_option
def trace(
    hub: str, stream: str, record: str, *, tenant: str | None, token_file: str | None, as_json: bool
) -> int:  # fmt: skip
    """Show the way of one record of STREAM: edge and number, function, chunk of the log, file and row of the table.

    The record is named as columns of tables name it: by _edge, _log and _seq, or by _shard and _offset of its row. Exit
    status 1 if it is not here. `weft trace` reads a store instead, and follows what pipelines made.

    \b
    weft hub trace plant telemetry press-7/00c0ffee00c0ffee/1042
    weft hub trace hub.yaml telemetry 3/120845
    """
    if (name := NAME.fullmatch(record)) is not None:
        asked: dict[str, Any] = dict(zip(("edge", "log", "seq"), name.groups(), strict=True))
    elif (place := PLACE.fullmatch(record)) is not None:
        asked = dict(zip(("shard", "offset"), place.groups(), strict=True))
    else:
        raise Refused(f"{record!r} names no record: expected EDGE/LOG/SEQ (LOG has 16 digits), or SHARD/OFFSET")
    asked |= {} if tenant is None else {"tenant": tenant}
    running, path = running_hub(hub, token_file), f"/v1/streams/{quote(stream, safe='')}/trace"
    found = running.get(f"{path}?{urlencode(asked)}")
    while found["record"] is None and (found["next_chunk"] is not None or found["next_shard"] is not None):
        begun = asked | ({} if found["next_chunk"] is None else {"chunk": found["next_chunk"]})
        if found["next_shard"] is not None:
            begun["shard" if "offset" in asked else "from_shard"] = found["next_shard"]
        found = running.get(f"{path}?{urlencode(begun)}")
    if as_json:
        print_json(found)
    else:
        _show(found)
    return 0 if found["record"] is not None else FAILURE_EXIT_CODE


_STANDING = {
    "here": "here", "gone": "it was here, and log and table have it no more", "to_come": "it has still to come",
    "never_comes": "it never comes", "unknown": "the hub does not know it",
}  # fmt: skip


def _show(found: dict[str, Any]) -> None:
    record, gap = found["record"], found.get("gap")
    why = "" if gap is None else f": {gap['reason']}, with numbers {gap['first']} to {gap['end'] - 1}"
    facts = {"record": _STANDING.get(found["standing"], found["standing"]) + why}
    if record is not None:
        facts |= {
            "edge": f"{record['edge']}, log {record['log']}, number {record['seq']}",
            "taken in": f"{record['time']} at the edge, {record['received']} at the hub",
            "key": shown(record["key"]),
            "made by": shown(record.get("origin", "")) or "a device",
        }
        of = [shown(str(value)) for name, value in record.get("headers", ()) if name == "weft.source"]
        if of:
            facts["made of"] = "; ".join(of)
        facts["place"] = f"offset {record['offset']} of shard {record['shard']}"
    chunk, row = found["chunk"], found["row"]
    facts["chunk"] = "the log has it no more" if chunk is None else chunk["key"]
    facts["row"] = "none yet, or none any more" if row is None else f"{row['number']} of {row['file']}"
    print_facts(facts)
