"""A call to each URL of a link: its name, connection, certificate and answer, and the hub's clock."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from weft.config.units import approximate_duration
from weft.config.verdict import Verdict, act, good, unknown
from weft.edge_node.links.links import link_settings

# The runner's package imports a lighter aiohttp than anyone else does: it comes before.
from weft.replication.runner import connect_errors  # isort: skip
from weft.config.links import Link
from weft.network.tls.files import TlsUnusable
from weft.replication.runner.proxy import ProxyUnusable
from weft.replication.runner.trust import LinkTrust
from weft.replication.status import LinkStatus

import aiohttp  # isort: skip

ANSWER_S_MAX = 10.0
BODY_BYTES_MAX = 2048
URLS_MAX = 16
"""URLs of a link that are called; a link with more has its first ones called."""
CLOCK_S_MAX = 5.0
"""Difference to the hub's clock that is no finding: its answer has whole seconds, and took some time."""
_READY_PATH = "/readyz"
_WHY_MAX = 200
"""Characters of a hub's reason that a line repeats."""


class HubAnswer(NamedTuple):
    """Answer of a hub to a probe."""

    status: int
    body: str
    seconds: float
    ahead_s: float | None
    """Seconds by which this machine's clock is ahead of the hub's; None if the answer has no time."""


class HubCalls:
    """Calls to the hubs of one link.

    Args:
        clock: seconds of a clock that is never set.
        wall_clock: seconds since 1970.
        patience_s: for each call; all are made at once.
    """

    def __init__(
        self, name: str, link: Link, clock: Callable[[], float], wall_clock: Callable[[], float],
        *, patience_s: float = ANSWER_S_MAX,
    ) -> None:  # fmt: skip
        self._check = f"link {name}"
        self._urls = list(dict.fromkeys(link.to))[:URLS_MAX]
        settings = link_settings(link)
        self._proxy = settings.proxy
        self._trust = LinkTrust(settings.tls, LinkStatus(name))
        self._clock, self._wall_clock = clock, wall_clock
        self._patience_s = patience_s

    def verdicts(self) -> list[Verdict]:
        """Return the lines about the link's URLs, and about the clock. Blocks."""
        return asyncio.run(self._all())

    async def _all(self) -> list[Verdict]:
        found = await asyncio.gather(*map(self._call, self._urls))
        return [verdict for each in found for verdict in each]

    async def _call(self, url: str) -> list[Verdict]:
        try:
            async with asyncio.timeout(self._patience_s):
                if self._proxy.url is None and (problem := await _unresolved(url)):
                    return [act(self._check, f"{url}: {problem}")]
                answer = await self._ask(url)
        except TimeoutError:
            says = f"{url}: no answer within {self._patience_s:.3g} s. Check that firewalls let this port through"
            return [act(self._check, says)]
        except (ProxyUnusable, TlsUnusable) as error:
            return [act(self._check, str(error))]
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return [act(self._check, connect_errors.no_connection(url, error).reason)]
        return [_of_answer(self._check, url, answer), _of_clock(url, answer.ahead_s)]

    async def _ask(self, url: str) -> HubAnswer:
        """Ask whether the hub takes work, as a link would: with its certificates, by its proxy, without redirects.

        The page needs no token, and none is sent.
        """
        headers = await asyncio.to_thread(self._proxy.headers)
        tls = await self._trust.context(url)
        begun = self._clock()
        async with (
            aiohttp.ClientSession(trust_env=True) as session,
            session.get(
                url.rstrip("/") + _READY_PATH, ssl=tls, allow_redirects=False, proxy=self._proxy.url,
                proxy_headers=headers,
            ) as answer,
        ):  # fmt: skip
            body = await answer.content.read(BODY_BYTES_MAX)
            seconds, ahead_s = self._clock() - begun, _ahead(answer.headers.get("Date"), self._wall_clock())
            return HubAnswer(answer.status, body.decode("utf-8", "replace").strip(), seconds, ahead_s)


async def _unresolved(url: str) -> str | None:
    """Return why the hub's name has no address; None if it has one."""
    host = urlsplit(url).hostname or ""
    try:
        await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        said = (error.strerror or str(error)).lower()
        return f"the name {host} cannot be resolved ({said}). Check it, and the machine's DNS: `getent hosts {host}`"
    return None


def _ahead(date: str | None, now: float) -> float | None:
    try:
        return None if date is None else now - parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None


def _of_answer(check: str, url: str, answer: HubAnswer) -> Verdict:
    match answer.status:
        case 200:
            return good(check, f"{url} answers in {answer.seconds * 1000:.0f} ms, and takes work")
        case 503:
            why = answer.body.splitlines()[0][:_WHY_MAX] if answer.body else "it does not say why"
            return act(check, f"{url} answers, and takes no work: {why}. Look at the hub: `weft hub status`")
        case status if 300 <= status < 400:
            return act(check, f"{url} redirects ({status}), and links follow no redirects. Write the hub's URL in `to`")
    return act(check, f"{url} answers {answer.status}: no hub is there. Check host, port and path in `to`")


def _of_clock(url: str, ahead_s: float | None) -> Verdict:
    if ahead_s is None:
        return unknown("clock", f"{url} says no time")
    if abs(ahead_s) <= CLOCK_S_MAX:
        return good("clock", f"it is within {CLOCK_S_MAX:.0f} s of that of {url}")
    which = "ahead of" if ahead_s > 0 else "behind"
    away = approximate_duration(abs(ahead_s))
    return act(
        "clock", f"it is {away} {which} that of {url}. Set it, and run a time service: `timedatectl set-ntp true`"
    )
