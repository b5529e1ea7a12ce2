"""The demo's story: start, replay, cut, kill, drain, compute, prove."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from weft.demo.fabric import STREAM, DeviceProcess, Edge, FabricError, Hub, get_json
from weft.demo.network import Relay
from weft.demo.report import count_messages, hourly_statistics, show_audit, show_statistics

CUT_AT = 0.25
"""Fraction of the first edge's messages after which its network is cut."""
CUT_SECONDS = 5.0
KILL_AT = 0.45
"""Fraction of the second edge's messages after which it is killed."""
DEVICE_RATE = 1500.0
"""Messages per second and device at most: fast enough for a short demo, slow enough to see the faults bite."""
DRAIN_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.2

SHOP_DEVICES = ["machine-7", "iot-device-01"]
GREENHOUSE_DEVICES = ["iot-device-02", "iot-device-03", "office"]


@contextlib.contextmanager
def stderr_to(path: Path) -> Iterator[None]:
    """Send this process's stderr, and that of processes started meanwhile, to a file."""
    kept = os.dup(2)
    with path.open("ab") as log:
        os.dup2(log.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)


class SparkStart(threading.Thread):
    """Starts the Spark session while the messages flow, because a JVM takes its time."""

    def __init__(self, log_path: Path) -> None:
        super().__init__(name="demo-spark", daemon=True)
        self._log_path = log_path
        self._session: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            from spark_sinks import session

            with stderr_to(self._log_path):  # the JVM keeps the stderr it is started with, and has much to say
                self._session = session()
        except BaseException as error:
            self._error = error

    def session(self) -> Any:
        """The session, when it is up. Raises what its start raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._session


class Demo:
    """One run of the demo in one directory."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.console = console
        self.hub = Hub(directory)
        self._relay = Relay(self.hub.port)
        self.shop = Edge(directory, "press-shop", self._relay.port)
        self.greenhouse = Edge(directory, "greenhouse", self.hub.port)
        self._directory = directory
        self._devices: list[DeviceProcess] = []

    def start(self) -> None:
        """Start the hub and both edges."""
        for service in (self.hub, self.shop, self.greenhouse):
            service.start()
            self.console.print(f"[green]up[/]    {service.name} (process {service.pid})")

    def replay(self) -> int:
        """Replay every device's messages through both faults. Returns the messages acked to devices."""
        self._devices = [
            DeviceProcess(self._directory, self.shop, SHOP_DEVICES, DEVICE_RATE),
            DeviceProcess(self._directory, self.greenhouse, GREENHOUSE_DEVICES, DEVICE_RATE),
        ]
        faults: list[Callable[[list[float]], bool]] = [self._cut_network(), self._kill_edge()]
        columns = (TextColumn("{task.description:24}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            bars = [progress.add_task(f"{name}: acked", total=None) for name in (self.shop.name, self.greenhouse.name)]
            hub_bar = progress.add_task("hub: in the log", total=None)
            while True:
                done, fractions = self._show_devices(progress, bars)
                self._show_hub(progress, hub_bar)
                faults = [fault for fault in faults if not fault(fractions)]
                if done and not faults:
                    break
                time.sleep(POLL_INTERVAL_S)
            acked = sum(count for devices in self._devices for count, _ in devices.progress().values())
            self._drain(progress, hub_bar)
        return acked

    def _show_devices(self, progress: Progress, bars: list[TaskID]) -> tuple[bool, list[float]]:
        done, fractions = True, []
        for devices, bar in zip(self._devices, bars, strict=True):
            counts = devices.progress().values()
            acked, total = sum(count for count, _ in counts), sum(total for _, total in counts)
            progress.update(bar, completed=acked, total=total or None)
            fractions.append(acked / total if total else 0.0)
            done = done and 0 < total == acked
        return done, fractions

    def _show_hub(self, progress: Progress, bar: TaskID) -> None:
        progress.update(bar, completed=self._hub_records())

    def _hub_records(self) -> int:
        return sum(stream["records"] for stream in get_json(f"{self.hub.url}/v1/streams")["streams"])

    def _cut_network(self) -> Callable[[list[float]], bool]:
        since: list[float] = []

        def step(fractions: list[float]) -> bool:
            if not since and fractions[0] >= CUT_AT:
                self._relay.cut()
                since.append(time.monotonic())
                self.console.print(
                    f"[yellow]cut[/]   {self.shop.name}: no network for {CUT_SECONDS:.0f} s; its devices go on"
                )
            elif since and time.monotonic() - since[0] >= CUT_SECONDS:
                self._relay.restore()
                self.console.print(f"[green]back[/]  {self.shop.name}: the network is back")
                return True
            return False

        return step

    def _kill_edge(self) -> Callable[[list[float]], bool]:
        def step(fractions: list[float]) -> bool:
            if fractions[1] < KILL_AT:
                return False
            self.greenhouse.kill()
            self.console.print(f"[yellow]kill[/]  {self.greenhouse.name}: SIGKILL in mid-stream")
            self.greenhouse.start()
            self.console.print(f"[green]up[/]    {self.greenhouse.name} again (process {self.greenhouse.pid})")
            return True

        return step

    def _drain(self, progress: Progress, bar: TaskID) -> None:
        """Wait until everything the edges hold is in the hub's log and in the table."""
        expected = sum(edge.status()["streams"][STREAM]["durable_end"] for edge in (self.shop, self.greenhouse))
        progress.update(bar, total=expected)
        table_bar = progress.add_task("table: rows", total=expected)
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            in_log, in_table = self._hub_records(), self.hub.table_rows()
            progress.update(bar, completed=in_log)
            progress.update(table_bar, completed=in_table)
            if in_log == in_table == expected:
                return
            time.sleep(POLL_INTERVAL_S)
        raise FabricError(f"not everything arrived within {DRAIN_TIMEOUT_S:.0f} s; see the logs in {self._directory}")

    def prove(self, acked: int, spark: Any) -> bool:
        """Run the Spark job and the audit. True when everything agrees."""
        from cloud_hub.audit import audit
        from spark_sinks import read
        from storage.object_store import open_store

        frame = read(spark, STREAM, store=self.hub.store).cache()
        show_statistics(self.console, hourly_statistics(frame))
        report = asyncio.run(audit(open_store(self.hub.store), "default", STREAM))
        return show_audit(self.console, acked, report, count_messages(frame))

    def how_to_look_around(self) -> None:
        """Print what a person can do while everything is left running."""
        self.shop.stop()
        self.shop.point_link_at(self.hub.port)  # the relay that plays the network ends with this process
        self.shop.start()
        processes = (self.hub, self.shop, self.greenhouse)
        self.console.print(
            f"""
Everything is left running in {self._directory}:
  curl {self.hub.url}/v1/streams/{STREAM}/completeness
  curl {self.shop.url}/status
  mosquitto_pub -p {self.shop.mqtt_port} -q 1 -t sensors/me/telemetry -m hello     (or any MQTT client)
  .venv/bin/weft edge status {self.shop.config_path}
  .venv/bin/weft audit {STREAM} --store {self.hub.store}
  .venv/bin/python -c 'from spark_sinks import *; read(session(), "{STREAM}", store="{self.hub.store}").show()'
Stop it with: kill {" ".join(str(service.pid) for service in processes)}; remove it with: rm -r {self._directory}""",
            soft_wrap=True, highlight=False,
        )  # fmt: skip

    def stop(self) -> None:
        """End every process."""
        for devices in self._devices:
            devices.stop()
        for service in (self.shop, self.greenhouse, self.hub):
            service.stop()
        self._relay.close()


def main(keep: bool = False) -> int:
    """Run the demo. Returns the exit status: 0 only when devices, log and table agree.

    Args:
        keep: leave the processes and their files for a look around.
    """
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="weft-demo-"))
    started = time.monotonic()
    spark_start = SparkStart(directory / "spark.log")
    demo = Demo(directory, console)
    good = False
    try:
        demo.start()
        spark_start.start()
        acked = demo.replay()
        good = demo.prove(acked, spark_start.session())
        took = time.monotonic() - started
        verdict = "[green]Everything agrees.[/]" if good else "[red]The counts do not agree.[/]"
        console.print(f"{verdict} Took {took:.0f} s.")
    except (FabricError, OSError) as error:
        console.print(f"[red]The demo failed:[/] {error}")
    finally:
        if keep and good:
            demo.how_to_look_around()
        else:
            demo.stop()
        if good and not keep:
            shutil.rmtree(directory, ignore_errors=True)
        elif not good:
            console.print(f"The files and logs are in {directory}")
    return 0 if good else 1
