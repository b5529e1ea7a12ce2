"""JSON Web Tokens that a hub takes from an issuer (OpenID Connect), beside tokens of its own."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from weft.config.values import Duration, Path, Section

Claim = Annotated[str, Meta(min_length=1, max_length=128)]
"""Name of a claim, or names with dots between them for one inside others."""
Grants = Annotated[tuple[Annotated[str, Meta(min_length=1, max_length=144)], ...], Meta(min_length=1, max_length=64)]


class Jwt(Section, frozen=True, kw_only=True):
    """JSON Web Tokens of one issuer, for edges and readers. Their keys are read again while the hub runs."""

    issuer: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            examples=["https://login.example.com/realms/plant"],
            description="Issuer of the tokens: their claim `iss`, letter by letter.",
        ),
    ]
    audience: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=512,
            description="Name of the hub at the issuer. The claim `aud` has to have it, so that tokens for other "
            "services open nothing here.",
        ),
    ]
    jwks_url: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^/@\s]+(/\S*)?$", max_length=2048)] | None,
        Meta(
            examples=["https://login.example.com/realms/plant/protocol/openid-connect/certs"],
            description="URL of the issuer's key set, which its OpenID configuration calls `jwks_uri`. `https`; "
            "`http` only on this machine. Redirects are not followed. Either this or `jwks_file`.",
        ),
    ] = None
    jwks_file: Annotated[
        Path | None, Meta(description="File with the issuer's key set (JWKS), for a hub that cannot reach the issuer.")
    ] = None
    ca_file: Annotated[
        Path | None,
        Meta(
            description="PEM file with the authorities that sign the certificate of `jwks_url`. Unset: those of the "
            "system."
        ),
    ] = None
    algorithms: Annotated[
        tuple[Literal["RS256", "ES256", "EdDSA"], ...],
        Meta(
            min_length=1,
            max_length=3,
            description="Algorithms of signatures. `EdDSA` is with Ed25519. Tokens of others are refused, whatever key "
            "they name.",
        ),
    ] = ("RS256", "ES256", "EdDSA")
    tenant_claim: Annotated[
        Claim | None, Meta(description="Claim with the tenant. Unset: all tokens are for `tenant`.")
    ] = None
    tenant: Annotated[
        Annotated[str, Meta(min_length=1)], Meta(description="Tenant of all tokens, without `tenant_claim`.")
    ] = "default"
    rights_claim: Annotated[
        Claim,
        Meta(
            examples=["realm_access.roles"],
            description="Claim with the rights: a list, or words with spaces between them. A dot leads into a claim "
            "inside another. Words that mean nothing to the hub are passed over.",
        ),
    ] = "scope"
    roles: Annotated[
        Annotated[dict[str, Grants], Meta(max_length=256)] | None,
        Meta(
            description="Words of `rights_claim`, each with the rights that it gives. These are grants such as "
            "`read:press-*`, scopes of tokens such as `reader`, or roles such as `operator`. Unset: the words of the "
            "claim are such rights themselves. Roles, and what reaches beyond the tenant (`admin`, `status`, "
            "`metrics`, `acts`), need a line here.",
        ),
    ] = None
    edge_claim: Annotated[
        Claim,
        Meta(description="Claim with the name of the edge, for tokens with the right `write` or the scope `edge`."),
    ] = "sub"
    leeway_s: Annotated[
        Duration,
        Meta(
            ge=0,
            le=300,
            description="Time by which the clocks of issuer and hub may differ. A token counts so long beyond its end "
            "and before its begin.",
        ),
    ] = field(default=30.0, name="leeway")
    refresh_s: Annotated[
        Duration, Meta(ge=1, le=86_400, description="How often the key set is read without a reason.")
    ] = field(default=900.0, name="refresh")
    unknown_key_s: Annotated[
        Duration,
        Meta(
            ge=0.1,
            le=3600,
            description="How often at most it is read because a token names a key that it does not have. After a "
            "failed attempt it is tried again as often.",
        ),
    ] = field(default=10.0, name="unknown_key")
    keep_s: Annotated[
        Duration,
        Meta(
            ge=60,
            le=30 * 86_400,
            description="Time for which the keys count after they were last read. Then the hub takes no token of the "
            "issuer until it has read them again.",
        ),
    ] = field(default=86_400.0, name="keep")
