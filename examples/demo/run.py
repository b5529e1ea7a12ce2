"""The demo: real sensor data through two edge nodes and a hub, with a cut network, a killed edge and an audit.

`./run demo` runs it. Whatever is Weft here is a `weft` command, as a reader would give it: nodes, pipeline, SQL, audit.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from deltalake import DeltaTable
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from examples.demo.devices import AMQP_DEVICE, CSV_DEVICES, HTTP_DEVICE, Device, device
from examples.demo.fabric import WEFT, DemoHub, Edge, FabricError, Relay

STREAM = "telemetry"
RAW_STREAM = "readings"
"""Stream that stays at the edges."""
THINNED_STREAM = "temperature"
"""Stream derived from it, for the hub."""
THINNED = f"""\
  {RAW_STREAM}:
    from: "series/{{device}}/temperature"
    payload: json
    replicate: false
    retain: {{time: 1h}}
  {THINNED_STREAM}:
    from_stream: {RAW_STREAM}
    functions:
      - where: "data['temp'] > -273"
      - deadband: {{field: data.temp, delta: 2.0}}
"""
"""Streams of readings that stay at the edge, but for the points that the hub gets."""
PROMPT_LINK = """\
    mark_interval: 1s
    retry_max: 1s
"""
PROMPT_HUB = "mark_interval: 1s\n"
"""Settings by which windows are complete, and an outage is over, while a person looks on."""
SHOP_DEVICES = ("machine-7", "iot-device-01")
GREENHOUSE_DEVICES = ("iot-device-02", "iot-device-03", "office")
DEVICE_RATE = 1500.0
"""Maximum messages per second and device: fast enough for a short demo, slow enough to see the faults bite."""
CUT_AT = 0.25
"""Fraction of the first edge's messages after which its network is cut."""
CUT_S = 5.0
"""Shortest time of the cut, which lasts until the pipeline has written a window without the edge: Spark needs a while
to start."""
CUT_S_MAX = 1200.0
"""Time after which a demo without such a window fails. Spark needs 17 seconds of processor time for it, which on two
cores that 25 processes share took more than five minutes."""
KILL_AT = 0.45
"""Fraction of the second edge's messages after which it is killed."""
DRAIN_S_MAX = 600.0
"""Time after which a demo fails that has not everything at the hub and in complete windows."""
POLL_S = 0.2
STOP_S_MAX = 3.0
"""Longest wait for the end of a pipeline that is stopped: a person who pressed Ctrl-C waits for it."""
END_S_MAX = 120.0
"""The same at the end of its work. Java that is killed leaves files in the machine's temporary folder."""

PIPELINE = "machine-hours"
HOUR_S = 2
"""Length of a window in seconds. The devices' day is replayed in less than 20 seconds, so two stand for some hours."""
GRACE_S = 2
"""Seconds after which a window is written without what is missing."""
LOOK_S = 0.5
"""Time between two looks at the pipeline's table."""
# The demo is over before the compiler of long runs pays: without it, and with a collector in one thread, the first
# window takes 17 seconds of CPU from Spark's start on, and 30 with Spark's own settings.
SPARK = (
    "--master",
    "local[2]",
    "--conf",
    "spark.sql.shuffle.partitions=2",
    "--conf",
    "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
)
STATISTICS = f"""\
WITH readings AS (
    SELECT device, get_json_object(text, '$.n') AS n, CAST(get_json_object(text, '$.data.temp') AS DOUBLE) AS temp,
        date_trunc('HOUR', timestamp_seconds(CAST(get_json_object(text, '$.ts') AS DOUBLE))) AS hour
    FROM (SELECT device, CAST(payload AS STRING) AS text FROM weft.{STREAM})
)
SELECT device, date_format(hour, 'yyyy-MM-dd HH:mm') AS hour, count(DISTINCT n) AS n,
    min(temp) AS lowest, avg(temp) AS mean, max(temp) AS highest
FROM readings GROUP BY device, hour ORDER BY device, hour"""
"""Statement that counts the different messages of every device and hour, and measures their temperature."""
HOURS_SHOWN = 2
"""Hours per device in the printed table; the statement computes all of them."""
HOURS_MAX = 1000

