"""``/v1/pair``: an edge gives its token a secret, by a code that ends soon and works once (docs/reference/api.md)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from weft.bounds import Owner, OwnerKind, address_owner
from weft.bounds.bound import Rates
from weft.cloud_hub.auth.tokens import hash_token
from weft.cloud_hub.facts.fact import TOKEN, CannotDeclare, decode
from weft.cloud_hub.facts.tokens import Credentials, NotPaired, TokenDocument, redeem
from weft.hub_api.answers import ApiError, moment
from weft.protocols.errors import CodecError
from weft.protocols.link import PAIR_BODY_BYTES_MAX, PAIR_PATH, PairAnswer, PairRequest, spoken
from weft.storage.cluster_log import Author, ChangeRefused, ClusterLog, Contended
from weft.storage.object_store import StoreError

WRONG_BURST = 10
"""Wrong codes that one address may send at once."""
WRONG_PER_S = 0.1
ALL_WRONG_BURST, ALL_WRONG_PER_S = 1000, 10.0
"""The same of all addresses together: an attacker may have many."""
FLOOD_S = 60.0
"""Time after a wrong code for which the bound of all addresses holds for its address. It holds for no others: an edge
with the right code pairs while strangers guess."""
_EVERYBODY = Owner(OwnerKind.ADDRESS, "")
_WRONG = "this code is not valid here"
_ADVICE = (
    "it is wrong, was used, has ended, is for another edge, or is younger than two seconds. "
    "`weft hub token pair` makes another one"
)


class PairRequests:
    """Handler of the requests. Who asks has no token yet, so that an answer to a wrong code tells nothing.

    Args:
        credentials: the tokens that this process knows: a code that none of them has costs no read of the store.
        now: nanoseconds since 1970.
        monotonic: seconds.
        read_body: reads the body of a request with a bound.
    """

    def __init__(
        self,
        log: ClusterLog,
        credentials: Credentials,
        now: Callable[[], int],
        monotonic: Callable[[], float],
        read_body: Callable[[web.Request, int, str], Awaitable[bytes]],
    ) -> None:
        self._log, self._credentials, self._now, self._read_body = log, credentials, now, read_body
        self._wrong: Rates[Owner] = Rates(WRONG_PER_S, WRONG_BURST, monotonic)
        self._all_wrong: Rates[Owner] = Rates(ALL_WRONG_PER_S, ALL_WRONG_BURST, monotonic)
        self._recent: Rates[Owner] = Rates(1 / FLOOD_S, 0.0, monotonic)
        """Addresses with a wrong code in the last ``FLOOD_S``."""

    def add_to(self, application: web.Application) -> None:
        """Add the request to the application of the API."""
        application.router.add_post(PAIR_PATH, self.post)

    async def post(self, request: web.Request) -> web.Response:
        """Give a token its secret. Answered when that is durable."""
        if "Origin" in request.headers:
            # Only browsers send it, and no page has a reason to try codes with the addresses of its readers.
            raise ApiError(403, "pairing is not for browsers", "use `weft edge pair`")
        owner = address_owner(request.remote or "")
        self._check(owner)
        asked = _decode(await self._read_body(request, PAIR_BODY_BYTES_MAX, "a pairing has some hundred bytes"))
        self._check(owner)  # other connections of the address may have had wrong codes while this one held its back
        code = hash_token(spoken(asked.code))
        try:
            answer = await self._redeem(asked, code, request.remote or "")
        except NotPaired:
            self._wrong.charge(owner, 1)
            self._all_wrong.charge(_EVERYBODY, 1)
            self._recent.charge(owner, 1 - self._recent.debt_s(owner) / FLOOD_S)
            raise ApiError(403, _WRONG, _ADVICE) from None
        return web.Response(body=msgspec.json.encode(answer) + b"\n", content_type="application/json")

    def _check(self, owner: Owner) -> None:
        """Refuse an address that sent too many wrong codes, or one of too many that all sent.

        Raises:
            ApiError: 429.
        """
        flood_s = min(self._all_wrong.debt_s(_EVERYBODY), self._recent.debt_s(owner))
        if wait_s := max(self._wrong.debt_s(owner), flood_s):
            raise ApiError(429, "too many wrong codes", "wait, and ask for a new code", retry_s=wait_s)

    async def _redeem(self, asked: PairRequest, code: str, origin: str) -> PairAnswer:
        name = self._credentials.paired_by(code)
        if name is None:
            raise NotPaired
        now = self._now()
        author = Author(now, f"edge with a code of {name}", "", origin, f"POST {PAIR_PATH}")
        decision = redeem(name, code, asked.sha256, (asked.tenant, asked.edge), now)
        try:
            state = await self._log.append(decision, author, await self._log.load())
        except (CannotDeclare, ChangeRefused) as error:
            raise ApiError(409, str(error), "nothing was declared") from error
        except (StoreError, Contended, CodecError) as error:
            again = "ask again with the same code"
            raise ApiError(503, f"the cluster log cannot be written: {error}", again) from error
        document = decode(state.facts(TOKEN)[name].document, TokenDocument)
        ends = [each.until for each in document.secrets if each.sha256 == asked.sha256]
        until = None if not ends or ends[0] is None else moment(ends[0])
        return PairAnswer(tenant=document.tenant, edge=document.edge or "", token=name, until=until)


def _decode(body: bytes) -> PairRequest:
    try:
        return msgspec.json.decode(body, type=PairRequest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise ApiError(400, "the body is not that of a pairing", "use `weft edge pair`") from None
