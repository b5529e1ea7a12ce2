"""Identity of a record: its lane, and the rules for names."""

from __future__ import annotations

import re
from typing import NamedTuple

NAME_CHARACTERS_MAX = 64
_NAME = re.compile(rf"[a-z0-9][a-z0-9_-]{{0,{NAME_CHARACTERS_MAX - 1}}}")
NAME_RULE = "lower-case letters, digits, '-' and '_', at most 64, starting with a letter or digit"


class NodeName(NamedTuple):
    """(tenant, edge): the name of a node and of its records."""

    tenant: str
    edge: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.edge}"


def node_in_certificate(common_name: str) -> NodeName | None:
    """Return the node that a certificate's common name names: an edge of the tenant `default`, or tenant, slash and
    edge; None if it names none."""
    tenant, slash, edge = common_name.rpartition("/")
    node = NodeName(tenant if slash else "default", edge)
    return node if valid_name(node.tenant) and valid_name(node.edge) else None


class Lane(NamedTuple):
    """(tenant, edge, log id, stream): within a lane, a sequence number is a record's permanent name."""

    tenant: str
    edge: str
    log_id: int
    stream: str

    def __str__(self) -> str:
        return f"{self.tenant}/{self.edge}/{format_log_id(self.log_id)}/{self.stream}"


def valid_name(name: str) -> bool:
    """Return whether ``name`` may name a tenant, an edge or a stream: it is safe in paths, URLs and SQL."""
    return _NAME.fullmatch(name) is not None


def format_log_id(log_id: int) -> str:
    """Return a log id in its text form: 16 hexadecimal digits."""
    return f"{log_id:016x}"