Check = tuple[str, int, str, bool | None]
"""(what, count, note, whether it is as it must be)."""


class Seen(NamedTuple):
    """A window as the pipeline's table had it at a moment."""

    start: datetime
    at: datetime
    records: int
    devices: int

    def __str__(self) -> str:
        """Return the figures as text."""
        return f"{self.records:,} records of {self.devices} devices"


class SparkCommand:
    """A `weft spark` command in the background. Its output goes to a file, Spark's own lines to `spark.log`."""

    def __init__(self, directory: Path, name: str, *arguments: str) -> None:
        self._name = name
        self.output = directory / f"{name}.out"
        self._log = directory / f"{name}.log"
        log = ("--spark-log", str(directory / "spark.log"))
        with self.output.open("wb") as output, self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*WEFT, "spark", *arguments, *SPARK, *log], stdout=output, stderr=errors, start_new_session=True
            )

    def has_ended(self) -> bool:
        """Return whether the command is done.

        Raises:
            FabricError: it failed.
        """
        status = self._process.poll()
        if status:
            raise FabricError(f"{self._name} failed: {self._log.read_text().strip()}; see spark.log beside {self._log}")
        return status is not None

    def stop(self, within_s: float = STOP_S_MAX) -> None:
        """End the command, and its Java with it, which takes its temporary files along if it has the time."""
        self._process.terminate()
        with contextlib.suppress(ProcessLookupError):  # the group is gone
            # What was killed ends soon, and not at once: its files are to be removed after it.
            for number, wait_s in ((0, within_s), (signal.SIGKILL, STOP_S_MAX)):
                deadline = time.monotonic() + wait_s
                while time.monotonic() < deadline:
                    self._process.poll()
                    os.killpg(self._process.pid, number)
                    time.sleep(0.1)
        self._process.wait()


class MachineHours:
    """The pipeline's table as any reader sees it, and what was seen of it while one edge was cut off."""

    def __init__(self, directory: Path, store: str, edges: Sequence[str]) -> None:
        """Take the store, and the names of the edges whose word a complete window needs."""
        self.table = str(directory / PIPELINE)
        settings = (
            f"source.store={store}",
            f"source.stream={STREAM}",
            "source.schema.fields={machine: {type: string, from: device}, temperature: {type: float, from: data.temp}}",
            f"steps[1].window.every={HOUR_S}s",
            f"complete.edges=[{', '.join(edges)}]",
            f"complete.grace={GRACE_S}s",
            f"sink.delta.path={self.table}",
            "trigger=1s",
            f"checkpoint={self.table}-checkpoint",
        )
        self.command = ["run", PIPELINE, "--no-check", *(word for each in settings for word in ("--set", each))]
        self.early: Seen | None = None
        """First window after the cut, as it was written without the edge that is cut off."""
        self.whole: Seen | None = None
        """The same window once it was complete."""
        self.late: set[datetime] = set()
        """Windows that were seen incomplete."""
        self.rows: list[dict[str, Any]] = []
        """Rows of the table, as last seen."""
        self._version = -1
        self._look_at = 0.0

    def look(self, cut_at: datetime | None, others: Collection[str]) -> Seen | None:
        """Read the table again if it has changed. Return ``early`` or ``whole``, once, when it has come.

        Args:
            cut_at: time since when an edge is cut off; None before.
            others: devices of other edges that the window ``early`` has to have. One of those edges is killed, too,
                and a window without its devices would tell of two outages.
        """
        if time.monotonic() < self._look_at or not DeltaTable.is_deltatable(self.table):
            return None
        self._look_at = time.monotonic() + LOOK_S
        table = DeltaTable(self.table)
        if table.version() != self._version:
            self._version = table.version()
            columns = ["window_start", "machine", "_complete", "records"]
            self.rows = table.to_pyarrow_table(columns=columns).to_pylist()
        incomplete = {row["window_start"] for row in self.rows if not row["_complete"]}
        self.late |= incomplete
        if self.early is None:
            after = [] if cut_at is None else sorted(start for start in incomplete if start >= cut_at)
            if (
                first := next((start for start in after if self._machines(start).issuperset(others)), None)
            ) is not None:
                self.early = self._seen(first)
                return self.early
        elif self.whole is None and self.early.start not in incomplete:
            self.whole = self._seen(self.early.start)
            return self.whole
        return None

    def _machines(self, start: datetime) -> set[str]:
        return {row["machine"] for row in self.rows if row["window_start"] == start}

    def _seen(self, start: datetime) -> Seen:
        counts = [row["records"] for row in self.rows if row["window_start"] == start]
        return Seen(start, datetime.now(UTC), sum(counts), len(counts))

    @property
    def records(self) -> int:
        """Return the number of records in all windows."""
        return sum(row["records"] for row in self.rows)

    @property
    def incomplete(self) -> int:
        """Return the number of rows of windows that are not complete."""
        return sum(not row["_complete"] for row in self.rows)


