"""Tokens for tests of hubs: a file of them, and their declaration in the store of a hub, whether it runs or not."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from joserfc import jwt
from joserfc.jwk import ECKey, OKPKey, RSAKey
from joserfc.jws import JWSRegistry

from weft.cloud_hub.auth.tokens import TokenIdentity, check_identity, hash_token, new_token, read_tokens
from weft.cloud_hub.facts.fact import TENANT
from weft.cloud_hub.facts.tenants import Quotas, set_tenant
from weft.cloud_hub.facts.tokens import TokenCache, import_token, remove_token
from weft.cloud_hub.settings import JwtSettings
from weft.hub_api.rights import ANY, Scope
from weft.storage.cluster import open_cluster
from weft.storage.cluster_log import Author, ClusterLog
from weft.storage.object_store import ObjectStore, open_store

T = TypeVar("T")


def create_token(
    path: str | Path,
    name: str,
    scope: Scope,
    tenant: str = "default",
    edge: str | None = None,
    *,
    grants: tuple[str, ...] = (),
) -> str:
    """Add a token to a file, as `weft hub token import` takes it, and return its secret."""
    token, file = new_token(), Path(path)
    identity = TokenIdentity(name, hash_token(token), scope, tenant, edge, grants)
    check_identity(identity, str(path))
    known = read_tokens(file.read_bytes(), str(path)) if file.exists() else []
    file.write_text(yaml.safe_dump({"tokens": [msgspec.to_builtins(each) for each in (*known, identity)]}))
    return token


async def declare_tokens(store: ObjectStore, path: str, *, shards: int = 2) -> None:
    """Declare the tokens of a file in a store, and their tenants. A new store gets so many shards."""
    log = ClusterLog(store, (await open_cluster(store, None, new_shards=shards)).cluster_id)
    identities = read_tokens(Path(path).read_bytes(), path)
    there = (await log.load()).facts(TENANT)
    tenants = {each.tenant for each in identities} - {"default", ANY, *there}
    decisions = [set_tenant(each, Quotas(), is_new=True) for each in sorted(tenants)]
    known = TokenCache()
    await log.append_all([*decisions, *(import_token(each, known) for each in identities)], _author())


async def withdraw_token(store: ObjectStore, name: str) -> int:
    """Withdraw a token from a store, and return the number of the entry."""
    log = ClusterLog(store, (await open_cluster(store, None)).cluster_id)
    return (await log.append(remove_token(name), _author())).n


def declare_in(store: str | Path, path: str | Path, *, shards: int = 2) -> None:
    """Declare the tokens of a file in the store in a folder. Blocks, also in a coroutine."""
    _run(declare_tokens(open_store(str(store)), str(path), shards=shards))


def withdraw_in(store: str | Path, name: str) -> int:
    """Withdraw a token from the store in a folder, and return the number of the entry. Blocks, as ``declare_in``."""
    return _run(withdraw_token(open_store(str(store)), name))


def _run(work: Coroutine[Any, Any, T]) -> T:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


def _author() -> Author:
    return Author(time.time_ns(), "a test", "")


# --- An issuer of JSON Web Tokens: keys, tokens, and a small HTTP server with its key set


ISSUER, AUDIENCE = "https://login.test/plant", "weft-hub"
Key = RSAKey | ECKey | OKPKey


class _Registry(JWSRegistry):
    def get_alg(self, name: str) -> Any:
        return self.algorithms["Ed25519" if name == "EdDSA" else name]  # without the warning that it is an old name


def key_of(algorithm: str, name: str) -> Key:
    """Return a new key with a name, for one algorithm."""
    made: Key
    if algorithm == "RS256":
        made = RSAKey.generate_key(2048, {"kid": name})
    elif algorithm == "ES256":
        made = ECKey.generate_key("P-256", {"kid": name})
    else:
        made = OKPKey.generate_key("Ed25519", {"kid": name})
    return made


def signed(key: Any, algorithm: str, claims: dict[str, Any], **header: Any) -> str:
    """Return a token. ``header`` may say anything."""
    registry = _Registry(strict_check_header=False)
    return jwt.encode({"alg": algorithm, "kid": key.kid, **header}, claims, key, registry=registry)


def claims(seconds: float = 3600, now: Callable[[], float] = time.time, **more: Any) -> dict[str, Any]:
    """Return claims that are right, with changes; None leaves a claim out."""
    at = now()
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "press-1",
        "iat": int(at),
        "nbf": int(at),
        "exp": at + seconds,
        "scope": "openid reader",
    }
    return {name: value for name, value in {**usual, **more}.items() if value is not None}


def key_set(*keys: Key) -> bytes:
    """Return the key set with the public parts of keys."""
    return json.dumps({"keys": [key.as_dict(private=False) for key in keys]}).encode()


class KeySetServer:
    """The server. ``document`` and ``status`` may be changed; while ``hangs``, no answer comes."""

    def __init__(self, document: bytes) -> None:
        self.document = document
        self.status = 200
        self.hangs = False
        self.asked = 0
        self.url = ""

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            self.asked += 1
            if self.hangs:
                await reader.read()  # until the other side leaves
            else:
                head = f"HTTP/1.1 {self.status} -\r\nContent-Length: {len(self.document)}\r\nLocation: /other\r\n\r\n"
                writer.write(head.encode() + self.document)
                await writer.drain()
        writer.close()

    @contextlib.asynccontextmanager
    async def running(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[KeySetServer]:
        """Serve."""
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0, ssl=tls)
        self.url = f"{'http' if tls is None else 'https'}://127.0.0.1:{server.sockets[0].getsockname()[1]}/keys"
        try:
            yield self
        finally:
            server.close()


def settings(url: str | None = None, **more: Any) -> JwtSettings:
    """Return the settings of a hub for the issuer."""
    return JwtSettings(ISSUER, AUDIENCE, **{"jwks_url": url, "leeway_s": 5.0, **more})
