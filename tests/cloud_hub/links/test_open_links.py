"""Open links of a process: what goes on after an error in the midst of it."""

from __future__ import annotations

import asyncio

from tests.cloud_hub import virtual_time
from tests.cloud_hub.virtual_time import now_ns
from tests.support.silence import silent_logs
from weft.bounds import Refusals
from weft.cloud_hub.declared.credentials import Credentials
from weft.cloud_hub.links.open_links import LOOK_INTERVAL_S, SEND_ON_INTERVAL_S, OpenLinks


class Failing(OpenLinks):
    """Links whose two tasks meet an error at every step."""

    sent_on = ended = 0

    async def send_on(self, within_s: float | None = None) -> None:
        self.sent_on += 1
        raise ValueError(within_s)

    def end_revoked(self, tokens: Credentials) -> None:
        self.ended += 1
        raise ValueError(tokens)


def test_after_an_error_edges_are_still_sent_on_and_links_of_revoked_tokens_ended() -> None:
    async def main() -> None:
        links = Failing(10, 10, Refusals(lambda: 0.0), now_ns)
        with silent_logs():
            links.start(Credentials(None, False, now_ns))
            await asyncio.sleep(3.5 * SEND_ON_INTERVAL_S)
            await links.close()
        assert (links.sent_on, links.ended) == (3, int(3.5 * SEND_ON_INTERVAL_S / LOOK_INTERVAL_S))

    virtual_time.run(main())
