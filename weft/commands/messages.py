"""``weft hub publish`` and ``weft hub messages``: messages from a hub to its edges."""

from __future__ import annotations

import base64
import secrets
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import click

from weft.commands.common import json_option
from weft.commands.running import RunningHub, hub_argument, running_hub
from weft.config.units import parse_duration
from weft.output import Failed, Refused, counted, harmless, print_json, print_table

PAYLOAD_BYTES_MAX = 256 << 10
HOPS_MAX = 4
"""Maximum number of processes that are asked in turn for one edge: shards may move meanwhile."""

token_option = click.option(
    "--token-file", type=click.Path(dir_okay=False), help="File with a token of scope publish or admin."
)
tenant_option = click.option("--tenant", default="default", show_default=True, help="Tenant of the edges.")


@click.command()
@hub_argument
@click.argument("words", nargs=-1, required=True, metavar="[EDGE[,EDGE...]] TOPIC [PAYLOAD]")
@click.option("--group", default="", help="Publish at all edges of this group, and name none.")
@click.option("--expires", default="1h", show_default=True, help="Time after which no edge publishes it; 7d at most.")
@click.option("--qos", type=click.IntRange(0, 1), default=1, show_default=True, help="QoS of the edge's publish.")
@click.option("--key", default="", help="Idempotency key: repeating the command with it publishes nothing again.")
@tenant_option
@token_option
@json_option
def publish(
    hub: str, words: tuple[str, ...], *, group: str, expires: str, qos: int, key: str, tenant: str,
    token_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    """Publish PAYLOAD to TOPIC at edges of the running hub HUB; `-` reads the payload from standard input.

    The command ends when the message is durable at the hub. An edge that is not linked gets it when it links, within
    --expires. Clients of the edge get it as any other message. The edge's configuration decides which topics a hub may
    publish to (`links.<name>.down`); by default none.

    \b
    weft hub publish hub.yaml press-7 down/recipe '{"speed": 3}' --expires 10m
    weft hub publish hub.yaml --group presses down/recipe '{"speed": 3}'
    """
    edges, topic, payload = _named(words, group)
    data = sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1) if payload == "-" else payload.encode(errors="surrogateescape")
    if len(data) > PAYLOAD_BYTES_MAX:
        raise Refused(f"the payload has more than {PAYLOAD_BYTES_MAX} bytes: publish a shorter one")
    try:
        expires_s = parse_duration(expires)
    except ValueError as error:
        raise Refused(f"--expires: {error}") from None
    running = running_hub(hub, token_file)
    body = {
        "topic": topic, "payload_base64": base64.b64encode(data).decode(), "expires_s": expires_s, "qos": qos,
    }  # fmt: skip
    sending = _Sending(running, tenant, body, key or (secrets.token_hex(8) if group else ""))
    began = time.monotonic()
    try:
        for made in sending.to_group(group) if group else [sending.to(running, {"edges": edges})]:
            for each in [] if as_json else made:
                if "error" not in each:
                    click.echo(f"{each['edge']}: message {each['number']} is stored, until {each['expires']}")
    except Failed as failure:
        if not group:
            raise
        stored = counted(sum("error" not in each for each in sending.made), "message")
        advice = f"to go on, and publish none of them again, add `--key {sending.key}`"
        raise Failed(f"{failure}. {stored} stored before; {advice}") from None
    if as_json:
        print_json({"messages": sending.made})
    elif group:
        click.echo(f"group {group}: {counted(len(sending.made), 'edge')} in {time.monotonic() - began:.1f} s")
    _tell_failures(sending)


def _named(words: tuple[str, ...], group: str) -> tuple[list[str], str, str]:
    """Return edges, topic and payload."""
    edges = [] if group else [edge for edge in words[0].split(",") if edge]
    topic, *more = words if group else words[1:] or ("",)
    if not topic or len(more) > 1:
        form = "--group GROUP TOPIC [PAYLOAD]" if group else "EDGE[,EDGE...] TOPIC [PAYLOAD]"
        raise click.UsageError(f"expected {form}, got {counted(len(words), 'word')}; quote a payload with spaces")
    return edges, topic, more[0] if more else ""


