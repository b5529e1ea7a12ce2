"""Positions in the log at which subscriptions began. A session that is behind must not read what lies before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.edge_node.subscriptions.subscriber import ClientSubscription


class FilterStarts:
    """Stream -> the first seq that is a subscription's, for those whose session has not read up to there yet.

    No more than one place for each filter of a session and each stream; mostly none at all.
    """

    def __init__(self) -> None:
        self._starts: dict[str, dict[str, tuple[ClientSubscription, Mapping[int, int]]]] = {}

    def set(self, client_id: str, subscription: ClientSubscription, ends: Mapping[int, int]) -> None:
        """Note that a subscription gets what is at these ends of the streams, and what follows."""
        if ends:
            self._starts.setdefault(client_id, {})[subscription.options.filter] = subscription, ends
        else:
            self.drop(client_id, subscription.options.filter)

    def of(self, client_id: str, text: str) -> Mapping[int, int]:
        """Return where a filter began; empty when that no longer matters."""
        found = self._starts.get(client_id, {}).get(text)
        return found[1] if found is not None else {}

    def knows(self, client_id: str) -> bool:
        """Return whether it matters for any subscription of a client."""
        return client_id in self._starts

    def all_of(self, client_id: str) -> Iterator[tuple[ClientSubscription, dict[int, int]]]:
        """Yield the subscriptions of one client for which it matters, and where they began."""
        for subscription, ends in self._starts.get(client_id, {}).values():
            yield subscription, dict(ends)

    def drop(self, client_id: str, text: str) -> None:
        """Forget a subscription that was taken out."""
        of_client = self._starts.get(client_id)
        if of_client is not None and of_client.pop(text, None) is not None and not of_client:
            del self._starts[client_id]

    def forget(self, client_id: str) -> None:
        """Forget the subscriptions of a session that has ended."""
        self._starts.pop(client_id, None)

    def passed(self, client_id: str, positions: Mapping[int, int]) -> None:
        """Forget what no longer matters: the client has read up to these positions."""
        of_client = self._starts.get(client_id)
        if of_client is None:
            return
        for text, (subscription, ends) in list(of_client.items()):
            left = {stream: seq for stream, seq in ends.items() if seq > positions.get(stream, 0)}
            if left:
                of_client[text] = subscription, left
            else:
                self.drop(client_id, text)
