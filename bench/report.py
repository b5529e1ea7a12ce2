"""Write the tables and the picture of docs/benchmarks.md from the newest results of each benchmark.

    python -m bench.report

The prose of the page is written by hand. What stands between ``<!-- results: NAME -->`` and ``<!-- end -->``
is written here.
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.common import RESULTS
from bench.markdown import Facts, table
from bench.mqtt.lines import LABELS
from bench.spark.lines import spark, spark_kafka

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"
PICTURE = PAGE.parent / "pictures" / "benchmarks.svg"
PAGE_WIDTH = 120
BLOCK = re.compile(r"(<!-- results: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
GROUP_TITLES = {
    "shapes": "QoS 1",
    "rates": "fixed rates",
    "qos0": "QoS 0",
    "qos2": "QoS 2",
    "tls": "TLS",
    "delivery": "MQTT 5, shared topic, delivery",
}


def newest(name: str) -> tuple[str, Facts] | None:
    """Date and contents of the newest results of a benchmark."""
    paths = sorted(RESULTS.glob(f"{name}-????-??-??.json"))
    if not paths:
        return None
    return paths[-1].stem[len(name) + 1 :], json.loads(paths[-1].read_text())


def where(date: str, machine: Facts) -> str:
    """Return a line that says when and on what machine it was measured."""
    return (
        f"{date}: {machine['cpu']}, {machine['cores']} cores, {machine['memory_bytes'] / (1 << 30):.0f} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}."
    )


def ingest(results: Facts) -> list[str]:
    """Return the table of messages by connections and window."""
    rows = []
    for point in results["points"]:
        ours, theirs = point["weft"], point["mosquitto"]
        ratio = f"{ours['messages_per_s'] / theirs['messages_per_s']:.2f}" if theirs else "-"
        cpu = f"{theirs['server_us_per_message']:.2f}" if theirs else "-"
        rows.append(
            (point["conns"], point["window"], ratio, f"{ours['server_us_per_message']:.2f}", cpu, ours["ack_ms_p99"])
        )
    titles = ("connections", "window", "ratio", "Weft CPU us/message", "Mosquitto CPU us/message", "Weft ack p99 ms")
    return [f"Mosquitto: {results['mosquitto']}.", "", *table(titles, rows)]


def _verdict(target: Facts) -> str:
    """Return a target with its bound and whether it is met."""
    bound = f"{LABELS[target['figure']]} {'>=' if target['at_least'] else '<='} {target['bound']:g}"
    met = {True: "met", False: "**not met**", None: "not compared"}
    return f"{bound}: {met[target['met']]}"


def _pair(case: Facts, name: str, layout: str) -> str:
    """Return Weft's figure and Mosquitto's."""
    return " / ".join(format(case[each][name], layout) if case[each] else "-" for each in ("weft", "mosquitto"))


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mqtt_row(case: Facts) -> tuple[str, ...]:
    """Return one case; at a fixed rate the share of a core and what was written say more than the rate."""
    generator_bound = any(case[each] and case[each]["generator_bound_rounds"] for each in ("weft", "mosquitto"))
    fixed = "r" in case["options"]
    return (
        case["title"] + (" *" if generator_bound else ""),
        "-" if fixed else _ratio(case["rate_ratio"]),
        _pair(case, "server_us_per_message", ".1f"),
        _ratio(case["cpu_ratio"]),
        _pair(case, "server_cpu", ".3f"),
        _pair(case, "ack_ms_p50", ".2f"),
        _pair(case, "ack_ms_p99", ".2f"),
        f"{case['weft']['write_amplification']:.2f}",
        "; ".join(map(_verdict, case["targets"])),
    )


def _idle_table(idle: Facts) -> list[str]:
    rows = [
        ("memory of each", _pair(idle, "bytes_each", ",d"), "under 8,192 bytes"),
        ("accepted per second", _pair(idle, "connections_per_s", ",d"), "at least 1,000"),
    ]
    title = f"{idle['weft']['connections']:,} idle connections"
    return table((title, "Weft / Mosquitto", f"target: {'met' if idle['met'] else '**not met**'}"), rows)


def mqtt(results: Facts) -> list[str]:
    """Return every case of the broker, by groups, with its targets."""
    titles = (
        "rate ratio",
        "CPU us/message",
        "CPU ratio",
        "of a core",
        "ack p50 ms",
        "ack p99 ms",
        "written",
        "targets",
    )
    fsync = results["fsync_ms"]
    lines = [
        f"{results['mosquitto']}. {results['rounds']} rounds of {results['seconds']:g} s. "
        f"One fsync of 16 KiB: {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms."
    ]
    for group in dict.fromkeys(case["group"] for case in results["cases"]):
        rows = [_mqtt_row(case) for case in results["cases"] if case["group"] == group]
        lines += ["", *table((GROUP_TITLES[group], *titles), rows)]
    return [*lines, "", *_idle_table(results["idle"])]


def hub(results: list[Facts]) -> list[str]:
    """Return the tables of batches from edges to the store, of idle links, and of large batches."""
    cases = {run["case"]: run for run in results}
    rows = [
        (
            name,
            f"{run['batches_per_s']:,}",
            run["us_per_batch"],
            f"{run['batches_per_core_s']:,}",
            run["hub_cores_used"],
            run["hub_memory_mb"],
        )
        for name in ("receive", "two-processes")
        if (run := cases[name])
    ]
    idle = cases["idle"]
    large = [
        (
            run["payloads"],
            f"{run['records_per_s'] / 1e6:.2f} M",
            run["payload_mb_per_s"],
            run["stored_mb_per_s"],
            run["hub_core_used"],
            run["hub_memory_mb"],
        )
        for payload in ("json", "random")
        if (run := cases["large"][payload])
    ]
    return [
        *table(("case", "batches/s", "us a batch", "batches/s a core", "cores used", "memory MB"), rows),
        "",
        f"{idle['links']:,} idle links with {idle['streams']} streams each: {idle['hub_cores_used']} of a core and "
        f"{idle['hub_memory_mb']} MB, {idle['kb_per_link']} kB a link.",
        "",
        *table(("large batches", "records/s", "payload MB/s", "stored MB/s", "of the hub's core", "memory MB"), large),
        *(["", _bill(cases["costs"])] if "costs" in cases else []),
    ]


def _bill(costs: Facts) -> str:
    busy, idle = costs["busy"], costs["idle"]
    return (
        f"A busy month of requests on a bucket costs {busy['usd_a_month']} US dollars, {busy['usd_chunks, write']} of "
        f"them for chunks. In it, all {costs['shards']} shards commit each {costs['commit_interval_s']:g} s, with "
        f"tables of {busy['streams']} streams every {costs['table_interval_s']:g} s. An idle month with linked edges "
        f"of {idle['streams']:,} streams costs {idle['usd_a_month']}. The target of both is {costs['target_usd']:g}."
    )


def tables(results: list[Facts]) -> list[str]:
    """Return what the table step costs for each kind of payload."""
    rows = [(run["payload"], f"{run['records_per_s'] / 1e6:.2f} M", run["time_against_bytes"]) for run in results]
    return table(("payload", "records/s of a core", "time beside bytes"), rows)


def durability(results: Facts) -> list[str]:
    """Return the table of bytes on the device for each byte of payload."""
    rows = []
    for case in results["cases"]:
        ratios = case["amplification"]
        rows.append(
            (
                f"{case['rate']:,}",
                case["payloads"],
                "zstd" if case["compression"] else "none",
                case["commit_interval"],
                f"+{case['sync_ms']} ms" if case.get("sync_ms") else "",
                *("-" if ratios[key] is None else f"{ratios[key]:.2f}" for key in ("device", "log")),
                f"{case['messages'] / max(case['commits'], 1):.1f}",
            )
        )
    titles = (
        "messages/s",
        "payloads",
        "compression",
        "`commit_interval`",
        "sync",
        "device",
        "own count",
        "messages/sync",
    )
    lines = [f"{results['seconds']:g} s of load in each case, and at least 200 messages.", "", *table(titles, rows)]
    if opening := results.get("opening"):
        opened = [
            (title, f"{facts['bytes'] / (1 << 30):.1f} GiB in {facts['segments']} files", f"{facts['seconds']:.2f} s")
            for title, facts in (("a clean stop", opening["after_stop"]), ("SIGKILL", opening["after_kill"]))
        ]
        lines += ["", *table(("log opened after", "size", "time"), opened)]
    return lines


def functions(results: Facts) -> list[str]:
    """Return the tables of edge functions: the closed loop, the fixed rates, and where the time goes."""
    head = (
        f"{results['seconds']:g} s of load in each run; windows of {results['every']} over {results['keys']:,} keys; "
        f"load of the machine before: {results['load_before']:.1f}. {results['mosquitto']}."
    )
    rows = []
    for case in results["cases"]:
        closed = case["closed"]
        kept = f"{closed['kept']:.1%}" if "kept" in closed else "-"
        got = f"{closed['core']:.0%}" if "core" in closed else "-"
        figures = f"{closed['all_in_per_s']:,}", got, f"{closed['all_in_us']:.2f}", kept, closed["peak_rss_mib"]
        rows.append((case["title"], f"{closed['payload_bytes']:.0f}", *figures))
    if theirs := results["nothing_behind"]:
        rss_mib = round(theirs["server_peak_rss_kib"] / 1024)
        got, us = f"{theirs['server_cpu']:.0%}", f"{theirs['server_us_per_message']:.2f}"
        figures = f"{theirs['messages_per_s']:,.0f}", got, us, "-", rss_mib
        rows.append(("Mosquitto, nothing behind it", "", *figures))
    lines = [
        head,
        "",
        *table(("", "bytes", "messages/s, all in", "of the core", "CPU us/message", "kept", "peak MiB"), rows),
    ]
    fixed = [
        (
            case["title"],
            f"{rate['rate']:,}",
            f"{rate['server_cpu']:.0%}",
            f"{rate['ack_ms_p50']:.1f} / {rate['ack_ms_p99']:.1f}",
            f"{rate['behind_records']:,}",
            rate["peak_rss_mib"],
        )
        for case in results["cases"]
        for rate in case["rates"]
    ]
    titles = ("", "messages/s", "of the core", "ack p50 / p99 ms", "records behind at the end", "peak MiB")
    lines += ["", *table(titles, fixed)] if fixed else []
    for name, parts in results["breakdown"].items():
        title = next(case["title"] for case in results["cases"] if case["name"] == name)
        lines += [
            "",
            *table((f"{title}: part", "us of a message"), ((part, f"{us:.2f}") for part, us in parts.items())),
        ]
    return lines


def doors(results: Facts, rival: str) -> list[str]:
    """Return every case with a column for each server: messages a second, and processor time of each."""
    fsync = results["fsync_ms"]
    servers = list(dict.fromkeys(server for case in results["cases"] for server in case["servers"]))
    rows = [
        (
            case["title"],
            *(
                f"{found['messages_per_s']:,.0f} ({found['server_us_per_message']:.1f} us)" if found else "-"
                for found in map(case["servers"].get, servers)
            ),
            *(
                "-"
                if (found := case["servers"].get(server)) is None
                else f"{found['ack_ms_p50']:.1f} / {found['ack_ms_p99']:.1f}"
                for server in servers[:1]
            ),
        )
        for case in results["cases"]
    ]
    lines = [
        f"{results[rival]}. {results['rounds']} rounds of {results['seconds']:g} s; load of the machine before: "
        f"{results['load_before']:.1f}. One fsync of 16 KiB: {fsync['p50']:.2f} ms, p99 {fsync['p99']:.2f} ms.",
        "",
        *table(("messages/s (CPU of each)", *servers, f"{servers[0]}: ack p50 / p99 ms"), rows),
    ]
    targets = [
        (
            f"{case['title']}: {target['ours']} / {target['theirs']}",
            _ratio(target["value"]),
            _ratio(target["cpu"]),
            f"at least {target['bound']:g}: "
            + {True: "met", False: "**not met**", None: "not compared"}[target["met"]],
        )
        for case in results["cases"]
        for target in case["targets"]
    ]
    titles = ("", "rate", "by CPU of each message", "target of the rate")
    return [*lines, "", *table(titles, targets)] if targets else lines


PAIR_KINDS = {"alone": "none", "loopback": "on loopback", "line": "behind the line"}


def pair(results: Facts) -> list[str]:
    """Return the table of a node without and with a peer."""
    rows = [
        (
            row["load"].replace("x", " x "),
            PAIR_KINDS[row["kind"]],
            f"{row['messages_per_s']:,.0f}",
            f"{row['rate_ratio']:.2f}",
            f"{row['ack_ms_p50']:.2f}",
            f"{row['ack_ms_p99']:.2f}",
            f"{row['cpu_us']:.1f}",
            f"{row['copied_bytes_per_message']:.0f}",
            {True: "met", False: "**not met**", None: ""}[row.get("met")],
        )
        for row in results["rows"]
    ]
    titles = ("load", "peer", "messages/s", "ratio", "ack p50 ms", "p99 ms", "CPU us", "bytes to the peer", "target")
    return [
        f"The line delays each way by {results['line_ms']:g} ms. An fsync took {results['fsync_ms']:.2f} ms. An idle "
        f"pair takes {results['idle_share']:.1%} of a core, both nodes together.",
        "",
        *table(titles, rows),
    ]


SECTIONS: dict[str, Callable[[Any], list[str]]] = {
    "ingest": ingest,
    "mqtt": mqtt,
    "durability": durability,
    "pair": pair,
    "hub": hub,
    "tables": tables,
    "spark": spark,
    "spark_kafka": spark_kafka,
    "functions": functions,
    "amqp": lambda results: doors(results, "rabbitmq"),
    "http": lambda results: doors(results, "nginx"),
    "nats": lambda results: doors(results, "nats"),
}


# The picture at the head of the page: processor time of a message beside each peer's.

LOAD = "server_us_per_message"
LOG_FROM, LOG_TO = 1 / 16, 64.0
"""Ends of the axis. What lies beyond is drawn to the end, with its figure beside it."""
BAR, LEFT, WIDTH = 18, 440, 520


def shares() -> Iterator[tuple[str, str, float]]:
    """Yield name of a case, peer, and processor time of a message of Weft's by the peer's."""
    for name in ("mqtt", "nats", "amqp", "http"):
        found = newest(name)
        for case in [] if found is None else found[1]["results"]["cases"]:
            if "servers" not in case:
                if case["cpu_ratio"] and case["group"] in {"shapes", "rates"}:
                    yield f"MQTT {case['title']}", "Mosquitto, no sync", case["cpu_ratio"]
                continue
            ours = case["servers"].get("weft") or case["servers"]["weft queue"]
            for peer, theirs in case["servers"].items():
                if not peer.startswith("weft"):
                    title = f"{name.upper()} {case['title'].removeprefix('AMQP ')}"
                    yield title, peer, ours[LOAD] / theirs[LOAD]


def _across(ratio: float) -> float:
    """Return where on the axis a ratio is, in pixels."""
    within = min(max(ratio, LOG_FROM), LOG_TO)
    return LEFT + WIDTH * math.log(within / LOG_FROM) / math.log(LOG_TO / LOG_FROM)


def picture() -> str:
    """Return the picture: a bar to the left of 1 where Weft takes less processor time than the peer."""
    rows = list(shares())
    height, one = BAR * len(rows) + 50, _across(1.0)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 60} {height}" font-size="12" '
        'font-family="sans-serif">',
        f'<rect width="100%" height="{height}" fill="#fff"/>',
    ]
    for tick in (1 / 16, 1 / 4, 1, 4, 16, 64):
        at, label = _across(tick), f"{tick:g}" if tick >= 1 else f"1/{1 / tick:g}"
        color = "#333" if tick == 1 else "#ddd"
        lines += [
            f'<line x1="{at:.0f}" y1="26" x2="{at:.0f}" y2="{height - 8}" stroke="{color}"/>',
            f'<text x="{at:.0f}" y="18" text-anchor="middle" fill="#333">{label}</text>',
        ]
    for number, (case, peer, ratio) in enumerate(rows):
        top, at = 30 + BAR * number, _across(ratio)
        x, length, fill = min(at, one), abs(at - one), "#2a7f62" if ratio <= 1 else "#b5651d"
        beside = f'x="{at + 5:.0f}"' if ratio > 1 else f'x="{at - 5:.0f}" text-anchor="end"'
        lines += [
            f'<text x="{LEFT - 48}" y="{top + 12}" text-anchor="end" fill="#333">{case} / {peer}</text>',
            f'<rect x="{x:.1f}" y="{top + 2}" width="{max(length, 1):.1f}" height="{BAR - 5}" fill="{fill}"/>',
            f'<text {beside} y="{top + 13}" fill="#333">{ratio:.2g}</text>',
        ]
    return "\n".join([*lines, "</svg>", ""])


def block(name: str) -> str:
    """Return the lines of one benchmark."""
    found = newest(name)
    if found is None:
        return f"Not measured yet: `./run bench {name}`.\n"
    date, facts = found
    return "\n".join([where(date, facts["machine"]), "", *SECTIONS[name](facts["results"]), "", ""])


def render(page: str) -> str:
    """Return the page with new tables."""
    return BLOCK.sub(lambda match: match[1] + wrapped(block(match[2])) + match[3], page)


def wrapped(text: str) -> str:
    """Return text whose lines of prose are as long as the page's, and whose tables are as they were."""
    lines = text.splitlines()
    return "".join((line if line.startswith("|") else textwrap.fill(line, PAGE_WIDTH)) + "\n" for line in lines)


def main() -> None:
    """Write the page."""
    PAGE.write_text(render(PAGE.read_text()))
    PICTURE.write_text(picture())
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")


if __name__ == "__main__":
    main()