class Demo:
    """One run of the demo in one directory."""

    def __init__(self, directory: Path, console: Console) -> None:
        self.console = console
        self.hub = DemoHub(directory, PROMPT_HUB)
        self._relay = Relay(self.hub.port)
        self.shop = Edge(directory, "press-shop", self._relay.port, THINNED, PROMPT_LINK)
        self.greenhouse = Edge(directory, "greenhouse", self.hub.port, THINNED, PROMPT_LINK)
        self._nodes = (self.hub, self.shop, self.greenhouse)
        self._hours = MachineHours(directory, self.hub.store, (self.shop.name, self.greenhouse.name))
        self._directory = directory
        self._devices = {
            edge: [device(name, edge.ports, DEVICE_RATE) for name in names]
            for edge, names in ((self.shop, SHOP_DEVICES), (self.greenhouse, GREENHOUSE_DEVICES))
        }
        self._all_devices = [each for devices in self._devices.values() for each in devices]
        self._spark: SparkCommand | None = None
        self._cut_at: datetime | None = None
        self._is_back = self._is_killed = False
        self._interrupted = False

    def interrupt(self, *_: object) -> None:
        """End the demo at its next step (for ``signal.signal``): at any other, a process could start unseen."""
        self._interrupted = True

    def _pause(self) -> None:
        for each in self._all_devices:
            if each.error is not None:
                raise FabricError(f"the device {each.name} failed: {each.error!r}") from each.error
        if not self._interrupted:
            time.sleep(POLL_S)
        if self._interrupted:
            raise KeyboardInterrupt

    def start(self) -> None:
        """Start the hub, both edges and the devices."""
        self.console.print(f"Everything is in {self._directory}", soft_wrap=True, highlight=False)
        for node in self._nodes:
            node.start()
            self.console.print(f"[green]up[/]    {node.name} (process {node.pid})")
            if node is self.hub:
                page = f"{self.hub.url}/console#/streams/{STREAM}?window=5"
                self.console.print(f"[cyan]see[/]   {page}", soft_wrap=True)
                self.console.print("      in a browser: outage, backlog, completeness")
            self._pause()
        self.console.print(f"[green]up[/]    devices: {AMQP_DEVICE} by AMQP, {HTTP_DEVICE} by HTTP, the others by MQTT")
        for each in self._all_devices:
            threading.Thread(target=each.run, name=each.name, daemon=True).start()

    def replay(self) -> None:
        """Watch the devices through both faults, until everything is at the hub, and in complete windows."""
        columns = (
            TextColumn("{task.description:20}"),
            BarColumn(),
            TextColumn("{task.completed:>6,.0f} of {task.total:,.0f}", justify="right"),
            TimeElapsedColumn(),
        )
        deadline = None
        with Progress(*columns, console=self.console) as progress:
            acked = {edge: progress.add_task(f"{edge.name}: acked", total=0) for edge in self._devices}
            at_hub = [progress.add_task(f"hub: in the {place}", total=0) for place in ("log", "table")]
            while True:
                done = [self._show_acked(progress, acked[edge], devices) for edge, devices in self._devices.items()]
                counts = self.hub.counts()
                is_sent = min(done) == 1 and self._is_back and self._is_killed
                ends = self._ends() if is_sent else {STREAM: sum(len(each.payloads) for each in self._for_the_hub())}
                for task, count in zip(at_hub, counts.get(STREAM, (0, 0)), strict=True):
                    progress.update(task, completed=count, total=ends[STREAM])
                self._follow_pipeline(counts)
                self._cut_network(done[0])
                self._kill_edge(done[1])
                if is_sent:
                    deadline = deadline or time.monotonic() + DRAIN_S_MAX
                    if self._is_everywhere(counts, ends):
                        return
                    if time.monotonic() >= deadline:
                        raise FabricError(f"not everything arrived in {DRAIN_S_MAX:.0f} s; see {self._directory}/*.log")
                self._pause()

    def _for_the_hub(self) -> list[Device]:
        return [each for each in self._all_devices if each.name not in CSV_DEVICES]

    @staticmethod
    def _show_acked(progress: Progress, task: TaskID, devices: Sequence[Device]) -> float:
        """Return the fraction of the devices' messages that are acknowledged."""
        acked, messages = sum(each.acked for each in devices), sum(len(each.payloads) for each in devices)
        progress.update(task, completed=acked, total=messages)
        return acked / messages

    def _cut_network(self, fraction: float) -> None:
        if self._cut_at is None:
            if fraction >= CUT_AT:
                self._relay.cut()
                self._cut_at = datetime.now(UTC)
                self.console.print(f"[yellow]cut[/]   {self.shop.name}: no network; its devices continue")
            return
        seconds = (datetime.now(UTC) - self._cut_at).total_seconds()
        if not self._is_back and seconds >= CUT_S_MAX:
            raise FabricError(f"{PIPELINE} wrote no window of the outage; see {self._directory}/spark.log")
        if not self._is_back and seconds >= CUT_S and self._hours.early is not None:
            self._relay.restore()
            self._is_back = True
            self.console.print(f"[green]back[/]  {self.shop.name}: the network is back after {seconds:.0f} s, and slow")

    def _kill_edge(self, fraction: float) -> None:
        if fraction >= KILL_AT and not self._is_killed:
            self._is_killed = True
            self.greenhouse.kill()
            self.console.print(f"[yellow]kill[/]  {self.greenhouse.name}: SIGKILL in mid-stream")
            self.greenhouse.start()
            self.console.print(f"[green]up[/]    {self.greenhouse.name} again (process {self.greenhouse.pid})")

    def _follow_pipeline(self, counts: Mapping[str, tuple[int, int]]) -> None:
        """Start the pipeline once there is the stream, and tell of the window that the outage makes late."""
        if self._spark is None:
            if counts.get(STREAM, (0, 0))[0]:
                self._spark = SparkCommand(self._directory, PIPELINE, *self._hours.command)
                self.console.print(f"[green]up[/]    pipeline {PIPELINE} in Spark; its hours are {HOUR_S} s here")
            return
        self._spark.has_ended()
        # A device that had sent all of its messages before is in no window after the cut.
        are_sending = any(each.acked < len(each.payloads) for each in self._all_devices)
        others = [each for each in GREENHOUSE_DEVICES if are_sending and each not in CSV_DEVICES]
        seen = self._hours.look(self._cut_at, others)
        if seen is not None:
            is_early = seen is self._hours.early
            kind, word = ("[yellow]early[/]", "incomplete") if is_early else ("[green]whole[/]", "complete")
            moments = f"window {seen.start:%H:%M:%S} at {seen.at:%H:%M:%S}"
            self.console.print(f"{kind} {moments}: {word}, {seen}", highlight=False)

    def _ends(self) -> dict[str, int]:
        """Return the number of records of each stream at both edges."""
        edges = [edge.status()["streams"] for edge in self._devices]
        return {name: sum(edge[name]["durable_end"] for edge in edges) for name in (STREAM, THINNED_STREAM)}

    def _is_everywhere(self, counts: Mapping[str, tuple[int, int]], ends: Mapping[str, int]) -> bool:
        """Return whether functions have seen all readings, tables have all rows, and each window is complete."""
        behind = sum(edge.status()["functions"][THINNED_STREAM]["lag_records"] for edge in self._devices)
        if behind or any(counts.get(name) != (end, end) for name, end in ends.items()):
            return False
        return self._hours.whole is not None and not self._hours.incomplete and self._hours.records == ends[STREAM]

    def prove(self) -> bool:
        """Show what Spark counted and what the audits find. Return whether everything agrees."""
        assert self._spark is not None
        self._spark.stop(END_S_MAX)
        sql = ("sql", self.hub.store, STATISTICS, "--json", "--rows", str(HOURS_MAX))
        self._spark = command = SparkCommand(self._directory, "statistics", *sql)
        with self.console.status("Spark: statistics per device and hour"):
            while not command.has_ended():
                self._pause()
        statistics = [json.loads(line) for line in command.output.read_text().splitlines()]
        show_statistics(self.console, statistics)
        audits = {stream: self._audit(stream) for stream in (STREAM, THINNED_STREAM)}
        good = [
            show_hours(self.console, self._hours, total(audits[STREAM], "records")),
            show_sent(self.console, self._all_devices, statistics, audits),
        ]
        complete_up_to = self.hub.complete_up_to()
        for stream, audit in audits.items():
            self.console.print(f"\n[cyan]weft audit {stream}[/]")
            shown = subprocess.run(self._audit_of(stream), check=False, start_new_session=True)
            moment = complete_up_to[stream]
            until = "to no known moment" if moment is None else f"to {moment[:19]}Z"
            self.console.print(f"{stream} is complete up {until}", soft_wrap=True, highlight=False)
            good.append(shown.returncode == 0 and moment is not None)
            good.append(not any(lane["gaps"] or lane["holes"] for lane in audit["lanes"]))
        return all(good)

    def _audit_of(self, stream: str) -> list[str]:
        return [*WEFT, "audit", stream, "--store", self.hub.store]

    def _audit(self, stream: str) -> Any:
        command = [*self._audit_of(stream), "--json"]
        done = subprocess.run(command, check=False, stdout=subprocess.PIPE, start_new_session=True)
        self._pause()
        return json.loads(done.stdout)

    def how_to_look_around(self) -> None:
        """Print commands for looking around while the nodes run on."""
        self.shop.stop()
        self.shop.point_link_at(self.hub.port)  # the relay that plays the network ends with this process
        self.shop.start()
        programs = Path(sys.executable).parent
        show = f'read(session(), "{STREAM}", store="{self.hub.store}", columns="device,_time,_seq").show()'
        where = f"machine = '{SHOP_DEVICES[1]}'"
        columns = '["window_start", "machine", "records", "mean", "_complete"]'
        table = self._hours.table
        windows = f'print(DeltaTable("{table}").to_pandas(columns={columns}).sort_values("window_start"))'
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
  {programs}/weft trace --store {self.hub.store} --table {table} --where "{where}" --rows 1 --records 5
  {programs}/weft spark {shlex.join(self._hours.command)}
