"""``weft edge rename``: rename the log of a stopped node to the name in its configuration."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import TYPE_CHECKING, Any

import click

from weft.commands.acts.file_acts import ordering
from weft.commands.common import config_argument, confirm, json_option, load_edge, yes_option
from weft.commands.node_log import NodeLog, readable
from weft.output import Failed, Refused, counted, print_json

if TYPE_CHECKING:
    from weft.config.models import EdgeConfig
    from weft.edge_node.inspect.rename import Renaming, UndeliveredRecords


@click.command("rename")
@config_argument
@click.option(
    "--wait", default="30s", show_default=True, help="Stop when no hub has acknowledged anything for this long."
)
@yes_option
@json_option
def edge_rename(config_file: str, wait: str, *, yes: bool, as_json: bool) -> None:
    """Rename the log of a stopped node to the `node` and `tenant` in CONFIG.

    Records that hubs have keep the former name; later records have the new one. The links first deliver everything
    under the former name and need tokens for that name until then. If a hub does not get everything, nothing is changed
    and the exit status is 1. If nothing was ever sent to a hub, all records in the log get the new name, and no hub is
    contacted.

    \b
    systemctl stop weft-edge
    weft edge rename edge.yaml
    weft edge rename edge.yaml --yes --json --wait 5m
    """
    from weft.config.units import parse_duration

    config = load_edge(config_file)
    try:
        patience_s = parse_duration(wait)
    except ValueError as error:
        raise Refused(f"--wait: {error}") from None
    facts = _rename(config, patience_s, yes=yes)
    if as_json:
        print_json(facts)
    elif facts["renamed"]:
        click.echo(_told(facts))
    elif not facts["waiting"]:
        click.echo(f"the log in {config.data_dir} belongs to {facts['to']} already: nothing was changed")
    if facts["waiting"] and not facts["renamed"]:
        raise Failed(_undelivered(config_file, facts))


def _rename(config: EdgeConfig, patience_s: float, *, yes: bool) -> dict[str, Any]:
    from weft.edge_node.inspect.exclusive_log import NotTheOwner
    from weft.edge_node.inspect.rename import NameUnknown, renaming
    from weft.service.serving import software
    from weft.storage.filesystem import DirectoryInUse
    from weft.storage.segment_log import LogError

    # The command itself reports at its end why a link did not deliver; log lines would repeat that.
    logging.getLogger("weft.replication").addHandler(logging.NullHandler())
    try:
        with readable(NodeLog(config.data_dir, config)), renaming(config, software()) as log:
            facts = {"renamed": False, "from": str(log.former), "to": str(log.name), "waiting": []}
            if log.former == log.name:
                return facts
            if not yes:
                confirm(_question(log), "nothing was renamed")
            with ordering(config.data_dir, f"{log.former} to {log.name}"):
                waiting = [] if log.is_unsent else asyncio.run(log.deliver(patience_s, _progress))
                facts |= {"all_records": log.is_unsent, "waiting": [_facts(each) for each in waiting]}
                if not any(each.records for each in waiting):
                    log.finish()
                    facts["renamed"] = True
            return facts
    except DirectoryInUse:
        raise Failed(
            f"a node runs with {config.data_dir}. Stop it first (systemctl stop weft-edge), then run this again"
        ) from None
    except (LogError, NameUnknown, NotTheOwner) as error:
        raise Failed(str(error)) from None


def _question(log: Renaming) -> str:
    if log.is_unsent:
        return f"rename {log.former} to {log.name}? No hub was sent anything, so all records take the new name"
    return f"rename {log.former} to {log.name}? Records that hubs have stay under {log.former}"


def _progress(records: int) -> None:
    if sys.stderr.isatty():
        click.echo(f"\r\x1b[K{counted(records, 'record')} to deliver", nl=not records, err=True)


def _facts(waiting: UndeliveredRecords) -> dict[str, Any]:
    return {"link": waiting.link, "stream": waiting.stream, "records": waiting.records, "trouble": waiting.trouble}


def _told(facts: dict[str, Any]) -> str:
    former, name = facts["from"], facts["to"]
    lines = [f"the log is {name}'s now; it was {former}'s"]
    if facts["all_records"]:
        lines.append(f"no hub was sent anything under {former}: all records in the log take the new name")
    else:
        lines.append(f"hubs keep their records under {former}; new records come under {name}")
    # Only losses are left undelivered: the hub gets no notice of them under the former name.
    lines += [
        f"link {each['link']}: the hub has no notice of the lost records of {each['stream']} ({each['trouble']})"
        for each in facts["waiting"]
    ]
    lines.append(f"a hub with tokens now needs one for {name}")
    return "\n".join(lines)


def _undelivered(config_file: str, facts: dict[str, Any]) -> str:
    waiting = [each for each in facts["waiting"] if each["records"]]
    lines = [f"weft: nothing was changed: hubs lack records that can only come under {facts['from']}:"]
    for each in waiting:
        count = counted(each["records"], "record")
        lines.append(f"  link {each['link']}: {count} of {each['stream']} ({each['trouble']})")
    lines.append(
        f"Run this again when the links work; until then their tokens must be those of {facts['from']}. To drop "
        f"the records instead: weft log drop {config_file} {waiting[0]['stream']} --all"
    )
    return "\n".join(lines)
