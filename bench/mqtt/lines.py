"""Lines that the benchmark prints."""

from __future__ import annotations

from collections.abc import Iterable

from bench.generator import Figures
from bench.mqtt import idle
from bench.mqtt.compare import GENERATOR_CPU_MAX

FIGURES = ("rate_ratio", "cpu_ratio", "ack_ms_p99", "write_amplification")
OTHER_CORES_MAX = 0.2
"""Number of cores that other processes may use before a case is called disturbed."""
LABELS = {"rate_ratio": "rate", "cpu_ratio": "CPU", "ack_ms_p99": "p99 ms", "write_amplification": "written"}
HEAD = (
    f"{'(W: Weft, M: Mosquitto)':36}{'/s W':>10}{'/s M':>10}{'ratio':>7}{'core W':>8}{'core M':>8}{'us/msg W':>10}"
    f"{'us/msg M':>10}{'ratio':>7}{'p50 W':>8}{'p50 M':>8}{'p99 W':>8}{'p99 M':>8}{'written':>9}{'/commit':>8}"
    f"{'load W':>8}{'load M':>8}{'others':>8}  targets"
)


def pair(result: Figures, name: str, layout: str) -> list[str]:
    """Return the figure of Weft and of Mosquitto."""
    return [format(result[broker][name], layout) if result[broker] else "-" for broker in ("weft", "mosquitto")]


def verdicts(targets: Iterable[Figures]) -> str:
    """Return each target with whether it is met."""
    words = {True: "met", False: "MISSED", None: "not compared"}
    return ", ".join(
        f"{LABELS[each['figure']]} {'>=' if each['at_least'] else '<='} {each['bound']:g}: {words[each['met']]}"
        for each in targets
    )


def line(result: Figures) -> str:
    """Return one case as a line of the table."""
    rate = "received_per_s" if "received_per_s" in result["weft"] else "messages_per_s"
    ours, rates = result["weft"], pair(result, rate, ",.0f")
    cores, cpus = pair(result, "server_cpu", ".3f"), pair(result, "server_us_per_message", ".2f")
    p50, p99 = pair(result, "ack_ms_p50", ".2f"), pair(result, "ack_ms_p99", ".2f")
    loads = pair(result, "generator_cpu", ".2f")
    rate_ratio, cpu_ratio = ("-" if result[name] is None else f"{result[name]:.2f}" for name in FIGURES[:2])
    return (
        f"{result['title']:36}{rates[0]:>10}{rates[1]:>10}{rate_ratio:>7}{cores[0]:>8}{cores[1]:>8}{cpus[0]:>10}"
        f"{cpus[1]:>10}{cpu_ratio:>7}{p50[0]:>8}{p50[1]:>8}{p99[0]:>8}{p99[1]:>8}{ours['write_amplification']:>9.2f}{ours['messages_per_commit']:>8.1f}"
        f"{loads[0]:>8}{loads[1]:>8}{ours['other_cores']:>8.2f}  {verdicts(result['targets'])}"
    )


def remarks(result: Figures, rounds: int) -> list[str]:
    """Return what a reader of the line has to know besides."""
    found = []
    for broker in ("weft", "mosquitto"):
        figures = result[broker]
        if figures and figures["generator_bound_rounds"]:
            found.append(
                f"  generator above {GENERATOR_CPU_MAX:.0%} of its core in {figures['generator_bound_rounds']} of "
                f"{rounds} rounds with {broker}: it may be the limit of that rate"
            )
        if figures and figures["unacked"]:
            found.append(
                f"  {broker}: {figures['unacked']:,.0f} messages of a round were not sent or acknowledged in time"
            )
    return found


def busy_machine(results: Iterable[Figures]) -> str:
    """Return a warning that names the cases in which other processes had much of the machine; else nothing."""
    busy = [
        result["name"]
        for result in results
        if any(result[broker] and result[broker]["other_cores"] > OTHER_CORES_MAX for broker in ("weft", "mosquitto"))
    ]
    if not busy:
        return ""
    return (
        f"other processes used more than {OTHER_CORES_MAX:g} cores in {len(busy)} cases ({', '.join(busy)}): "
        "their rates and latencies say little, their CPU per message more"
    )


def idle_lines(result: Figures) -> list[str]:
    """Return the idle case in a sentence for each broker."""
    found = [
        f"{broker}: {figures['connections']:,} idle connections, {figures['bytes_each']:,} bytes each, "
        f"{figures['connections_per_s']:,} accepted per second"
        for broker in ("weft", "mosquitto")
        if (figures := result[broker])
    ]
    met = "met" if result["met"] else "MISSED"
    bounds = f"under {idle.BYTES_EACH_MAX:,} bytes, at least {idle.ACCEPTED_PER_S_MIN:,} per second"
    return [*found, f"targets: {bounds}: {met}"]
