"""A client's identity as every protocol asks it. ``authentication`` makes identities; tests have their own."""

from __future__ import annotations

from typing import Protocol


class Identity(Protocol):
    """Identity of a client that was let in. Answers hold until ``Accounts.watch`` calls back."""

    username: str | None
    """User name, authenticated by a certificate or a password; None for a client that gave neither."""
    client_id: str | None
    """Client identifier to use in place of the CONNECT's own (a certificate may fix it); None to keep that."""
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
