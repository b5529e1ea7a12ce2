"""Tokens for tests of hubs: a file of them, and their declaration in the store of a hub, whether it runs or not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from weft.cloud_hub.auth.tokens import TokenIdentity, check_identity, hash_token, new_token, read_tokens
from weft.cloud_hub.facts.fact import TENANT
from weft.cloud_hub.facts.tenants import Quotas, set_tenant
from weft.cloud_hub.facts.tokens import TokenCache, import_token, remove_token
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
