"""``weft hub stream``: work on the streams of a hub's store, whether nodes run or not."""

from __future__ import annotations

import json
import random
from functools import partial
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, confirm, load_hub, user_name, yes_option
from weft.commands.hub_settings import longest_round_s
from weft.commands.on_store.declaring import declare, read_facts
from weft.commands.on_store.opening import acting, by_option, on_store, reason_option
from weft.output import Failed, Refused, counted
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.stream_deletion import Deleted

BY_MAX, REASON_MAX = 128, 512
"""Maximum numbers of characters."""


def key_of(stream: str) -> tuple[str, str]:
    """Return tenant and name of ``[TENANT/]STREAM``."""
    tenant, slash, name = stream.rpartition("/")
    return (tenant if slash else "default", name)


@click.group("stream")
def hub_stream_group() -> None:
    """Work on the streams of a hub's store, whether nodes run or not. `weft streams` lists them."""


@hub_stream_group.command()
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--reason", required=True, help="Why, in a few words; recorded with the stream.")
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--force", is_flag=True, help="Do it though an edge was seen less than 10 minutes ago.")
@yes_option
def delete(config_file: str, stream: str, *, reason: str, by: str | None, force: bool, yes: bool) -> None:
    """Delete STREAM at the hub of CONFIG; its table stays, and a later stream of the same name goes on in it.

    So take another name for a stream of another meaning. The command prints the offsets at which rows of a later stream
    begin, as `starting` of a read takes them. Rows below are those of the deleted one.

    The stream leaves lists, status, metrics and completeness, with its topic levels, lanes and open gaps. Its Delta
    table stays, with all its rows, and so does the log until its retention. The next offset remains: when an edge sends
    to the stream again, the stream is back and goes on there, in the same table. No record is stored twice.

    Take the stream out of the edges' configurations first. The command refuses a stream that an edge was seen with less
    than 10 minutes ago, or whose table lacks records. With --force it takes a stream that edges send to, and waits for
    the next round of the tables. It needs level 2 (`weft hub finalize`).

    \b
    weft hub stream delete hub.yaml plant-7/vibration-test --reason "trial is over"
    """
    from weft.cloud_hub import stream_deletion
    from weft.cloud_hub.clock import sound_clock
    from weft.protocols.errors import CodecError
    from weft.storage.chunk_log import open_cluster

    key = key_of(stream)
    by = by or user_name()
    for option, text, most in (("--by", by, BY_MAX), ("--reason", reason, REASON_MAX)):
        if len(text) > most:
            raise Failed(f"{option}: {len(text)} characters are too many, at most {most}")
    config = load_hub(config_file)
    wanted = stream_deletion.Deletion(key, by, reason, config.tables is not None, force)
    patience = stream_deletion.Patience(longest_round_s(config), partial(click.echo, err=True)) if force else None

    async def work(store: ObjectStore) -> Deleted:
        return await stream_deletion.delete(
            store, await open_cluster(store, None), wanted,
            wall_clock=await sound_clock(store), random_bits=random.SystemRandom().getrandbits, patience=patience,
        )  # fmt: skip

    if not yes:
        confirm(f"delete stream {key[1]} of tenant {key[0]}? Its table stays", "nothing was deleted")
    try:
        done = acting(config_file, f"stream {'/'.join(key)}", work, by, reason)
    except (stream_deletion.CannotDelete, CodecError) as error:
        raise Failed(str(error)) from None
    later = f"Rows of a later stream begin at {json.dumps({str(at): end for at, end in sorted(done.ends.items())})}"
    if not done.shards:
        click.echo(f"stream {key[1]} of tenant {key[0]} is deleted already. {later}")
        return
    click.echo(
        f"deleted stream {key[1]} of tenant {key[0]}, with {counted(done.lanes, 'lane')} and "
        f"{counted(done.records, 'record')}; its table stays, and a later stream of this name goes on in it: {reason}"
    )
    click.echo(f"Take another name for a stream of another meaning. {later}, as `starting` of a read")
    click.echo("The log keeps the records until its retention")


async def _has_table(key: tuple[str, str], store: ObjectStore) -> bool:
    from weft.storage.hub_keys import table_key

    return bool(await store.list(table_key(*key), limit=1))


@hub_stream_group.command("expect")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.argument("edges", nargs=-1)
@click.option("--withdraw", is_flag=True, help="Declare nothing any more: configurations count again.")
@reason_option
@by_option
def expect(
    config_file: str, stream: str, edges: tuple[str, ...], *, withdraw: bool, reason: str, by: str | None
) -> None:
    """Declare the EDGES without which STREAM is not complete, for all hubs of the store of CONFIG.

    They are names, or patterns in which `*` stands for any characters, and take the place of those declared before.
    What is declared here wins over `expected_edges` of configurations, in which hosts may differ. Running hubs know it
    two seconds later. Without EDGES, the command shows what is declared.

    \b
    weft hub stream expect hub.yaml acme/telemetry 'press-*' welder-1
    """
    from weft.cloud_hub.declared import changes
    from weft.cloud_hub.declared.documents import STREAM, StreamDocument, UnreadableDocument, decode, stream_name

    key = key_of(stream)
    if withdraw and edges:
        raise Refused("--withdraw takes no EDGES")
    if withdraw or edges:
        declare(config_file, lambda _: changes.expect_edges(key, None if withdraw else edges), by, reason)
        click.echo(f"withdrew the edges of {'/'.join(key)}" if withdraw else f"declared the edges of {'/'.join(key)}")
        if edges and load_hub(config_file).tables is not None and not on_store(config_file, partial(_has_table, key)):
            name = "/".join(key)
            click.echo(f"warning: there is no table of {name} yet: is the name right? `weft streams` lists those "
                       "that are there", err=True)  # fmt: skip
        return
    fact = read_facts(config_file).facts(STREAM).get(stream_name(key))
    try:
        found = None if fact is None else decode(fact.document, StreamDocument).expected_edges
    except UnreadableDocument as error:
        raise Failed(f"this release cannot read what is declared of {'/'.join(key)}: {error}") from None
    if found is None:
        raise Failed(f"the cluster log declares no edges of {'/'.join(key)}: `expected_edges` of configurations count")
    for edge in found:
        click.echo(edge)
