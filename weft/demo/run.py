"""The demo's story: start, replay, cut, kill, drain, compute, prove."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shlex
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from weft.demo.devices import AMQP_DEVICE, CSV_DEVICES, HTTP_DEVICE
from weft.demo.fabric import (
    PROMPT_HUB,
    PROMPT_LINK,
    STREAM,
    THINNED,
    THINNED_STREAM,
    DemoHub,
    DeviceProcess,
    Edge,
    FabricError,
    Relay,
    SparkStart,
    uninterrupted,
)
from weft.demo.report import (
    COMPLETE_TIMEOUT_S,
    HOUR_S,
    PIPELINE,
    MachineHours,
    hourly_statistics,
    show_audits,
    show_hours,
    show_sent,
    show_statistics,
)

CUT_AT = 0.25
"""Fraction of the first edge's messages after which its network is cut."""
CUT_SECONDS = 5.0
"""Shortest time of the cut, which lasts until the pipeline has written a window without the edge: Spark needs a while
to start."""
CUT_SECONDS_MAX = 300.0
"""Time after which a demo without such a window fails. A machine that is busy with other work takes minutes."""
KILL_AT = 0.45
"""Fraction of the second edge's messages after which it is killed."""
DEVICE_RATE = 1500.0
"""Maximum messages per second and device: fast enough for a short demo, slow enough to see the faults bite."""
DRAIN_TIMEOUT_S = 120.0
POLL_INTERVAL_S = 0.2
SPARK_START_S_MAX = 30.0
"""Longest time that a failed demo waits for Spark's start, which cannot be interrupted."""

