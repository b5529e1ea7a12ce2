"""``weft spark move``: a query goes on in another region's store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from weft.commands.common import json_option
from weft.output import Failed, Refused, counted, print_json

if TYPE_CHECKING:
    from spark_sinks.source.moving import MovedPosition


@click.command("move")
@click.argument("checkpoint")
@click.option("--from", "origin", metavar="URI", required=True, help="Store of the region that the query has read.")
@click.option("--to", "target", metavar="URI", required=True, help="Store of the region in which it goes on.")
@click.option("--stream", help="The stream that the query reads; not needed for a query of several.")
@click.option("--tenant", default="default", show_default=True, help="Tenant of the stream.")
@json_option
def spark_move(checkpoint: str, *, origin: str, target: str, stream: str | None, tenant: str, as_json: bool) -> int:
    """Let the stopped query of CHECKPOINT go on in the store of another region, with each record once.

    CHECKPOINT is the query's `checkpointLocation`, a folder or a bucket's URI. Its position is translated by the
    numbers that records have in all regions. The query then begins at the first record of the other log that it has not
    read. It leaves out those that it has read, also where they arrive there later. Its state stays, such as that of
    aggregates.

    Both stores must answer, and the first one must still have what the query has not read. Then start the query with
    the other store, and its sink with another name. Windows (`complete_windows`) begin with a new checkpoint instead.
    """
    from spark_sinks.errors import ReadError
    from spark_sinks.source.several import STREAMS, positions
    from spark_sinks.source.spark_checkpoint import SparkCheckpoint
    from weft.protocols.lane import NAME_RULE, valid_name
    from weft.storage.object_store import StoreError

    for name in [tenant] if stream is None else [tenant, stream]:
        if not valid_name(name):
            raise Refused(f"{name!r} cannot be a name: {NAME_RULE}")
    try:
        found = SparkCheckpoint(checkpoint)
        position = found.position
        is_of_several = isinstance(position, dict) and STREAMS in position
        if is_of_several == (stream is not None):
            raise Refused("--stream is for a query of one stream" if is_of_several else "name the stream with --stream")
        given = positions(position) if stream is None else {stream: position}
        moved = {name: _moved(each, (origin, target), tenant, name) for name, each in given.items()}
        if stream is None:
            found.replace({STREAMS: {name: each.position for name, each in moved.items()}})
        else:
            found.replace(moved[stream].position)
    except (ReadError, StoreError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"streams": {name: each._asdict() for name, each in moved.items()}})
    else:
        _show(moved, target)
    return 0


def _moved(position: Any, stores: tuple[str, str], tenant: str, stream: str) -> MovedPosition:
    from spark_sinks.source.moving import moved_position
    from spark_sinks.source.options import parse_options, source_options

    origin, target = (parse_options(source_options(stream, tenant, store)) for store in stores)
    return moved_position(position, origin, target)


def _show(moved: dict[str, MovedPosition], target: str) -> None:
    for stream, each in moved.items():
        click.echo(
            f"{stream}: {counted(each.read, 'record')} read. {target} has {counted(each.unread, 'record')} that the "
            f"query has not read, and lacks {each.coming} that it has; these are left out when they arrive"
        )
    click.echo(f"start the query with the store {target}, and its sink with another name")
