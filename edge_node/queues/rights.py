"""Uses of queues and exchanges that access rules permit or refuse."""

from __future__ import annotations

from typing import NamedTuple

from weft.edge_node.access.acl import ALL, Permission
from weft.edge_node.queues.errors import QueueError, Reason
from weft.edge_node.queues.topics import topic_of


class Use(NamedTuple):
    """Something that clients do with queues and exchanges."""

    wanted: Permission
    """Rights of which one is enough."""
    verb: str
    word: str
    """Word of a rule that permits it."""

    @property
    def by_any(self) -> Use:
        """Return the same use for those with any right: of what is not there, and of what is declared as it is. Its
        refusal does not tell whether there is a queue."""
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
        is_denied: whether a rule forbids it, against which no other helps.
    """
    # As a pattern of the rule has it, and safe for a terminal.
    pattern = repr(topic_of("", name).replace("/", "."))[1:-1]
    if is_denied:
        return QueueError(Reason.ACCESS_REFUSED, f"access rules deny the user every use of {what} {pattern}")
    return QueueError(
        Reason.ACCESS_REFUSED,
        f"access rules do not let the user {use.verb} this {what}: that takes the line `queue {use.word} {pattern}`",
    )
