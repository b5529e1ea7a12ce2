"""``weft hub erase`` and ``weft hub erasures``: rows that must be nowhere any more, and the proof that they are not."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING

import click

from weft.commands.common import config_argument, confirm, json_option, load_hub, user_name, yes_option
from weft.commands.on_store.opening import acting, by_option, on_store, reason_option
from weft.commands.on_store.stream import BY_MAX, REASON_MAX, key_of
from weft.output import FAILURE_EXIT_CODE, Failed, Refused, counted, harmless, print_json
from weft.storage.object_store import ObjectStore

if TYPE_CHECKING:
    from weft.cloud_hub.tables.erasing import ErasedRows
    from weft.cloud_hub.tables.erasures import ErasureState


@click.command("erase")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--key", help="Rows with this _key, the topic as a rule.")
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="NAME=VALUE",
    help="Rows with this value of a column or topic level, or of a field of JSON payloads (`payload.person.id=4711`). "
    "With several, all must be met.",
)
@click.option("--by", help="Name of the person who decided; the user of this process by default.")
@click.option("--reason", required=True, help="Why, in a few words, without personal data; recorded for good.")
@yes_option
def erase(
    config_file: str,
    stream: str,
    *,
    key: str | None,
    conditions: tuple[str, ...],
    by: str | None,
    reason: str,
    yes: bool,
) -> None:
    """Erase rows of STREAM at the hub of CONFIG, so that no engine, no reader and no file has them.

    The table of all rows and the latest table are written again without the rows that are there now. The log and files
    of replaced versions keep them for a grace: `retain_log`, and `tables.vacuum_after`. `weft hub erasures` shows what
    is left, and proves the end. Records that come later, edges' own logs, other streams and backups are not covered.

    \b
    weft hub erase hub.yaml visits --where payload.person.id=4711 --reason "case 12"
    """
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.tables.choice import Choice
    from weft.cloud_hub.tables.erasing import Author, Eraser
    from weft.protocols.errors import CodecError
    from weft.storage.chunk_log import CollectedPast, open_cluster
    from weft.storage.object_store import NotFound, StoreUnfit
    from weft.storage.table.errors import TableError

    name, by = key_of(stream), by or user_name()
    for option, text, most in (("--by", by, BY_MAX), ("--reason", reason, REASON_MAX)):
        if len(text) > most:
            raise Refused(f"{option}: {len(text)} characters are too many, at most {most}")
    try:
        choice = Choice(_conditions(key, conditions))
    except ValueError as error:
        raise Refused(f"--where: {error}") from None
    if load_hub(config_file).retain_log_s is None:
        raise Failed(
            "the hub keeps its log for good, and with it the records. Set `retain_log`, such as `retain_log: 30d`, "
            "restart the hub, and run the command again"
        )

    async def work(store: ObjectStore) -> ErasedRows:
        clock = await sound_clock(store)
        eraser = Eraser(
            store, await open_cluster(store, None), name,
            clock=clock, monotonic=time.monotonic, nonce=lambda: secrets.token_hex(8),
        )  # fmt: skip
        return await eraser.erase(choice, Author(by, reason, clock()))

    if not yes:
        confirm(f"erase rows of {'/'.join(name)} ({choice.text})? There is no way back", "nothing was erased")
    try:
        # Without the rows' names: a line is kept for good, and they may be personal data.
        done = acting(config_file, f"rows of {'/'.join(name)}", work, by, reason)
    except (TableError, StoreUnfit, NotFound, CodecError, CollectedPast) as error:
        raise Failed(str(error)) from None
    if not done.rows and not done.latest and not done.recorded:
        raise Failed(f"the tables of {'/'.join(name)} have no such rows")
    click.echo(
        f"erased {counted(done.rows, 'row')} of the table of {'/'.join(name)}, and {done.latest} of its latest table"
    )
    click.echo("The log and replaced files keep them for a grace: `weft hub erasures` shows what is left")


@click.command("erasures")
@config_argument
@click.argument("stream", metavar="[TENANT/]STREAM")
@click.option("--tidy", is_flag=True, help="Delete replaced files and old entries of the tables now, if old enough.")
@reason_option
@by_option
@json_option
def erasures(config_file: str, stream: str, *, tidy: bool, reason: str, by: str | None, as_json: bool) -> int:
    """Show the erasures of STREAM at the hub of CONFIG, and what of each is still somewhere. Status 1 if something is.

    Hubs delete by themselves what is old enough. With --tidy, the command does it for the tables of STREAM: a table
    without new rows writes no checkpoint, and keeps entries of its log. Chunks of the log are left to the hub.
    """
    from weft.cloud_hub.api.views import moment
    from weft.cloud_hub.clock import sound_clock
    from weft.cloud_hub.tables import erasures as states
    from weft.storage.chunk_log import open_cluster
    from weft.storage.object_store import StoreUnfit
    from weft.storage.table.errors import TableError

    name = key_of(stream)

    async def work(store: ObjectStore) -> list[ErasureState]:
        if tidy:
            clock = await sound_clock(store)
            await states.tidy(store, await open_cluster(store, None), name, clock())
        return await states.erasures(store, name)

    try:
        if tidy:
            found = acting(config_file, f"replaced files of {'/'.join(name)}", work, by, reason)
        else:
            found = on_store(config_file, work)
    except (TableError, StoreUnfit) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found)
    for each in found if not as_json else ():
        rows = f"{counted(each.count, 'row')} ({harmless(each.rows)})"
        click.echo(f"{moment(each.time)} {rows} by {harmless(each.by)}: {harmless(each.reason)}")
        for wait in each.waits or ("nothing is left of them",):
            click.echo(f"  {harmless(wait)}")
    if not found and not as_json:
        click.echo(f"nothing was erased of {'/'.join(name)}")
    return FAILURE_EXIT_CODE if any(each.waits for each in found) else 0


def _conditions(key: str | None, told: tuple[str, ...]) -> list[tuple[str, str]]:
    found = [] if key is None else [("_key", key)]
    for each in told:
        name, equals, value = each.partition("=")
        if not equals:
            raise Refused(f"--where: expected NAME=VALUE, got {each!r}")
        found.append((name.strip(), value))
    if not found:
        raise Refused("name the rows: --key or --where")
    return found