SHOP_DEVICES = ["machine-7", "iot-device-01"]
GREENHOUSE_DEVICES = ["iot-device-02", "iot-device-03", "office"]
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
        self.hub = DemoHub(directory, PROMPT_HUB)
        self._relay = Relay(self.hub.port)
        self.shop = Edge(directory, "press-shop", self._relay.port, THINNED, PROMPT_LINK)
        self.greenhouse = Edge(directory, "greenhouse", self.hub.port, THINNED, PROMPT_LINK)
        self.hours = MachineHours(directory, self.hub.store, (self.shop.name, self.greenhouse.name))
        self._spark = SparkStart()
        self._cut_at: datetime | None = None
        self._directory = directory
        self._devices: list[DeviceProcess] = []
        self.interrupted = False
        """True after Ctrl-C or SIGTERM. Libraries in whose calls the exception comes may take it for an error of their
        own, which is passed over."""

    def interrupt(self, _number: int, _frame: FrameType | None) -> None:
        """End the demo (for ``signal.signal``)."""
        self.interrupted = True
        raise KeyboardInterrupt

    def _pause(self) -> None:
        if not self.interrupted:
            time.sleep(POLL_INTERVAL_S)
        if self.interrupted:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Start the hub and both edges, and Spark in the background."""
        self._spark.start()
        self.console.print(f"Everything is in {self._directory}", soft_wrap=True, highlight=False)
        for service in (self.hub, self.shop, self.greenhouse):
            service.start()
            self.console.print(f"[green]up[/]    {service.name} (process {service.pid})")
            if service is self.hub:
                page = f"{self.hub.url}/console#/streams/{STREAM}?window=5"
                self.console.print(f"[cyan]see[/]   {page}", soft_wrap=True)
                self.console.print("      in a browser: outage, backlog, completeness")

    def replay(self) -> None:
        """Replay every device's messages through both faults, until everything for the hub is in the tables."""
        self.console.print(f"[green]up[/]    devices: {AMQP_DEVICE} by AMQP, {HTTP_DEVICE} by HTTP, the others by MQTT")
        for edge, names in ((self.shop, SHOP_DEVICES), (self.greenhouse, GREENHOUSE_DEVICES)):
            with uninterrupted():
                self._devices.append(DeviceProcess(self._directory, edge, names, DEVICE_RATE))
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
                counts_at_hub = self._show_hub(bars, self._count_messages())
                self._follow_pipeline(counts_at_hub)
                fractions = [acked / total if total else 0.0 for acked, total in counts]
                faults = [fault for fault in faults if not fault(fractions)]
                if all(0 < total == acked for acked, total in counts) and not faults:
                    break
                self._pause()
            self._drain(bars)

    @staticmethod
    def _count(devices: DeviceProcess) -> tuple[int, int]:
        """Return the number of acked messages and of all messages."""
        counts = devices.progress().values()
        return sum(acked for acked, _ in counts), sum(total for _, total in counts)

    def _count_messages(self) -> int:
        """Return the number of messages that edges pass on as they are."""
        totals = [devices.progress().items() for devices in self._devices]
        return sum(total for items in totals for name, (_, total) in items if name not in CSV_DEVICES)

    def _show_hub(self, bars: Bars, total: int) -> dict[str, tuple[int, int]]:
        counts = self.hub.counts()
        records, rows = counts.get(STREAM, (0, 0))
        bars.progress.update(bars.log, completed=records, total=total)
        bars.progress.update(bars.table, completed=rows, total=total)
        return counts

    def _cut_network(self) -> Callable[[list[float]], bool]:
        def step(fractions: list[float]) -> bool:
            if self._cut_at is None:
                if fractions[0] >= CUT_AT:
                    self._relay.cut()
                    self._cut_at = datetime.now(UTC)
                    self.console.print(f"[yellow]cut[/]   {self.shop.name}: no network; its devices continue")
                return False
            seconds = (datetime.now(UTC) - self._cut_at).total_seconds()
            if seconds >= CUT_SECONDS_MAX:
                raise FabricError(f"{PIPELINE} wrote no window of the outage; see {self._spark_log}")
            if seconds < CUT_SECONDS or self.hours.early is None:
                return False
            self._relay.restore()
            self.console.print(f"[green]back[/]  {self.shop.name}: the network is back after {seconds:.0f} s, and slow")
            return True

        return step

    def _follow_pipeline(self, counts: dict[str, tuple[int, int]]) -> None:
        """Start the pipeline once there are Spark and the stream, and tell of the window that the outage makes late."""
        spark = self._spark.session()
        if spark is not None and not self.hours.is_started and counts.get(STREAM, (0, 0))[0]:
            self.hours.start(spark)
            self.console.print(f"[green]up[/]    pipeline {PIPELINE} in Spark; its hours are {HOUR_S} s here")
        seen = self.hours.look(self._cut_at)
        if seen is not None:
            color, kind, word = ("yellow", "early", "incomplete")
            if seen is self.hours.whole:
                color, kind, word = ("green", "whole", "complete")
            moments = f"window {seen.start:%H:%M:%S} at {seen.at:%H:%M:%S}"
            self.console.print(f"[{color}]{kind}[/] {moments}: {word}, {seen}", highlight=False)

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
            self._follow_pipeline(counts)
            if not behind and all(counts.get(name) == (end, end) for name, end in ends.items()):
                self._complete(counts)
                return
            self._pause()
        raise FabricError(f"not everything arrived within {DRAIN_TIMEOUT_S:.0f} s; see the logs in {self._directory}")

    def _complete(self, counts: dict[str, tuple[int, int]]) -> None:
        """Wait until the pipeline has written every window as complete, and end it."""
        deadline = time.monotonic() + COMPLETE_TIMEOUT_S
        while not (self.hours.is_done(counts[STREAM][0]) and self.hours.whole):
            if time.monotonic() >= deadline:
                raise FabricError(
                    f"not all windows were complete within {COMPLETE_TIMEOUT_S:.0f} s; see {self._spark_log}"
                )
            self._follow_pipeline(counts)
            self._pause()
        self.hours.stop()

    @property
    def _spark_log(self) -> Path:
        return self._directory / "spark.log"

    def prove(self) -> bool:
        """Run the Spark job and the audits. Return whether everything agrees."""
        from spark_sinks import read
        from weft.proofs.audit.audit import audit
        from weft.storage.object_store import open_store

        with self.console.status("Spark: statistics per device and hour"):
            statistics = hourly_statistics(read(self._spark.session(), STREAM, store=self.hub.store))
        show_statistics(self.console, statistics)
        with self.console.status("Audit: every lane, record and row"):
            store = open_store(self.hub.store)
            audits = [asyncio.run(audit(store, "default", stream)) for stream in (STREAM, THINNED_STREAM)]
        acked = {name: count for devices in self._devices for name, (count, _) in devices.progress().items()}
        again = sum(devices.again.get(AMQP_DEVICE, 0) for devices in self._devices)
        good = [
            show_hours(self.console, self.hours, audits[0].total("records")),
            show_sent(self.console, acked, again, statistics, audits),
            show_audits(self.console, audits, self.hub.complete_up_to()),
        ]
        return all(good)

    def how_to_look_around(self) -> None:
        """Print commands for looking around while everything runs on."""
        self.shop.stop()
        self.shop.point_link_at(self.hub.port)  # the relay that plays the network ends with this process
        self.shop.start()
        processes = (self.hub, self.shop, self.greenhouse)
        programs = Path(sys.executable).parent
        show = f'read(session(), "{STREAM}", store="{self.hub.store}", columns="device,_time,_seq").show()'
        where = f"machine = '{SHOP_DEVICES[1]}'"
        columns = '["window_start", "machine", "records", "mean", "_complete"]'
        windows = f'print(DeltaTable("{self.hours.table}").to_pandas(columns={columns}).sort_values("window_start"))'
        settings = " ".join(f"--set {shlex.quote(each)}" for each in self.hours.settings)
        self.console.print(
            f"""
Everything is left running in {self._directory}. See the hub in a browser: {self.hub.url}/console
  curl {self.hub.url}/v1/streams/{STREAM}/completeness
  curl {self.shop.url}/status
  mosquitto_pub -p {self.shop.mqtt_port} -q 1 -t sensors/me/telemetry -m hello     # or any MQTT client
  curl -d hello http://127.0.0.1:{self.shop.post_port}/v1/streams/{STREAM}/sensors/me/telemetry
  {programs}/weft edge status {self.shop.config_path}
  {programs}/weft audit {STREAM} --store {self.hub.store}
  {programs}/weft edge tail {self.shop.config_path} {THINNED_STREAM}
  {programs}/python -c 'from spark_sinks import *; {show}'
  {programs}/python -c 'from deltalake import *; {windows}'
  {programs}/weft trace --store {self.hub.store} --table {self.hours.table} --where "{where}" --rows 1 --records 5
  {programs}/weft spark run {PIPELINE} {settings}
Stop it with: kill {" ".join(str(service.pid) for service in processes)}; remove it with: rm -r {self._directory}""",
            soft_wrap=True, highlight=False, markup=False,
        )  # fmt: skip

    def stop(self) -> None:
        """End the pipeline and every process."""
        self._spark.finish(SPARK_START_S_MAX)
        self.hours.stop()
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
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, demo.interrupt)
    try:
        good = _run(demo, directory)
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


def _run(demo: Demo, directory: Path) -> bool:
    from spark_sinks.runtime.waiting import stderr_to

    started = time.monotonic()
    # The JVM keeps the stderr it is started with, and has much to say; so has Spark's Python side when interrupted.
    with stderr_to(directory / "spark.log"):
        demo.start()
        demo.replay()
        good = demo.prove()
    if demo.interrupted:
        raise KeyboardInterrupt
    verdict = "[green]Everything agrees.[/]" if good else "[red]The counts do not agree.[/]"
    demo.console.print(f"{verdict} Took {time.monotonic() - started:.0f} s.")
    return good
