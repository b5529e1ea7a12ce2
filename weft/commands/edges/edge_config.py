"""``weft edge config``: the settings of an edge that its hub has laid over its file."""

from __future__ import annotations

from typing import Any

import click

from weft.commands.common import config_argument, json_option, located_edge
from weft.output import print_facts, print_json, print_table


@click.command("config")
@config_argument
@json_option
def edge_config(config_file: str, *, as_json: bool) -> None:
    """Show what the hub has laid over the settings of CONFIG, from its data_dir. The node need not run.

    Settings are listed with the layer that has the last word: a group or the edge, with the version that
    `weft hub config status` shows. All others are those of the file. `outcome` says what the node did with the last
    configuration that it was given.

    \b
    weft edge config edge.yaml
    """
    from weft.config.reading.overlays import leaves
    from weft.edge_node.check import configuring_link
    from weft.edge_node.links.desired.signatures import NotTaken, check_signatures, rules_of
    from weft.edge_node.links.desired.stored import ConfigFolder
    from weft.edge_node.links.desired.trial import statement_of
    from weft.protocols.link.configuration import ConfigOutcome, ConfigState
    from weft.storage.segment_log.sealed.disk import disk_of

    config = located_edge(config_file).config
    link = configuring_link(config)
    stored = ConfigFolder(disk_of(config.data_dir), config.data_dir).load()
    said = statement_of(stored)
    rules = rules_of(config, link)
    try:
        if rules is not None:
            check_signatures(stored.active.layers, stored.confirmed.layers, stored.taken, rules)
        layers = stored.active.layers if link is not None else []
    except NotTaken as error:
        layers, about = [], stored.active
        said = ConfigState(about.version, about.digest, ConfigOutcome.REFUSED, str(error), 0, "")
    settings: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for path, value in leaves(layer.text):
            settings[path] = {"setting": path, "value": value, "from": layer.name, "version": layer.version}
    facts = {
        "link": link,
        "right": "never" if link is None else config.links[link].config_from_hub,
        "version": said.active_version if link is not None else 0,
        "outcome": ConfigOutcome(said.outcome).name.lower().replace("_", " "),
        "about_version": said.version,
        "reason": said.reason,
    }
    if as_json:
        print_json({**facts, "settings": list(settings.values())})
        return
    if link is None:
        click.echo(f"{config_file} lets no hub set anything: its settings count alone")
        return
    print_facts({
        "hub": f"link {link} ({facts['right']})",
        "in force": f"version {said.active_version}" if said.active_version else "the file alone",
        "last one": f"version {said.version}: {facts['outcome']}" if said.version else "none",
        **({"reason": said.reason} if said.reason else {}),
    })  # fmt: skip
    if settings:
        rows = [
            (each["setting"], each["value"], f"{each['from']}, version {each['version']}") for each in settings.values()
        ]
        print_table(("setting", "value", "from"), rows)
