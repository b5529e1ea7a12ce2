"""Uses of queues and exchanges that access rules permit or refuse."""

from __future__ import annotations

from typing import NamedTuple

from weft.edge_node.access.acl import ALL, Permission
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.topics import topic_of


class Use(NamedTuple):
    """Kind of use that clients make of queues and exchanges."""

    wanted: Permission
    """Sufficient rights: any one of them permits the use."""
    verb: str
    word: str
    """Word of a rule that permits the use."""

    @property
    def by_any(self) -> Use:
        """Return the same use, permitted by any right: for a name that does not exist, and for a repeated declaration.
        Its refusal does not reveal whether there is a queue."""
        return self._replace(wanted=ALL)


LOOK = Use(ALL, "look at", "read")
READ = Use(Permission.READ, "read", "read")
DECLARE = Use(Permission.DECLARE, "declare", "declare")
PUBLISH = Use(Permission.WRITE, "publish to", "write")
CHANGE = Use(Permission.WRITE, "change", "write")


def refusal(use: Use, name: str, what: str, *, is_denied: bool) -> QueueError:
    """Return a refusal, with the rule that would permit the use.

    Args:
        what: ``queue`` or ``exchange``.
        is_denied: whether a deny rule forbids it, which no other rule overrides.
    """
    # In the form of the rule's pattern, and safe for a terminal.
    pattern = repr(topic_of("", name).replace("/", "."))[1:-1]
    if is_denied:
        return QueueError(Reason.ACCESS_REFUSED, f"access rules deny the user every use of {what} {pattern}")
    return QueueError(
        Reason.ACCESS_REFUSED,
        f"access rules do not let the user {use.verb} this {what}: that takes the line `queue {use.word} {pattern}`",
    )