class _Sending:
    """A message to edges, and what became of it so far."""

    def __init__(self, hub: RunningHub, tenant: str, body: dict[str, Any], key: str) -> None:
        self._hub, self._body, self.key = hub, body, key
        self._path = f"/v1/messages?{urlencode({'tenant': tenant})}"
        self.made: list[dict[str, Any]] = []
        """An entry for each edge."""
        self.missing: dict[int, str] = {}
        """Shards whose edges are not known at present, each with the reason."""

    def to_group(self, group: str) -> Iterator[list[dict[str, Any]]]:
        """Publish to a group page by page; yield the entries of each."""
        after: str | None = ""
        while after is not None:
            yield self.to(self._hub, {"group": group, "after": after})
            before, after = after, self._next_after
            if after is not None and after <= before:
                raise Failed(f"the hub answered page {after!r} of the group after {before!r}: report this")

    def to(self, hub: RunningHub, whom: dict[str, Any]) -> list[dict[str, Any]]:
        """Publish to edges, at the processes that own their shards; return the entries."""
        made, left = list[dict[str, Any]](), {hub.url: whom}
        for hop in range(HOPS_MAX):
            asked, left = left, {}
            for where, of in asked.items():
                sent = {**self._body, **of, "redirect": hop < HOPS_MAX - 1}
                answer = hub.at(where).request(self._path, sent, self.key)
                if "group" in of:
                    self._next_after = answer["next_after"]
                    self.missing |= {each["shard"]: each["trouble"] for each in answer.get("missing_shards", ())}
                for each in answer["messages"]:
                    if "url" in each:
                        left.setdefault(each["url"].rstrip("/"), {"edges": []})["edges"].append(each["edge"])
                    else:
                        made.append(each)
                        self.made.append(each)
        return made


def _tell_failures(sending: _Sending) -> None:
    """Raise ``Failed`` if a message was not stored, or may be missing."""
    failed = [each for each in sending.made if "error" in each]
    told = [f"{each['edge']}: {each['error']}. {each['advice']}" for each in failed[:3]]
    if len(failed) > len(told):
        told.append(f"and {len(failed) - len(told)} more; `--json` has all of them")
    if failed:
        raise Failed(f"{counted(len(failed), 'message')} not stored: {'; '.join(told)}")
    if sending.missing:
        shard, why = next(iter(sending.missing.items()))
        raise Failed(
            f"shard {shard} is not loaded ({harmless(why)}), so edges of the group may have been left out. Try again "
            f"with `--key {sending.key}`, which publishes nothing twice"
        )


@click.command()
@hub_argument
@click.argument("edge")
@tenant_option
@token_option
@json_option
def messages(hub: str, edge: str, *, tenant: str, token_file: str | None, as_json: bool) -> None:
    """Show the messages to EDGE of the running hub HUB: those that wait, and what became of others.

    A hub process remembers outcomes since it took over the edge, 20,000 of each shard at most. The stream `weft-down`,
    and its table, have all of them.
    """
    running = running_hub(hub, token_file)
    for _ in range(HOPS_MAX):
        facts = running.request(f"/v1/messages?{urlencode({'tenant': tenant, 'edge': edge, 'redirect': 1})}")
        if "url" not in facts:
            break
        running = running.at(facts["url"])
    else:
        raise Failed("the hub's processes are dividing the shards: try again in some seconds")
    if as_json:
        print_json(facts)
        return
    rows = [
        (each["number"], each["topic"], "waiting", each["accepted"], "expired" if each["expired"] else "")
        for each in facts["waiting"]
    ]
    rows += [
        (each["number"], each["topic"], each["outcome"], each["accepted"], each["reason"] or "")
        for each in facts["outcomes"]
    ]
    print_table(
        ("message", "topic", "state", "accepted", "why"), [[harmless(str(cell)) for cell in row] for row in rows]
    )
    if facts["trouble"]:
        click.echo(f"the edge says: {harmless(facts['trouble'])}")
