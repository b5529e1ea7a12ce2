"""``weft edge import``: bring the records of an earlier disk to the hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.commands.acts.file_acts import ordering
from weft.commands.common import ExistingPath, config_argument, json_option, load_edge
from weft.commands.node_log import NodeLog, readable
from weft.output import Failed, Refused, counted, print_json

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig


@click.command("import")
@config_argument
@click.argument("directory", metavar="[DIR]", type=ExistingPath(), required=False)
@click.option("--delete-done", is_flag=True, help="Delete the imported logs that the hubs have completely.")
@click.option(
    "--as-new",
    is_flag=True,
    help="Send the records that only DIR has, under new numbers: for a log that hubs refuse as an old copy.",
)
@json_option
def edge_import(config_file: str, directory: str | None, *, delete_done: bool, as_new: bool, as_json: bool) -> None:
    """Send the records in DIR, the earlier data_dir of the node of CONFIG, to the hubs.

    Use it when a node's disk is back after the node began an empty log on another one. The records reach the hubs under
    their former log and sequence numbers, so a hub does not store a record twice. DIR is moved into the node's
    data_dir, or copied when it is on another file system. The node may run; it delivers the log beside its own, and
    `weft edge status` shows the progress. --delete-done deletes a delivered folder.

    With --as-new, DIR is a data_dir that was restored from an older copy and that hubs refuse: they have other records
    under its numbers. The command copies the records received since then into a new log, each with the header
    weft.forked-from. They reach the hubs once, even if the command is repeated. DIR is not changed.

    \b
    weft edge import edge.yaml /mnt/old-disk/weft
    weft edge status edge.yaml
    weft edge import edge.yaml --delete-done
    """
    config = load_edge(config_file)
    if (directory is None) is not delete_done:
        raise Refused("give either DIR, the folder to import, or --delete-done")
    if as_new and delete_done:
        raise Refused("give either --as-new or --delete-done")
    if directory is None:
        _delete(config, as_json=as_json)
    else:
        _import(config, directory, as_new=as_new, as_json=as_json)


def _import(config: EdgeConfig, directory: str, *, as_new: bool, as_json: bool) -> None:
    from weft.edge_node.inspect.exclusive_log import NotTheOwner
    from weft.edge_node.inspect.importing import NotImportable, import_fork, import_log
    from weft.storage.segment_log import LogError

    try:
        with readable(NodeLog(directory, None)), ordering(config.data_dir, f"the log in {directory}"):
            found = import_fork(config, directory) if as_new else import_log(config, directory)
    except (NotImportable, NotTheOwner, LogError, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found._asdict())
        return
    streams = ", ".join(f"{name} ({counted(count, 'record')})" for name, count in found.records.items())
    click.echo(f"log {found.log_id}: {streams or 'no records'}")
    if found.left_out:
        click.echo(f"skipped, because newer records of them were sent to hubs: {', '.join(found.left_out)}")
    click.echo(f"{'copied' if found.is_copy else 'moved'} to {found.directory}")
    click.echo("the node sends the hubs the records that they lack; `weft edge status` shows the progress")


def _delete(config: EdgeConfig, *, as_json: bool) -> None:
    from weft.edge_node.inspect.exclusive_log import NotTheOwner
    from weft.edge_node.inspect.importing import delete_done

    try:
        with ordering(config.data_dir, "imported logs that are done"):
            deleted = delete_done(config)
    except (NotTheOwner, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(
            f"deleted {', '.join(deleted)}"
            if deleted
            else "no imported log is complete at the hubs: nothing was deleted"
        )
