"""Write what a release leaves on disk, with its real processes: ``python -m tests.releases.write``, a minute or two.

``<release>.tar.xz`` holds the files of an edge node that was killed and of a hub's store; ``<release>.json`` says what
has to come out of them, from what the clients sent and got. ``<release>.openapi.json`` is the document of its API. Run
it once for each release, as it is made, and never again for one that is out: the files are what that release wrote.
"""

from __future__ import annotations

import asyncio
import io
import json
import stat
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from tests.releases.api import api_file
from tests.releases.fabric import READINGS, STATE, TELEMETRY, Fabric
from tests.support.tokens import create_token
from tests.support.waiting import wait_until
from weft.hub_api.operations import document
from weft.hub_api.rights import Scope
from weft.storage.chunk_log import ShardLog
from weft.storage.cluster import open_cluster
from weft.storage.object_store import open_store

FOLDER = Path(__file__).parent
SNAPSHOT_WAIT_S = 120.0
"""A hub makes a snapshot each minute, once the log has ``CHUNKS_MIN`` more chunks: so messages come one by one."""
KEPT = ("data", "store", "tokens.json", "edge.token", "lake", "checkpoints")
RELEASES = sorted(path.name.removesuffix(".tar.xz") for path in FOLDER.glob("*.tar.xz"))


def write(folder: Path) -> dict[str, Any]:
    """Run node and hub in a folder; return what has to come out of it."""
    (folder / "edge.token").write_text(create_token(folder / "tokens.json", "press-1", Scope.EDGE, edge="press-1"))
    (folder / "edge.token").chmod(stat.S_IRUSR | stat.S_IWUSR)
    fabric = Fabric(folder)
    telemetry = [json.dumps({"temperature": 20 + n / 10, "n": n}) for n in range(51)]
    readings = [json.dumps({"temp": temp}) for temp in (20.0, 20.5, 21.0, 25.0)]
    jobs = [f"job {n}" for n in range(6)]
    with fabric.hub():
        with fabric.edge():
            fabric.publish(STATE, ["running"], retain=True)
            assert fabric.session(1, subscribe=True) == (False, [], ["running"])
            publish_one_by_one(fabric, telemetry[:20])
            assert fabric.session(20) == (True, telemetry[:20], [])
            fabric.enqueue(jobs, declare=True)
            fabric.publish(READINGS, readings)
            publish_one_by_one(fabric, telemetry[20:40], 20)
        # Sessions and queues stand in their files now; what comes next, in the log alone.
        with fabric.edge():
            fabric.post(telemetry[40], "reading-40")
            assert fabric.dequeue(2) == jobs[:2]
            wait_until(lambda: rows(folder) == 41 and has_snapshot(folder), SNAPSHOT_WAIT_S)
    run_spark(folder)
    edge = fabric.start_edge()
    fabric.publish(TELEMETRY, telemetry[41:])
    edge.kill()
    return {
        "telemetry": telemetry,
        "in_table": 41,
        "readings": readings,
        "points": [readings[0], readings[3]],
        "retained": {STATE: "running"},
        "session": telemetry[20:],
        "queue": jobs[2:],
    }


def publish_one_by_one(fabric: Fabric, messages: list[str], before: int = 0) -> None:
    """Publish messages with a chunk and a row for each, after so many others."""
    for count, message in enumerate(messages, before + 1):
        fabric.publish(TELEMETRY, [message])
        wait_until(lambda n=count: rows(fabric.folder) == n)  # type: ignore[misc]


def run_spark(folder: Path) -> None:
    """Run the queries on the log, before the node has more for it."""
    # The tests, which take names from here, can do without.
    from spark_sinks import session
    from tests.releases.queries import run_queries

    spark = session()
    run_queries(spark, folder)
    spark.stop()


def rows(folder: Path) -> int:
    """Return the number of rows in the table of the stream."""
    table = folder / "store/tables/default/telemetry"
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    count: int = DeltaTable(str(table)).to_pyarrow_table().num_rows
    return count


def has_snapshot(folder: Path) -> bool:
    async def look() -> bool:
        store = open_store(str(folder / "store"))
        cluster = await open_cluster(store, None)
        found = [(await ShardLog(store, cluster, shard).manifest())[0].snapshot for shard in range(cluster.shards)]
        return any(found)

    return asyncio.run(look())


def pack(folder: Path, archive: Path) -> None:
    """Put the files into an archive, without what only a running node has."""

    def kept(item: tarfile.TarInfo) -> tarfile.TarInfo | None:
        item.uid = item.gid = item.mtime = 0
        item.uname = item.gname = ""
        return item if item.isfile() or item.isdir() else None

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as tar:
        for name in KEPT:
            tar.add(folder / name, name, filter=kept)
    archive.write_bytes(packed.getvalue())


def unpack(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extractall(folder, filter="data")
        else:  # Python before 3.11.4, as in Debian 12; the archive is ours
            tar.extractall(folder)


def main() -> None:
    release = version("weft-fabric")
    with tempfile.TemporaryDirectory() as made:
        manifest = write(Path(made))
        pack(Path(made), FOLDER / f"{release}.tar.xz")
    (FOLDER / f"{release}.json").write_text(json.dumps(manifest, indent=1) + "\n")
    api_file(release).write_text(json.dumps(document(), indent=1) + "\n")


if __name__ == "__main__":
    main()
