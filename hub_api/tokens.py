"""Tokens, and who asks: bodies, answers and operations."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from weft.hub_api.answers import Count, Moment
from weft.hub_api.operation import (
    IMPORT_BYTES_MAX,
    OF_CHANGES,
    REASON,
    SCOPES,
    Operation,
    Parameter,
    Reason,
    after,
    limit,
)
from weft.hub_api.rights import GRANT_CHARACTERS_MAX, GRANTS_MAX, TOKEN_NAME_CHARACTERS_MAX, Right, Scope


class WhoAmI(msgspec.Struct, frozen=True, kw_only=True):
    """The rights of a request, by its token."""

    token: str | None
    """Name of the token; null when the hub has no tokens, and with a certificate."""
    scope: str
    """`edge`, `reader`, `publish`, `pull`, `admin`, or `granted` for `rights` one by one; `anonymous` when the hub has
    no tokens."""
    tenant: str | None
    """Tenant of requests without `tenant`."""
    edge: str | None
    """The edge that may link with the token."""
    until: Moment | UnsetType | None = UNSET
    """End of the token; null for none."""
    certificate: str | UnsetType | None = UNSET
    """Common name of the request's client certificate, if it gives the rights; null for a token."""
    rights: list[str] | UnsetType = UNSET
    """Rights of the token, such as `read:press-*`; empty when the hub has no tokens."""
    software: str | UnsetType = UNSET
    """Release of the hub, such as `weft 0.1.0`."""
    link_protocol: int | UnsetType = UNSET
    """Version of the protocol of links that the hub speaks."""


class TokenOfStore(msgspec.Struct, frozen=True, kw_only=True):
    """A declared token. Its secrets are not in the store."""

    name: str
    scope: str | None
    """Null, as other fields, if the release cannot read it: see `unusable`."""
    tenant: str | None
    edge: str | None
    grants: list[str]
    until: str | None
    """End of the last secret; `ended`, or `not paired yet`; null for no end."""
    older_until: Moment | None
    """End of the secret before, while both are in force."""
    last_used: Moment | None
    """Last known use, up to an hour old; null: none is known."""
    secrets: Count
    """Secrets in force."""
    version: Count
    """Number of the entry of the cluster log that declared this."""
    changed: Moment
    by: str
    reason: str
    unusable: str | None
    """Reason why it is refused; null if it can be read."""


class TokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Declared tokens by name. Those of an issuer are not among them."""

    tokens: list[TokenOfStore]
    next_after: str | None


class SecretAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A secret that was made. It is shown this once."""

    name: str
    token: str
    until: Moment | None
    """Its end; null for none."""


class PairingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A code by which an edge gets a token. It is shown this once."""

    name: str
    """Name of the token."""
    code: str
    tenant: str
    edge: str
    until: Moment
    """End of the code."""


class ImportedTokensAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of an import of tokens."""

    added: list[str]
    """Names of the tokens that it declared."""
    existing: Count
    """Number of the others, which were declared already and stay as they are."""
    other_secret: list[str]
    """Names of those among them that have another secret than the import."""


class RemovedTokenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A token that was withdrawn."""

    name: str
    left: Count
    """Number of declared tokens that are left."""


OVERLAP = "7d"


CODE_VALID = "15m"
"""Time for which the code of a pairing counts, unless the request says another."""


IMPORTED_MAX = 1000
"""Maximum number of tokens that one request imports; a larger fleet needs several requests."""


_END_CHARACTERS_MAX = 40


_End = Annotated[str, Meta(max_length=_END_CHARACTERS_MAX)]


class NewToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: a token that is to be made. It has a scope, or grants."""

    name: Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_CHARACTERS_MAX)]
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


