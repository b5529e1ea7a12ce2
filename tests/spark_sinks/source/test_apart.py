"""A reader whose key of the bucket opens the prefix of one tenant, and nothing else, on a server that enforces it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable

from tests.cloud_hub.live import running_hub
from tests.cloud_hub.test_splits import ACME, OTHER, TenantEdge, apart
from tests.spark_sinks.source.following import Follower
from tests.support.s3_servers import ACCESS, BUCKET, SECRET, VERSITYGW, S3Server, built
from weft.proofs.audit.audit import audit
from weft.proofs.verify import verify
from weft.storage.cluster import open_cluster, read_cluster
from weft.storage.hub_keys import table_key
from weft.storage.object_store import StoreError, open_store
from weft.storage.object_store.opening import bare
from weft.storage.table_writer.service import TableService

READER = "acme-reader"
PAGE = Path("docs/how-to/keep-a-tenant-apart.md")


def policy() -> str:
    """The policy of the page, for the names of this test."""
    text = PAGE.read_text().partition("```json\n")[2].partition("```")[0]
    given = json.loads(text.replace("BUCKET/PREFIX", f"{BUCKET}/weft").replace("PREFIX", "weft"))
    for statement in given["Statement"]:
        statement["Principal"] = {"AWS": [READER]}
    return json.dumps(given).replace("BUCKET", BUCKET)


def admit_reader(server: S3Server, binary: str) -> dict[str, str]:
    """Make an account with the policy. Returns its options of the store."""
    address = server.options()["AWS_ENDPOINT_URL"]
    user = ["create-user", "--access", READER, "--secret", "acme-secret", "--role", "user"]
    admin = [binary, "admin", "--access", ACCESS, "--secret", SECRET, "--endpoint-url", address]
    subprocess.run([*admin, *user], check=True, capture_output=True, env=os.environ, timeout=30)
    client = boto3.client(
        "s3", endpoint_url=address, aws_access_key_id=ACCESS, aws_secret_access_key=SECRET, region_name="us-east-1"
    )
    client.put_bucket_policy(Bucket=BUCKET, Policy=policy())
    return server.options() | {"AWS_ACCESS_KEY_ID": READER, "AWS_SECRET_ACCESS_KEY": "acme-secret"}


def server_with_accounts(tmp_path: Path, binary: str) -> S3Server:
    accounts = tmp_path / "accounts"
    accounts.mkdir()

    def command(path: str, address: str, folder: str) -> list[str]:
        made = VERSITYGW.command(path, address, folder)
        return [*made[:-2], "--iam-dir", str(accounts), *made[-2:]]

    return S3Server(replace(VERSITYGW, command=command), binary, tmp_path / "server")


def follower(uri: str, tenant: str, options: dict[str, str]) -> Follower:
    given = {f"store.{name.lower()}": value for name, value in options.items()}
    log: Any = SimpleNamespace(root=uri)
    return Follower(log, tenant=tenant, **given)


@pytest.mark.slow
async def test_a_key_for_the_prefix_of_a_tenant_reads_its_stream_and_table_and_nothing_else(tmp_path: Path) -> None:
    binary = built(VERSITYGW)
    with server_with_accounts(tmp_path, binary) as server:
        uri = f"{server.uri}/weft"
        store, edges = open_store(uri, server.options()), [TenantEdge(ACME), TenantEdge(OTHER)]
        async with AsyncExitStack() as stack:
            hub = await stack.enter_async_context(running_hub(store))
            shard = await apart(store).set("acme")
            for edge in edges:
                await stack.enter_async_context(edge.linked(hub))
                await edge.send(10)
            await TableService(store, await open_cluster(store, None)).catch_up()
            for edge in edges:
                await edge.send(5)

        opened = await asyncio.to_thread(admit_reader, server, binary)
        narrow = open_store(uri, opened)
        query = follower(uri, "acme", opened)
        start = await asyncio.to_thread(query.reader.initialOffset)
        _, rows = await asyncio.to_thread(query.batch, start)
        assert [row[:2] for row in rows] == [("press-1", seq) for seq in range(15)]
        await read_cluster(narrow)
        place, options = narrow.location(table_key("acme", "telemetry"))
        assert place == f"{uri}/tenants/acme/tables/telemetry"
        table = await asyncio.to_thread(DeltaTable, place, storage_options=options)
        assert await asyncio.to_thread(lambda: table.to_pyarrow_table().num_rows) == 10

        outside = [item.key for item in await bare(store).list("") if not item.key.startswith("tenants/acme/")]
        assert any(key.startswith("shard-") for key in outside)
        assert any(key.startswith("tables/default/") for key in outside)
        for key in outside:
            if key != "cluster.json":
                with pytest.raises(StoreError):
                    await bare(narrow).get(key)
        for prefix in ("", "shard-0", "tables", "tenants", "tenants/acme-2", "cluster"):
            with pytest.raises(StoreError):
                await bare(narrow).list(prefix)
        with pytest.raises(StoreError):
            await bare(narrow).create("tenants/acme/new", b"")

        report = await audit(store, "acme", "telemetry")
        assert (report.agrees, report.total("records"), report.total("table_records")) == (True, 15, 10)
        found = await verify(store)
        assert found.findings == []
        assert {(lane.tenant, lane.shard) for lane in found.lanes if lane.tenant == "acme"} == {("acme", shard)}
