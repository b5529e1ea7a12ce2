"""A client's identity as every protocol asks it. ``authentication`` makes identities; tests have their own."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

from weft.edge_node.access.acl import Permission


class Identity(Protocol):
    """Identity of a client that was let in. Answers hold until ``Accounts.watch`` calls back."""

    username: str | None
    """User name, authenticated by a certificate or a password; None for a client that gave neither."""
    unrestricted: bool
    """True if the client may publish to and read every topic; then no ``may_...`` method is called."""

    @property
    def admitted(self) -> bool:
        """Return whether the users file, as it is now, still lets the client in."""
        ...

    def may_publish(self, topic: bytes) -> bool:
        """Return whether it may publish to a topic."""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether it may subscribe to a filter, which comes without ``$share/{name}/``."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether a message of this topic may be delivered to it."""
        ...

    def queue_rights(self, topic: str) -> Permission | None:
        """Return what it may do with queues and exchanges of the name that a topic stands for, where they are not its
        own; None where that is denied, also with its own."""
        ...


_OF_USER = "user:"


def session_name(username: str | None, client_id: str) -> str:
    """Return the name of a client's session: each user has client identifiers of its own.

    Client identifiers are no secrets. Were they shared, a client that uses another user's would get
    its messages, or destroy them (docs/decisions/0066-a-session-belongs-to-its-user.md). No two pairs have one name.
    """
    if username is not None:
        # An empty user name would look like none.
        return f"{_OF_USER}{quote(username, safe='') or '%'}/{client_id}"
    return f"{_OF_USER}/{client_id}" if client_id.startswith(_OF_USER) else client_id


def user_of_session(name: str) -> str:
    """Return the part of a session's name that its user's sessions share; empty for those without a user."""
    return name.partition("/")[0] if name.startswith(_OF_USER) else ""
