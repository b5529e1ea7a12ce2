"""The export of spans: bounded, in the background, and harmless when the collector is not there."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from examples.demo.fabric import free_port
from tests.support.collector import collecting
from tests.support.waiting import wait_until
from weft.config.sources import Collector
from weft.network import tracing
from weft.network.tracing import (
    MISSING,
    ExportSettings,
    Span,
    TraceContext,
    TraceExport,
    found_in,
    look_at,
    parse,
    read_headers,
)

PARENT = TraceContext(7, 8)


def span(number: int, error: str = "") -> Span:
    return Span(f"step {number}", TraceContext(7, number), PARENT, 1_000, 2_000, {"weft.seq": number}, error)


@contextmanager
def exporting(endpoint: str, **settings: object) -> Iterator[TraceExport]:
    usual = {"interval_s": 0.01, "timeout_s": 0.2, "service": "weft-edge", "version": "0.1.0", "instance": "press-7"}
    export = TraceExport(ExportSettings(endpoint=endpoint, **{**usual, **settings}))  # type: ignore[arg-type]
    try:
        yield export
    finally:
        export.close()


def test_spans_arrive_whole_with_the_headers_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("# of the collector\nAuthorization: Bearer s3cret\n\nX-Scope-OrgID: plant\n")
    with collecting() as collector, exporting(collector.url, headers_file=str(file), batch_max=2) as export:
        for number in range(1, 6):
            export.offer(span(number, "not stored: full" if number == 5 else ""))
        export.start()
        wait_until(lambda: export.exported == 5)
    assert [(got.name, got.error) for got in collector.spans] == [
        *((f"step {number}", "") for number in range(1, 5)),
        ("step 5", "not stored: full"),
    ]
    first = collector.spans[0]
    assert (first.trace, first.span, first.parent) == (f"{7:032x}", f"{1:016x}", f"{8:016x}")
    assert (first.start, first.end, first.attributes) == (1_000, 2_000, {"weft.seq": 1})
    assert first.resource["service.version"] == "0.1.0"
    assert len(collector.heads) == 3
    assert all(
        head["authorization"] == "Bearer s3cret" and head["x-scope-orgid"] == "plant" for head in collector.heads
    )


def test_what_waits_goes_out_at_the_end() -> None:
    with collecting() as collector:
        with exporting(collector.url, interval_s=3600.0) as export:
            export.start()
            export.offer(span(1))
        assert [got.name for got in collector.spans] == ["step 1"]


def test_a_collector_that_refuses_or_is_away_costs_spans_and_one_line(caplog: pytest.LogCaptureFixture) -> None:
    with collecting() as collector, exporting(collector.url) as export:
        collector.status = 401
        export.start()
        for number in range(1, 4):
            export.offer(span(number))
            wait_until(lambda number=number: export.failed == number)  # type: ignore[misc]
        assert export.exported == export.dropped == 0
        assert [line for line in caplog.messages if "refuses spans" in line] == [
            f"the collector of traces {collector.url}/v1/traces refuses spans. They are dropped until it accepts them"
        ]
        collector.status = 200
        export.offer(span(4))
        wait_until(lambda: export.exported == 1)
    with exporting(f"http://127.0.0.1:{free_port()}") as export:
        export.start()
        export.offer(span(1))
        wait_until(lambda: export.failed == 1)


def test_the_queue_is_bounded_and_drops_are_counted() -> None:
    with exporting("http://127.0.0.1:9", queue_max=10) as export:
        for number in range(1, 26):
            export.offer(span(number))
        assert export.figures() == {
            "spans_exported_total": 0,
            "spans_failed_total": 0,
            "spans_dropped_total": 15,
            "spans_waiting": 10,
        }


def test_without_the_library_spans_are_counted_and_the_check_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(tracing, "is_installed", lambda: False)
    monkeypatch.setattr(tracing, "is_installed", lambda: False)
    assert "pip install 'weft-fabric[otel]'" in MISSING
    assert [finding.message for finding in look_at(Collector(endpoint="http://127.0.0.1:4318")).unfit] == [MISSING]
    with caplog.at_level(logging.WARNING), exporting("http://127.0.0.1:4318", batch_max=2) as export:
        export.start()
        for number in range(1, 6):
            export.offer(span(number))
        wait_until(lambda: export.failed == 5)
    assert [MISSING in line for line in caplog.messages] == [True]


def test_the_check_looks_at_the_files(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing")
    found = look_at(Collector(endpoint="http://collector.example.com:4318", headers_file=missing, ca_file=missing))
    assert [finding.path for finding in found.unfit if finding.message != MISSING] == [
        ("tracing", "ca_file"),
        ("tracing", "headers_file"),
    ]
    file = tmp_path / "headers"
    file.write_text("Authorization: Bearer s3cret\n")
    file.chmod(0o644)
    found = look_at(Collector(endpoint="http://collector.example.com:4318", headers_file=str(file)))
    assert [finding.path for finding in found.doubtful] == [("tracing", "headers_file"), ("tracing", "endpoint")]
    assert look_at(None) == ([], [])


@pytest.mark.parametrize("text", ["", "s3cret", "a b: s3cret", "a: s3cret\nx", "a: s3cr\u00e9t", "x: 1\n" * 9_000])
def test_a_file_with_something_else_is_refused_without_its_content(tmp_path: Path, text: str) -> None:
    file = tmp_path / "headers"
    file.write_text(text)
    with pytest.raises(ValueError, match="expected") as refused:
        read_headers(str(file))
    assert "s3cr" not in str(refused.value)


def test_a_url_without_a_path_gets_that_of_otlp() -> None:
    def url(endpoint: str) -> str:
        return ExportSettings(endpoint=endpoint, service="weft-edge").url

    assert url("http://collector:4318") == url("http://collector:4318/") == "http://collector:4318/v1/traces"
    assert url("https://otlp.example.com/otlp/v1/traces") == "https://otlp.example.com/otlp/v1/traces"


# --- Trace contexts: the valid and the invalid, by the sections of W3C Trace Context


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [
        (VALID, True),
        (f"00-{TRACE}-{SPAN}-00", False),
        (f"00-{TRACE}-{SPAN}-ff", True),  # 3.2.2.5: other bits do not count
        (f"00-{TRACE}-{SPAN}-02", False),
        (f"cc-{TRACE}-{SPAN}-01-what-comes-later", True),  # 3.2.4: a later version
        (f" {VALID} ", True),
        (VALID.encode(), True),  # AMQP clients may send text as bytes
    ],
)
def test_a_valid_context_is_read(value: str | bytes, is_sampled: bool) -> None:
    assert parse(value) == TraceContext(int(TRACE, 16), int(SPAN, 16), is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        VALID[:-1],
        VALID + "0",
        VALID + "-more",
        VALID.upper(),
        VALID.replace("-", "_"),
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f"cc-{TRACE}-{SPAN}-01more",
        f"cc-{TRACE}-{SPAN}-01-{'x' * 300}",
        VALID + "\n" + VALID,
        "\u0660" * 55,
        b"\xff" * 55,
        None,
        7,
        True,
    ],
)
def test_what_is_not_valid_is_no_context(value: str | bytes | int | None) -> None:
    assert parse(value) is None
    assert found_in([("other", VALID), ("traceparent", value)]) is None


def test_a_context_is_written_as_it_is_read() -> None:
    assert str(parse(VALID)) == VALID
    assert str(TraceContext(1, 2, is_sampled=False)) == f"00-{1:032x}-{2:016x}-00"
    assert found_in([("a", 1), ("traceparent", VALID), ("traceparent", "later")]) == parse(VALID)
