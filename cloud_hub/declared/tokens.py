"""``/v1/tokens``: the declared tokens for administrators. A secret is in the answer to the request that made it, and
nowhere else; the cluster log has its hash."""

from __future__ import annotations

from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import Meta

from weft.cloud_hub.api.access import ApiError
from weft.cloud_hub.api.answers import integer
from weft.cloud_hub.api.identity.rights import GRANT_CHARACTERS_MAX, GRANTS_MAX, Right, role_grants
from weft.cloud_hub.api.pages import PAGE_DEFAULT, PAGE_MAX
from weft.cloud_hub.api.tokens import (
    NAME_CHARACTERS_MAX,
    Scope,
    TokenIdentity,
    TokensUnusable,
    hash_token,
    new_token,
)
from weft.cloud_hub.api.views import moment, moment_after
from weft.cloud_hub.declared import changes
from weft.cloud_hub.declared.credentials import token_view
from weft.cloud_hub.declared.documents import TOKEN, Secret
from weft.cloud_hub.declared.requested import Reason, RequestedChanges, json_answer, reason_of
from weft.cloud_hub.declared.token_use import last_uses
from weft.storage.cluster_log.log import Change
from weft.storage.cluster_log.state import ClusterState
from weft.storage.object_store import ObjectStore, StoreError

TOKENS = "/v1/tokens"
TOKEN_WAY, ROTATION = f"{TOKENS}/{{name}}", f"{TOKENS}/{{name}}/rotate"
OVERLAP = "7d"
_END_CHARACTERS_MAX = 40
_COMMAND = "weft hub token"
_End = Annotated[str, Meta(max_length=_END_CHARACTERS_MAX)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to be made. It has a scope, or grants."""

    name: Annotated[str, Meta(min_length=1, max_length=NAME_CHARACTERS_MAX)]
    scope: Scope | None = None
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with it; for the scope `edge`, and for grants to write."""
    grants: Annotated[list[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)]], Meta(max_length=GRANTS_MAX)] = []
    """Rights such as `read:press-*`, or names of roles."""
    expires: _End | None = None
    """Its end: a duration such as `90d`, or a date; null for none."""
    reason: Reason = ""
    """For the record of administrative acts."""


class Rotation(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to have another secret."""

    expires: _End | None = None
    """End of the new secret: a duration, a date, or `never`; null for that of the one before."""
    overlap: _End = OVERLAP
    """Time for which the secret before stays in force; `0s` for none."""
    end_oldest: bool = False
    """True to end the older of two secrets that are in force already."""
    reason: Reason = ""
    """For the record of administrative acts."""


class TokenRequests:
    """Handlers of the requests."""

    def __init__(self, store: ObjectStore, changes: RequestedChanges) -> None:
        self._store, self._changes = store, changes

    def add_to(self, application: web.Application) -> None:
        """Add the requests to the application of the API."""
        application.add_routes([
            web.get(TOKENS, self._list), web.post(TOKENS, self._add), web.post(ROTATION, self._rotate),
            web.delete(TOKEN_WAY, self._remove),
        ])  # fmt: skip

    async def _list(self, request: web.Request) -> web.Response:
        """Return the declared tokens by name, without their secrets."""
        self._changes.access.operate(request, Right.ACTS)
        after, limit = request.query.get("after", ""), integer(request, "limit", PAGE_DEFAULT, 1, PAGE_MAX)
        try:
            facts, uses = (await self._changes.load()).facts(TOKEN), await last_uses(self._store)
        except StoreError as error:
            raise ApiError(503, f"the cluster log cannot be read: {error}", "try again") from error
        names, now = [name for name in sorted(facts) if name > after], self._changes.clock.agreed()
        return json_answer({
            "tokens": [token_view(facts[name], now, uses.get(name)) for name in names[:limit]],
            "next_after": names[limit - 1] if len(names) > limit else None,
        })  # fmt: skip

    async def _add(self, request: web.Request) -> web.Response:
        """Declare a token, and return its secret."""
        wanted = await self._changes.body(request, Right.TOKENS, NewToken, "a token")
        author = self._changes.author(request, Right.TOKENS, wanted.reason, instead=f"{_COMMAND} add")
        if self._changes.access.reader(request) is None:
            # It would end the links of all edges without a token; the command says which, and asks.
            raise ApiError(403, "a hub without tokens makes the first one by its command", f"use `{_COMMAND} add`")
        if (wanted.scope is None) == (not wanted.grants) or wanted.scope is Scope.GRANTED:
            raise ApiError(400, "a token has a scope, or grants", 'send "scope": "reader", or "grants": ["read"]')
        secret, until = new_token(), _end(wanted.expires, author.at, "expires")
        scope, grants = wanted.scope or Scope.GRANTED, role_grants(wanted.grants)
        identity = TokenIdentity(wanted.name, hash_token(secret), scope, wanted.tenant, wanted.edge, grants)
        try:
            decision = changes.add_token(identity, until)
        except TokensUnusable as error:
            raise ApiError(400, str(error), "nothing was declared") from None
        await self._changes.declare(decision, author)
        return json_answer({"name": wanted.name, "token": secret, "until": moment(until)})

    async def _rotate(self, request: web.Request) -> web.Response:
        """Declare another secret of a token, and return it. The one before stays in force for a while."""
        wanted = await self._changes.body(request, Right.TOKENS, Rotation, "a rotation")
        author = self._changes.author(request, Right.TOKENS, wanted.reason, instead=f"{_COMMAND} rotate")
        name, secret, now = request.match_info["name"], new_token(), author.at
        given = None if wanted.expires == "never" else _end(wanted.expires, now, "expires")
        old_until = _end(wanted.overlap, now, "overlap") or now
        ends: list[int | None] = []

        def decide(state: ClusterState) -> Change | None:
            until = given if wanted.expires is not None else changes.end_of_token(state, name, now)
            ends[:] = [until]
            made = Secret(hash_token(secret), until)
            return changes.rotate_token(name, made, now, old_until, ends_oldest=wanted.end_oldest)(state)

        await self._changes.declare(decide, author)
        return json_answer({"name": name, "token": secret, "until": moment(ends[0])})

    async def _remove(self, request: web.Request) -> web.Response:
        """Withdraw a token. Its links end two seconds later."""
        author = self._changes.author(request, Right.TOKENS, reason_of(request), instead=f"{_COMMAND} remove")
        name = request.match_info["name"]
        state = await self._changes.declare(changes.remove_token(name), author)
        return json_answer({"name": name, "left": len(state.facts(TOKEN))})


def _end(text: str | None, now: int, field: str) -> int | None:
    try:
        return None if text is None else moment_after(text, now)
    except ValueError as error:
        raise ApiError(400, f"{field}: {error}", "see docs/reference/api.md") from None