Stop it with: kill {" ".join(str(node.pid) for node in self._nodes)}; remove it with: rm -r {self._directory}""",
            soft_wrap=True,
            highlight=False,
            markup=False,
        )

    def stop(self, keep: bool) -> None:
        """End the command of Spark and, without ``keep``, the nodes."""
        if self._spark is not None:
            self._spark.stop()
        for node in () if keep else reversed(self._nodes):
            node.stop()
        self._relay.close()


def total(audit: Any, count: str) -> int:
    """Return the sum of a count over the lanes of an audit."""
    return sum(lane[count] for lane in audit["lanes"])


def show_statistics(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the first hours of each device."""
    table = Table(
        title="Spark: temperature per device and hour",
        caption=f"{len(rows):,} rows; the first {HOURS_SHOWN} of each device are shown",
    )
    table.add_column("device")
    table.add_column("hour (UTC)")
    for name in ("messages", "lowest", "mean", "highest"):
        table.add_column(name, justify="right")
    for name in dict.fromkeys(row["device"] for row in rows):
        for row in [each for each in rows if each["device"] == name][:HOURS_SHOWN]:
            measured = (f"{row[each]:.1f}" for each in ("lowest", "mean", "highest"))
            table.add_row(name, row["hour"], str(row["n"]), *measured)
    console.print(table)


