"""Positions in the log at which subscriptions began. A session that is behind must not read records before them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.edge_node.subscriptions.subscriber import ClientSubscription


class FilterStarts:
    """Stream -> the first seq of a subscription, while its session has not read up to there.

    At most one entry for each filter of a session and each stream; mostly none.
    """

    def __init__(self) -> None:
        self._starts: dict[str, dict[str, tuple[ClientSubscription, Mapping[int, int]]]] = {}

    def set(self, client_id: str, subscription: ClientSubscription, ends: Mapping[int, int]) -> None:
        """Set the starts of a subscription: it gets records from these ends of the streams on."""
        if ends:
            self._starts.setdefault(client_id, {})[subscription.options.filter] = subscription, ends
        else:
            self.drop(client_id, subscription.options.filter)

    def of(self, client_id: str, text: str) -> Mapping[int, int]:
        """Return the starts of a filter; empty when they no longer matter."""
        found = self._starts.get(client_id, {}).get(text)
        return found[1] if found is not None else {}

    def knows(self, client_id: str) -> bool:
        """Return whether a subscription of a client has starts that matter."""
        return client_id in self._starts

    def all_of(self, client_id: str) -> Iterator[tuple[ClientSubscription, dict[int, int]]]:
        """Yield the subscriptions of one client with starts that matter, and the starts."""
        for subscription, ends in self._starts.get(client_id, {}).values():
            yield subscription, dict(ends)

    def drop(self, client_id: str, text: str) -> None:
        """Forget a removed subscription."""
        of_client = self._starts.get(client_id)
        if of_client is not None and of_client.pop(text, None) is not None and not of_client:
            del self._starts[client_id]

    def forget(self, client_id: str) -> None:
        """Forget the subscriptions of a session that has ended."""
        self._starts.pop(client_id, None)

    def passed(self, client_id: str, positions: Mapping[int, int]) -> None:
        """Forget starts that no longer matter: the client has read up to these positions."""
        of_client = self._starts.get(client_id)
        if of_client is None:
            return
        for text, (subscription, ends) in list(of_client.items()):
            left = {stream: seq for stream, seq in ends.items() if seq > positions.get(stream, 0)}
            if left:
                of_client[text] = subscription, left
            else:
                self.drop(client_id, text)
