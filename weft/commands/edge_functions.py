"""``weft edge test-function``: the output of a derived stream for the records of a file."""

from __future__ import annotations

import asyncio
import difflib
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import IO, TYPE_CHECKING, Any

import click
import msgspec

from weft.commands.acts import ordering
from weft.commands.common import check_functions, config_argument, json_option, located_edge, using
from weft.commands.node_log import NodeLog, target_argument
from weft.edge_node.check.streams import is_derived
from weft.edge_node.control.client import ControlFailed, ReplayRequest, ask_replay
from weft.edge_node.derived.offline import BadSample, Offline, SampleReader
from weft.functions.contract import NotReady
from weft.output import Failed, Refused, counted, harmless, print_json
from weft.text.record import counted_outcomes, event_facts, lines

if TYPE_CHECKING:
    from weft.config.load import Loaded
    from weft.config.models import EdgeConfig


@click.command("test-function")
@config_argument
@click.argument("stream", metavar="STREAM")
@click.option(
    "--input", "sample", metavar="FILE", required=True, help="File with records, one per line; - is standard input."
)
@click.option("--topic", metavar="TOPIC", help="Topic of all records. Each line is then only a payload.")
@json_option
def edge_test_function(config_file: str, stream: str, sample: str, topic: str | None, *, as_json: bool) -> None:
    """Show the records that derived stream STREAM of CONFIG would emit for a file, and why it drops others.

    No node is needed, and nothing is written. Records go through the functions one by one, as in a node that starts
    without state. Time follows the times of the records. After the last record it runs on until no function waits for
    it, so that open windows end.

    Each line of the file is a record: an object with `topic`, `payload` (or `payload_base64`) and `time`, which is text
    or seconds since 1970. Records without a time are one second apart. If STREAM reads several streams, `stream` names
    one of them. A gap is a line such as {"kind": "gap", "first": 5, "end": 9}.

    \b
    weft edge test-function edge.yaml warm --input sample.jsonl
    weft edge tail edge.yaml sensors --last 1000 --json | weft edge test-function edge.yaml warm --input -
    weft edge test-function edge.yaml warm --input payloads.txt --topic plant/l1/m1
    """
    offline = _offline(located_edge(config_file), stream, config_file)
    name = "standard input" if sample == "-" else sample
    try:
        with _opened(sample, name) as file:
            counts = asyncio.run(_show(offline, file, name, topic, as_json=as_json))
    except BadSample as error:
        raise Refused(f"{name}:{error}") from None
    except NotReady as error:
        raise Failed(f"stream {stream}: {error}") from None
    click.echo(_json({"kind": "summary", **counts}) if as_json else _summary(counts))


async def _show(offline: Offline, file: IO[bytes], name: str, topic: str | None, *, as_json: bool) -> dict[str, int]:
    """Print each event, and return the number of events of each kind.

    Raises:
        BadSample: a line of the file is not a record.
        NotReady: a function cannot work, because something that it needs is missing.
    """
    reader = SampleReader(offline.inputs, topic)
    counts: Counter[str] = Counter()
    try:
        await offline.prepare()
        async for event in offline.run(reader.read(file)):
            counts.update(counted_outcomes(event))
            text = _json(event_facts(event, offline)) if as_json else "\n".join(lines(event, offline, name))
            sys.stdout.write(harmless(text) + "\n")
    finally:
        sys.stdout.flush()
        await offline.close()
    return {**counts, "passed_over": reader.passed_over}


def _offline(loaded: Loaded[EdgeConfig], stream: str, file: str) -> Offline:
    config = loaded.config
    derived = [name for name, settings in config.streams.items() if is_derived(settings)]
    if stream not in derived:
        near = difflib.get_close_matches(stream, derived, n=1, cutoff=0.7)
        known = f"Did you mean {near[0]}?" if near else f"Derived streams: {', '.join(derived) or 'none'}"
        what = "has no functions" if stream in config.streams else "is not a stream"
        raise Refused(f"{file}: {stream} {what}. {known}")
    check_functions(loaded, stream)
    return Offline(config, stream)


@contextmanager
def _opened(path: str, name: str) -> Iterator[IO[bytes]]:
    if path == "-":
        yield sys.stdin.buffer
        return
    with ExitStack() as stack:
        with using(name):
            file = stack.enter_context(open(path, "rb"))
        yield file


def _summary(counts: dict[str, int]) -> str:
    """Return the last line for people: ``3 records: 1 out, 1 dropped, 1 error``."""
    parts = [
        counted(count, "error") if name == "error" else f"{count} {name}"
        for name, count in counts.items()
        if count and name not in ("records", "passed_over")
    ]
    text = f"{counted(counts.get('records', 0), 'record')}: {', '.join(parts) or 'nothing'}"
    passed = counts.get("passed_over", 0)
    return text + (f". {counted(passed, 'line')} of other streams skipped" if passed else "")


def _json(facts: dict[str, Any]) -> str:
    return msgspec.json.encode(facts).decode()


# ``weft edge replay``: compute a derived stream again.

POLL_S = 0.5


@click.command("replay")
@target_argument
@click.argument("stream")
@click.option("--into", required=True, metavar="NAME", help="Stream for the result.")
@json_option
def edge_replay(target: str, stream: str, *, into: str, as_json: bool) -> None:
    """Compute the derived STREAM of a running node, named by its CONFIG or its data_dir, again.

    Its functions read all of their inputs that the log still has, and write to another stream of this node, which no
    link carries. The same records get the same numbers each time: a second run resumes where the first one ended.
    Alerts and rows that functions route to other streams are left out.

    \b
    weft edge replay edge.yaml hot --into hot-again
    """
    directory = NodeLog.of(target).directory
    try:
        with ordering(directory, f"stream {stream} into {into}"):
            reply = ask_replay(directory, ReplayRequest(into, stream))
        with click.progressbar(length=reply.left, label=f"{stream} into {into}", hidden=as_json) as bar:
            left = reply.left
            while reply.left:
                time.sleep(POLL_S)
                reply = ask_replay(directory, ReplayRequest(into))
                bar.update(left - reply.left)
                left = reply.left
    except ControlFailed as error:
        raise Failed(str(error)) from None
    if as_json:
        print_json({"stream": stream, "into": into, "rows": reply.rows})
    else:
        click.echo(f"{into} has all records of the functions of {stream}; {counted(reply.rows, 'row')} read now")
