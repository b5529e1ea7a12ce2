"""The demo's story: start, replay, cut, kill, drain, compute, prove."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from weft.demo.devices import AMQP_DEVICE, HTTP_DEVICE
from weft.demo.fabric import STREAM, THINNED, THINNED_STREAM, DemoHub, DeviceProcess, Edge, FabricError
from weft.demo.network import Relay
from weft.demo.report import Acked, count_messages, hourly_statistics, show_audit, show_statistics, show_thinned
from weft.demo.spark import SparkStart
from weft.demo.thinned import compare, points_of, readings_of

CUT_AT = 0.25
"""Fraction of the first edge's messages after which its network is cut."""
CUT_SECONDS = 5.0
KILL_AT = 0.45
"""Fraction of the second edge's messages after which it is killed."""
DEVICE_RATE = 1500.0
"""Maximum messages per second and device: fast enough for a short demo, slow enough to see the faults bite."""
DRAIN_TIMEOUT_S = 60.0
POLL_INTERVAL_S = 0.2
SPARK_START_S_MAX = 30.0
"""Longest time that a failed demo waits for Spark's start, which cannot be interrupted."""

SHOP_DEVICES = ["machine-7", "iot-device-01"]
GREENHOUSE_DEVICES = ["iot-device-02", "iot-device-03", "office"]
SERIES_DEVICES = ("machine-7", "office")
"""Devices whose readings stay at the edges."""
NEEDED = ("deltalake", "paho", "pika", "pyspark")
_COLUMNS = (
    TextColumn("{task.description:20}"),
    BarColumn(),
    TextColumn("{task.completed:>6,.0f} of {task.total:,.0f}", justify="right"),
    TimeElapsedColumn(),
)


class Bars(NamedTuple):
    """The progress display."""

    progress: Progress
    devices: tuple[TaskID, TaskID]
    log: TaskID
    table: TaskID


