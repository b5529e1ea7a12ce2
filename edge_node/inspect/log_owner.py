"""Comparison of the name in a configuration with the name that the log in its data_dir belongs to."""

from __future__ import annotations

from weft.config.errors import Finding, KeyPath
from weft.config.models import EdgeConfig
from weft.edge_node.inspect.view import LogDirectory
from weft.protocols.errors import UnsupportedVersion
from weft.protocols.lane import NodeName


def owner_of(directory: str) -> NodeName | None:
    """Return the name that the log in ``directory`` belongs to; None when there is none, or it cannot be read."""
    try:
        return LogDirectory(directory).owner()
    except (OSError, UnsupportedVersion):
        return None


def wrong_name(config: EdgeConfig, owner: NodeName, file: str) -> Finding | None:
    """Return the finding for a wrong name in ``config``, when the log is ``owner``'s; None when they agree.

    Args:
        file: file of the configuration, for the command to run.
    """
    if owner == (config.tenant, config.node):
        return None
    settings = {"tenant": (config.tenant, owner.tenant), "node": (config.node, owner.edge)}
    changed = {key: theirs for key, (ours, theirs) in settings.items() if ours != theirs}
    path: KeyPath = ("node" if "node" in changed else "tenant",)
    back = " and ".join(f"`{key}: {name}`" for key, name in changed.items())
    return Finding(
        path,
        f"the log in {config.data_dir} belongs to {owner}, but this configuration names "
        f"{config.tenant}/{config.node}. Put {back} back, or give the log the new name: weft edge rename {file}",
    )