def show_hours(console: Console, hours: MachineHours, records: int) -> bool:
    """Print the pipeline's table, and return whether it is complete, with all records of the hub's log."""
    early, whole, rows = hours.early, hours.whole, hours.rows
    assert early is not None
    assert whole is not None
    checks: list[Check] = [
        ("windows", len({row["window_start"] for row in rows}), f"'hours' of {HOUR_S} s, by arrival", None),
        ("  seen incomplete", len(hours.late), "written before all had come", None),
        (f"  {early.start:%H:%M:%S} incomplete", early.records, f"records of {early.devices} devices", None),
        (
            f"  {whole.start:%H:%M:%S} complete",
            whole.records,
            f"records of {whole.devices} devices",
            whole.records > early.records,
        ),
        ("rows: window and device", len(rows), "", None),
        ("  incomplete now", hours.incomplete, "must be 0", hours.incomplete == 0),
        ("records in them", hours.records, "must equal the hub's log", hours.records == records),
    ]
    return _show_checks(console, "Machine hours", checks)


def show_sent(
    console: Console, devices: Sequence[Device], statistics: Sequence[Mapping[str, Any]], audits: Mapping[str, Any]
) -> bool:
    """Print the messages that devices got an ack for, beside what the hub has of them. Return whether all is there."""
    checks: list[Check] = []
    different = 0
    for each in devices:
        if each.name in CSV_DEVICES:
            checks.append((each.name, each.acked, "by MQTT, stay at the edge", None))
        else:
            protocol = {AMQP_DEVICE: "AMQP", HTTP_DEVICE: "HTTP"}.get(each.name, "MQTT")
            there = sum(row["n"] for row in statistics if row["device"] == each.name)
            different += there
            checks.append((each.name, each.acked, f"by {protocol}, {there:,} in the table", there == each.acked))
    messages, points = (total(audits[stream], "table_records") for stream in (STREAM, THINNED_STREAM))
    copies, readings = messages - different, sum(each.acked for each in devices if each.name in CSV_DEVICES)
    may_be = sum(each.again for each in devices) + total(audits[STREAM], "resent")
    made = sum(count for lane in audits[THINNED_STREAM]["lanes"] for count in lane["origins"].values())
    checks += [
        ("sent again, stored twice", copies, f"{may_be:,} were sent again", 0 <= copies <= may_be),
        ("points of what stays", points, f"{points / readings:.1%}, by a function", 0 < points == made),
    ]
    return _show_checks(console, "Acked to devices", checks)


