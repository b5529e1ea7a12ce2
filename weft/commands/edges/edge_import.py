"""``weft edge import``: bring the records of an earlier disk to the hubs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from weft.commands.common import ExistingPath, config_argument, json_option, load_edge
from weft.commands.node_log import NodeLog, readable
from weft.output import Failed, Refused, counted, print_json

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig


@click.command("import")
@config_argument
@click.argument("directory", metavar="[DIR]", type=ExistingPath(), required=False)
@click.option("--delete-done", is_flag=True, help="Delete the imported logs of which the hubs have everything.")
@click.option(
    "--as-new",
    is_flag=True,
    help="Bring the records that only DIR has under new numbers: for a log that hubs refuse as an old copy.",
)
@json_option
def command(config_file: str, directory: str | None, *, delete_done: bool, as_new: bool, as_json: bool) -> None:
    """Bring the records in DIR, the data_dir that the node of CONFIG had before, to the hubs.

    For a node that began an empty log because its disk was gone, once the disk is back. The records reach the hubs
    under their former log and sequence numbers: those that a hub has are not stored again. DIR is moved into the node's
    data_dir, or copied when it is on another file system. The node may run; it delivers the log beside its own, and
    `weft edge status` shows what is left. A folder that is done can be deleted with --delete-done.

    With --as-new, DIR is a data_dir that was restored from an older copy and that hubs refuse: they have other records
    under its numbers. The records that it took since are copied into a log of their own, each with the header
    weft.forked-from. They reach the hubs once, however often the command is given. DIR stays as it is.

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
        with readable(NodeLog(directory, None)):
            found = import_fork(config, directory) if as_new else import_log(config, directory)
    except (NotImportable, NotTheOwner, LogError, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json(found._asdict())
        return
    streams = ", ".join(f"{name} ({counted(count, 'record')})" for name, count in found.records.items())
    click.echo(f"log {found.log_id}: {streams or 'no records'}")
    if found.left_out:
        click.echo(f"left out, as hubs were sent records of them since: {', '.join(found.left_out)}")
    click.echo(f"{'copied' if found.is_copy else 'moved'} to {found.directory}")
    click.echo("the node brings the hubs what they lack of it; `weft edge status` shows how far it is")


def _delete(config: EdgeConfig, *, as_json: bool) -> None:
    from weft.edge_node.inspect.exclusive_log import NotTheOwner
    from weft.edge_node.inspect.importing import delete_done

    try:
        deleted = delete_done(config)
    except (NotTheOwner, OSError) as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"deleted": deleted})
    else:
        click.echo(f"deleted {', '.join(deleted)}" if deleted else "no imported log is done: nothing was deleted")
