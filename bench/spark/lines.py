"""Lines of docs/benchmarks.md about Spark."""

from __future__ import annotations

from bench.markdown import Facts, table

TAIL_LABELS = {"few_columns": "`_offset,_time,_key,payload`", "noop": "all columns, noop", "aggregate": "aggregate"}


def _millions(rate: float) -> str:
    return f"{rate / 1e6:.2f} M"


def _at_least(value: float, bound: float) -> str:
    return f"at least {bound:g}: " + ("met" if value >= bound else "**not met**")


def spark(results: Facts) -> list[str]:
    """History beside plain Parquet, the tail, and what else the run measured."""
    load = f" Load of the machine before: {results['load_before']:.1f}." if "load_before" in results else ""
    head = f"Spark {results['spark']}, {results['master']}, {results['records']:,} records.{load}"
    titles = ("query", "records/s", "of a core second", "beside plain Parquet", "target")
    lines = [head, "", *table(titles, _spark_rates(results)), *_spark_sentences(results)]
    for name, lines_of in (("typed", _spark_typed), ("sinks", _spark_sinks)):
        if name in results:
            lines += ["", *lines_of(results[name])]
    return lines


def _spark_rates(results: Facts) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name in ("noop", "aggregate"):
        found = results["history"][name]
        ratio = _at_least(found["ratio"], 0.95)
        rows.append((f"history, {name}", _millions(found["records_per_second"]), "-", f"{found['ratio']:.3f}", ratio))
    bounds = {"few_columns": 2.5e6, "noop": 3e6}
    for name, label in TAIL_LABELS.items():
        if found := results["tail"].get(name):
            rate, each = found["records_per_second"], found.get("records_per_cpu_second")
            target = _at_least(rate / 1e6, bounds[name] / 1e6) + " (M)" if name in bounds else "-"
            rows.append((f"tail, {label}", _millions(rate), _millions(each) if each else "-", "-", target))
    rows.append(("tierer (log to table)", _millions(results["tier"]["rows_per_second"]), "-", "-", "-"))
    return rows


def _spark_sentences(results: Facts) -> list[str]:
    lines = []
    if "hour" in results:
        ratio = results["hour"]["bytes_ratio"]
        lines += ["", f"One edge node and one hour take 1/{ratio:.1f} of the table's bytes; {_at_least(ratio, 60)}."]
    if "microbatch" in results:
        batch = results["microbatch"]
        took = f"{batch['weft']['triggerExecution']:.0f} ms beside {batch['rate']['triggerExecution']:.0f} ms"
        met = "met" if batch["ratio"] <= 1.2 else "**not met**"
        times = f"{batch['ratio']:.2f} times as long; at most 1.2: {met}"
        lines += ["", f"A micro-batch of {batch['records']} records takes {took} of Spark's rate source: {times}."]
    return lines


def _spark_typed(typed: Facts) -> list[str]:
    rows = [
        (
            place,
            *(_millions(typed[place][f"{way}_records_per_second"]) for way in ("typed", "from_json")),
            f"{typed[place]['ratio']:.2f}",
        )
        for place in ("tail", "table")
    ]
    decoded = typed["decoder_records_per_second"]
    formats = [
        (name, *(_millions(decoded[f"{name}{case}"]) for case in ("", "_one_percent_misfits")))
        for name in ("json", "msgpack", "cbor")
    ]
    return [
        *table(("four typed columns of", "typed, records/s", "`from_json`, records/s", "ratio"), rows),
        "",
        *table(("decoded by a core", "payloads/s", "one in a hundred misfits"), formats),
    ]


def _spark_sinks(sinks: Facts) -> list[str]:
    rows = [("Delta, append, all columns", _millions(sinks["delta_append"]["records_per_second"]))]
    if postgresql := sinks.get("postgresql_upsert"):
        of = f"of {postgresql['records']:,}"
        rows.append((f"PostgreSQL, upsert {of} new rows", f"{postgresql['inserted_per_second']:,}"))
        rows.append((f"PostgreSQL, upsert {of} rows that replace others", f"{postgresql['replaced_per_second']:,}"))
    return table(("sink", "records/s"), rows)


def spark_kafka(results: Facts) -> list[str]:
    """Return the table of a topic through Spark's Kafka source, and the same records from a tail."""
    ways = {"kafka": "Kafka, all its columns", "weft": "Weft, `_offset,_time,_key,payload`"}
    ways["weft, all columns"] = "Weft, all columns"
    rows = [
        (shown, *(f"{results[case][way] / 1e6:.2f} M" for case in ("noop", "aggregate"))) for way, shown in ways.items()
    ]
    head = f"Spark {results['spark']}, local[2], Kafka {results['kafka']}, {results['records']:,} records."
    head += f" Load of the machine before: {results['load_before']:.1f}." if "load_before" in results else ""
    return [head, "", *table(("source", "noop, records/s", "aggregate, records/s"), rows)]
