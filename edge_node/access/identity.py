"""Interface of a client's identity for every protocol. ``authentication`` creates identities; tests have their own."""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote

from weft.edge_node.access.acl import Permission


class Identity(Protocol):
    """Identity of an admitted client. Answers are valid until ``Accounts.watch`` calls back."""

    username: str | None
    """User name, authenticated by a certificate or a password; None for a client without either."""
    unrestricted: bool
    """True if the client may publish to and read every topic; then no ``may_...`` method is called."""

    @property
    def admitted(self) -> bool:
        """Return whether the present users file still admits the client."""
        ...

    def may_publish(self, topic: bytes) -> bool:
        """Return whether it may publish to a topic."""
        ...

    def may_subscribe(self, topic_filter: str) -> bool:
        """Return whether it may subscribe to a filter, given without ``$share/{name}/``."""
        ...

    def may_read(self, topic: bytes) -> bool:
        """Return whether a message of this topic may be delivered to it."""
        ...

    def queue_rights(self, topic: str) -> Permission | None:
        """Return its rights to others' queues and exchanges with the name of a topic; None where all use is denied,
        also of its own."""
        ...


_OF_USER = "user:"


def session_name(username: str | None, client_id: str) -> str:
    """Return the name of a client's session: each user has client identifiers of its own.

    Client identifiers are not secret. If users shared them, a client with another user's identifier would get its
    messages, or destroy them (docs/decisions/0066-a-session-belongs-to-its-user.md). Different pairs have different
    names.
    """
    if username is not None:
        # An empty user name would look like a missing one.
        return f"{_OF_USER}{quote(username, safe='') or '%'}/{client_id}"
    return f"{_OF_USER}/{client_id}" if client_id.startswith(_OF_USER) else client_id


def user_of_session(name: str) -> str:
    """Return the part of a session's name that its user's sessions share; empty for those without a user."""
    return name.partition("/")[0] if name.startswith(_OF_USER) else ""