def _show_checks(console: Console, title: str, checks: Sequence[Check]) -> bool:
    """Print checks in a table, and return whether none is wrong."""
    marks = {None: "", True: "[green]ok[/]", False: "[red]WRONG[/]"}
    table = Table("what", title=title)
    table.add_column("count", justify="right")
    table.add_column("")
    table.add_column("")
    for what, count, note, good in checks:
        table.add_row(what, f"{count:,}", escape(note), marks[good])
    console.print(table)
    return all(good is not False for *_, good in checks)


def main() -> int:
    """Run the demo. Return the exit status: 0 only when devices, log and table agree."""
    parser = argparse.ArgumentParser(prog="./run demo", description="The whole fabric on this machine, audited.")
    parser.add_argument("--keep", action="store_true", help="leave the nodes running, and print how to look around")
    keep = parser.parse_args().keep
    console = Console()
    directory = Path(tempfile.mkdtemp(prefix="weft-demo-"))
    demo, good, started = Demo(directory, console), False, time.monotonic()
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, demo.interrupt)
    try:
        demo.start()
        demo.replay()
        good = demo.prove()
        verdict = "[green]Everything agrees.[/]" if good else "[red]The counts do not agree.[/]"
        console.print(f"{verdict} Took {time.monotonic() - started:.0f} s.")
        if good and keep:
            demo.how_to_look_around()
    except KeyboardInterrupt:
        console.print("[yellow]Interrupted.[/] Stopping every process ...")
    except Exception as error:
        good = False
        with contextlib.suppress(OSError):  # a full disk may be what is wrong
            (directory / "demo.log").write_text(traceback.format_exc())
        console.print("[red]The demo failed:[/]", end=" ")
        console.print(str(error) or repr(error), markup=False, highlight=False, soft_wrap=True)
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)  # a second Ctrl-C would leave processes behind
        demo.stop(keep=good and keep)
    if not good:
        console.print(f"The files and logs are in {directory}", soft_wrap=True, highlight=False)
    elif not keep:
        shutil.rmtree(directory, ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