class Demo:
    """One run of the demo in one directory."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.console = console
        self.hub = DemoHub(directory)
        self._relay = Relay(self.hub.port)
        self.shop = Edge(directory, "press-shop", self._relay.port, THINNED)
        self.greenhouse = Edge(directory, "greenhouse", self.hub.port, THINNED)
        self._directory = directory
        self._devices: list[DeviceProcess] = []

    def start(self) -> None:
        """Start the hub and both edges."""
        self.console.print(f"Everything is in {self._directory}", soft_wrap=True, highlight=False)
        for service in (self.hub, self.shop, self.greenhouse):
            service.start()
            self.console.print(f"[green]up[/]    {service.name} (process {service.pid})")

    def replay(self) -> Acked:
        """Replay every device's messages through both faults. Return the numbers of messages acked to devices."""
        self.console.print(f"[green]up[/]    devices: {AMQP_DEVICE} by AMQP, {HTTP_DEVICE} by HTTP, the others by MQTT")
        self._devices = [
            DeviceProcess(self._directory, self.shop, SHOP_DEVICES, DEVICE_RATE),
            DeviceProcess(self._directory, self.greenhouse, GREENHOUSE_DEVICES, DEVICE_RATE),
        ]
        faults: list[Callable[[list[float]], bool]] = [self._cut_network(), self._kill_edge()]
        with Progress(*_COLUMNS, console=self.console) as progress:
            bars = Bars(
                progress,
                (
                    progress.add_task(f"{self.shop.name}: acked", total=0),
                    progress.add_task(f"{self.greenhouse.name}: acked", total=0),
                ),
                progress.add_task("hub: in the log", total=0),
                progress.add_task("hub: in the table", total=0),
            )
            while True:
                counts = [self._count(devices) for devices in self._devices]
                for bar, (acked, messages) in zip(bars.devices, counts, strict=True):
                    progress.update(bar, completed=acked, total=messages)
                self._show_hub(bars, self._count_messages())
                fractions = [acked / total if total else 0.0 for acked, total in counts]
                faults = [fault for fault in faults if not fault(fractions)]
                if all(0 < total == acked for acked, total in counts) and not faults:
                    break
                time.sleep(POLL_INTERVAL_S)
            self._drain(bars)
        by_device = {name: acked for devices in self._devices for name, (acked, _) in devices.progress().items()}
        readings = sum(by_device[name] for name in SERIES_DEVICES)
        again = sum(devices.again.get(AMQP_DEVICE, 0) for devices in self._devices)
        return Acked(sum(by_device.values()) - readings, readings, by_device, again)

    @staticmethod
    def _count(devices: DeviceProcess) -> tuple[int, int]:
        """Return the number of acked messages and of all messages."""
        counts = devices.progress().values()
        return sum(acked for acked, _ in counts), sum(total for _, total in counts)

    def _count_messages(self) -> int:
        """Return the number of messages that edges pass on as they are."""
        totals = [devices.progress().items() for devices in self._devices]
        return sum(total for items in totals for name, (_, total) in items if name not in SERIES_DEVICES)

    def _show_hub(self, bars: Bars, total: int) -> dict[str, tuple[int, int]]:
        counts = self.hub.counts()
        records, rows = counts.get(STREAM, (0, 0))
        bars.progress.update(bars.log, completed=records, total=total)
        bars.progress.update(bars.table, completed=rows, total=total)
        return counts

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

    def _drain(self, bars: Bars) -> None:
        """Wait until functions have seen all readings, and everything for the hub is in its log and in the tables."""
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while time.monotonic() < deadline:
            edges = [edge.status() for edge in (self.shop, self.greenhouse)]
            ends = {
                name: sum(edge["streams"][name]["durable_end"] for edge in edges) for name in (STREAM, THINNED_STREAM)
            }
            behind = sum(edge["functions"][THINNED_STREAM]["lag_records"] for edge in edges)
            counts = self._show_hub(bars, ends[STREAM])
            if not behind and all(counts.get(name) == (end, end) for name, end in ends.items()):
                return
            time.sleep(POLL_INTERVAL_S)
        raise FabricError(f"not everything arrived within {DRAIN_TIMEOUT_S:.0f} s; see the logs in {self._directory}")

    def prove(self, acked: Acked, spark: Any) -> bool:
        """Run the Spark job and the audits. Return whether everything agrees."""
        from spark_sinks import read
        from weft.storage.audit.audit import audit
        from weft.storage.object_store import open_store

        with self.console.status("Spark: statistics per device and hour"):
            frame = read(spark, STREAM, store=self.hub.store).cache()
            statistics = hourly_statistics(frame)
        show_statistics(self.console, statistics)
        with self.console.status("Audit: every lane, record and row"):
            store = open_store(self.hub.store)
            report = asyncio.run(audit(store, "default", STREAM))
            messages = count_messages(frame)
        good = show_audit(self.console, acked, report, messages)
        with self.console.status("Audit: what functions left out"):
            raw = [readings_of(edge.name, edge.data_dir) for edge in (self.shop, self.greenhouse)]
            thinned = compare(raw[0] | raw[1], *points_of(self.hub.store))
            report = asyncio.run(audit(store, "default", THINNED_STREAM))
        return show_thinned(self.console, acked.readings, thinned, report) and good

    def how_to_look_around(self) -> None:
        """Print commands for looking around while everything runs on."""
        self.shop.stop()
        self.shop.point_link_at(self.hub.port)  # the relay that plays the network ends with this process
        self.shop.start()
        processes = (self.hub, self.shop, self.greenhouse)
        programs = Path(sys.executable).parent
        show = f'read(session(), "{STREAM}", store="{self.hub.store}", columns="device,_time,_seq").show()'
        self.console.print(
            f"""
Everything is left running in {self._directory}:
  curl {self.hub.url}/v1/streams/{STREAM}/completeness
  curl {self.shop.url}/status
  mosquitto_pub -p {self.shop.mqtt_port} -q 1 -t sensors/me/telemetry -m hello     # or any MQTT client
  curl -d hello http://127.0.0.1:{self.shop.post_port}/v1/streams/{STREAM}/sensors/me/telemetry
  {programs}/weft edge status {self.shop.config_path}
  {programs}/weft audit {STREAM} --store {self.hub.store}
  {programs}/weft edge tail {self.shop.config_path} {THINNED_STREAM}
  {programs}/python -c 'from spark_sinks import *; {show}'
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
    """Run the demo. Return the exit status: 0 only when devices, log and table agree.

    Args:
        keep: leave the processes and their files for a look around.
    """
    console = Console()
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        console.print(
            f"The demo needs {', '.join(missing)}: in the repository, pip install '.[hub,spark,demo]'",
            markup=False,
            soft_wrap=True,
        )
        return 1
    directory = Path(tempfile.mkdtemp(prefix="weft-demo-"))
    demo = Demo(directory, console)
    good = False
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    try:
        good = _run(demo, directory / "spark.log")
        if good and keep:
            demo.how_to_look_around()
    except KeyboardInterrupt:
        good = False
        console.print("[yellow]Interrupted.[/] Stopping every process ...")
    except Exception as error:
        good = False
        with contextlib.suppress(OSError):  # a full disk may be what is wrong
            (directory / "demo.log").write_text(traceback.format_exc())
        console.print("[red]The demo failed:[/]", end=" ")
        console.print(str(error) or repr(error), markup=False, highlight=False, soft_wrap=True)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave processes behind
        if not (good and keep):
            demo.stop()
    if not good:
        console.print(f"The files and logs are in {directory}", soft_wrap=True, highlight=False)
    elif not keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if good else 1


def _run(demo: Demo, spark_log: Path) -> bool:
    started = time.monotonic()
    demo.start()
    spark_start = SparkStart(spark_log)
    spark_start.start()
    try:
        acked = demo.replay()
    except BaseException:
        spark_start.join(SPARK_START_S_MAX)  # the interpreter must not end in the middle of a native import
        raise
    spark = spark_start.session()
    from spark_sinks.runtime.quiet import stderr_to

    with stderr_to(spark_log):  # what its Python side says when it is interrupted
        good = demo.prove(acked, spark)
    verdict = "[green]Everything agrees.[/]" if good else "[red]The counts do not agree.[/]"
    demo.console.print(f"{verdict} Took {time.monotonic() - started:.0f} s.")
    return good


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