class PairingOfToken(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: the edge that is to get a token by a code."""

    edge: str
    tenant: str = "default"
    within: _End = CODE_VALID
    """Time for which the code counts, `24h` at most."""
    expires: _End | None = None
    """End of the token's secret: a duration such as `90d`, or a date; null for none."""
    reason: Reason = ""
    """For the record of administrative acts."""


class HashedToken(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A token whose secret was made elsewhere."""

    name: Annotated[str, Meta(min_length=1, max_length=TOKEN_NAME_CHARACTERS_MAX)]
    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the secret, in lower-case hexadecimal digits."""
    scope: Scope
    tenant: str = "default"
    edge: str | None = None
    """Edge that may link with it; for the scope `edge`, and for grants to write."""
    grants: Annotated[list[Annotated[str, Meta(max_length=GRANT_CHARACTERS_MAX)]], Meta(max_length=GRANTS_MAX)] = []
    """Rights such as `read:press-*`, for the scope `granted`."""


class TokensToImport(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request: tokens to declare by the hashes of their secrets."""

    tokens: Annotated[list[HashedToken], Meta(min_length=1, max_length=IMPORTED_MAX)]
    reason: Reason = ""
    """For the record of administrative acts."""


_TOKEN_OF_PATH = Parameter("name", str, "Name of the token.", "path", required=True)


OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "whoami",
        "get",
        "/v1/whoami",
        "Return the rights of the request's token.",
        "The scope and rights of the token, or of the client certificate in its place, the tenant of its requests, "
        "and when it ends. It also names the hub's release. A token of any scope opens it.",
        WhoAmI,
        SCOPES,
        errors=frozenset({401, 403, 421}),
    ),
    Operation(
        "tokens",
        "get",
        "/v1/tokens",
        "Return the declared tokens, without their secrets, by name.",
        "`until` is the end of a token's last secret. `last_used` is up to an hour old. The store has no secrets, "
        "only hashes.",
        TokensAnswer,
        (Scope.ADMIN,),
        parameters=(after(), limit("tokens")),
        errors=frozenset({400, 401, 403, 421, 503}),
        right=Right.ACTS,
        command="weft hub token list",
    ),
    Operation(
        "add_token",
        "post",
        "/v1/tokens",
        "Declare a token, and return its secret, once.",
        "The answer comes when the token is durable, and has the only copy of the secret. Processes accept it "
        "within two seconds. The first token of a hub cannot be made here (403), since it ends all links without "
        "one.",
        SecretAnswer,
        (Scope.GRANTED,),
        errors=OF_CHANGES,
        body=NewToken,
        right=Right.TOKENS,
        command="weft hub token add",
    ),
    Operation(
        "rotate_token",
        "post",
        "/v1/tokens/{name}/rotate",
        "Replace the secret of a token, and return the new one, once.",
        "The secret before stays in force for `overlap`, a week unless given. At most two secrets are in force: "
        "with two, set `end_oldest`, or the request is refused with 409. The answer comes when the new secret is "
        "durable.",
        SecretAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH,),
        errors=OF_CHANGES,
        body=Rotation,
        right=Right.TOKENS,
        command="weft hub token rotate",
    ),
    Operation(
        "pair_token",
        "post",
        "/v1/tokens/{name}/pair",
        "Make a code by which an edge gets a token, and return the code, once.",
        "The code counts once, for 15 minutes unless `within` says another time, at most `24h`. A new code replaces "
        "the one before. The secrets of an existing token stay in force until the code is used. A token of another "
        "edge or scope is refused with 409.",
        PairingAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH,),
        errors=OF_CHANGES,
        body=PairingOfToken,
        right=Right.TOKENS,
        command="weft hub token pair",
    ),
    Operation(
        "import_tokens",
        "post",
        "/v1/tokens:import",
        "Declare tokens by the hashes of their secrets. Those that are declared already stay as they are.",
        "At most 1,000 tokens, in a body of at most 512 KiB. Tokens of one entry of the cluster log are all "
        "declared or none. The request may be repeated; `other_secret` names declared tokens whose secret is "
        "another. The first tokens of a hub cannot be imported here (403).",
        ImportedTokensAnswer,
        (Scope.GRANTED,),
        errors=OF_CHANGES,
        body=TokensToImport,
        body_bytes_max=IMPORT_BYTES_MAX,
        right=Right.TOKENS,
        command="weft hub token import",
    ),
    Operation(
        "remove_token",
        "delete",
        "/v1/tokens/{name}",
        "Withdraw a token: its links end.",
        "The answer comes when the change is durable. Processes refuse the token, and end its links, within two "
        "seconds. Secrets do not come back: declaring the name again makes a new one.",
        RemovedTokenAnswer,
        (Scope.GRANTED,),
        parameters=(_TOKEN_OF_PATH, REASON),
        errors=frozenset({400, 401, 403, 409, 421, 503}),
        right=Right.TOKENS,
        command="weft hub token remove",
    ),
)
"""Operations, in the order of the document."""
