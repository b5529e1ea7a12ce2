"""What the pages' test must know beyond the pages: what cannot run in a test, and what a reader has before a page."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end.page_reader import PageReader
from tests.support.postgresql import PASSWORD

ROOT = Path(__file__).parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    ROOT / "docs" / "reference" / "api.md",
    ROOT / "docs" / "reference" / "spark.md",
)

CANNOT_RUN = {
    r"sudo ": "needs root",
    r"(\S*/)?pip install ": "takes minutes and the network; tests/weft/test_distributions.py installs",
    r"\./run (setup|build|packages|docs)": "works in the repository's own folder; whoever runs the tests ran it",
    r"\./run (test|lint|fix|bench|nightly)|\.ci/run": "would run this test within itself, or for minutes",
    r"\./run demo": "takes a minute; tests/end_to_end/test_demo.py runs it",
    r"python -m tests\.storage\.segment_log\.power_cuts ": "runs for hours; test_power_cuts.py makes shorter ones",
}
"""Commands that this test leaves out, and why. A new one needs a reason, or must run."""


@dataclass(frozen=True)
class Rule:
    """What one page needs.

    ``needs`` are modules and ``programs`` programs without which the page cannot be followed, ``before`` are commands
    or pages that the reader has followed, ``meanwhile`` what happens elsewhere before the command (or the language)
    that begins with its key, ``answers`` what is typed when that command asks, and ``says`` patterns of what must have
    been printed in the end. Pages that are ``shared`` change nothing of what the tour has made: one hub, one edge node
    and one Spark serve all of them.
    """

    needs: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    meanwhile: dict[str, Callable[[PageReader], None]] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    says: tuple[str, ...] = ()
    shared: bool = False


TOUR = "README.md"
NO_JSON = "mosquitto_pub -p 1883 -q 1 -t plant/press/m1/telemetry -m 'no JSON'"
HUB = "listen: 127.0.0.1:8090\nstore: store\nanonymous: never\n"
EDGE = """\
node: press-shop-7
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:1883"}}
http: {bind: 127.0.0.1:8080}
disk: {budget: 1GiB}
streams: {telemetry: {from: "plant/{line}/{machine}/telemetry"}}
links: {cloud: {to: "http://127.0.0.1:8090", token_file: token}}
"""


def hub_elsewhere(reader: PageReader) -> None:
    """The hub to which the page's edge node sends, before its first start."""
    reader.write("hub.yaml", HUB)


def tenant_elsewhere(reader: PageReader) -> None:
    """That hub's configuration, and a tenant in its store."""
    hub_elsewhere(reader)
    reader.run("weft hub tenant add hub.yaml acme")


def started_hub_elsewhere(reader: PageReader) -> None:
    """The start of that hub."""
    reader.run("weft hub run hub.yaml")


def open_hub_elsewhere(reader: PageReader) -> None:
    """A hub without tokens, which has made its store."""
    reader.write("hub.yaml", "listen: 127.0.0.1:8090\nstore: store\n")
    reader.run("weft hub run hub.yaml")


def edge_elsewhere(reader: PageReader) -> None:
    """An edge node that has the token which the page's first command printed, and a message."""
    reader.write("edge.yaml", EDGE)
    printed = re.findall(r"^\$ weft hub token add hub.yaml press-shop-7.*\n(\S+)$", reader.said, re.MULTILINE)
    (reader.folder / "token").write_text(printed[0])
    (reader.folder / "token").chmod(0o600)
    reader.run("weft edge run edge.yaml")
    reader.run("mosquitto_pub -p 1883 -q 1 -t plant/press/m1/telemetry -m '{\"temperature\": 21.5}'")


def password_elsewhere(reader: PageReader) -> None:
    """What the reader writes into the file that the page made."""
    (reader.folder / "db-password").write_text(f"{PASSWORD}\n")


def early_in_a_minute(_: PageReader) -> None:
    """A person's messages fall into one minute, of which the page shows the figures: on a busy machine too."""
    gone = time.time() % 60
    if gone > 40:
        time.sleep(60 - gone)


def marks_each_second(reader: PageReader) -> None:
    """A person waits a minute or two until what an idle edge node says makes the minute complete."""
    edge = reader.folder / "edge.yaml"
    edge.write_text(edge.read_text().replace("    to: http", "    mark_interval: 1s\n    to: http"))


RULES = {
    "README.md": Rule(
        says=(
            r"\|\s*press\|\s*m1\|\s*21\.5\|",
            r"cloud\s+connected",
            "m2 +19.0",
            r'"complete_up_to": ?"20',
            "good: every record is in the log once",
        )
    ),
    "check-payloads-at-the-edge.md": Rule(
        says=(
            r'weft.reason.*temperature: expected a number of 64 bits, got "hot"',
            r"telemetry\s+2\s+0\s+0\s+1\s+0\s+temp",
        )
    ),
    "bound-a-tenant.md": Rule(
        meanwhile={"weft hub tenant add": open_hub_elsewhere}, says=("declared tenant acme", r"acme")
    ),
    "install.md": Rule(says=(r"^weft \d",)),
    "first-edge-node.md": Rule(
        meanwhile={"weft hub token add": hub_elsewhere, "weft edge check": started_hub_elsewhere},
        says=("edge.yaml is good", r"cloud\s+connected", r"plant/press/m1/telemetry \{\"temperature\": 21.5\}"),
    ),
    "hub-on-s3.md": Rule(
        meanwhile={"python": edge_elsewhere},
        says=("hub.yaml is good", r"press-shop-7\|", "good: every record is in the log once"),
    ),
    "see-who-did-what.md": Rule(
        meanwhile={"weft hub tenant add": open_hub_elsewhere},
        says=("declared tenant acme", r"\tmara\t.*declared: hub tenant add\ttenant acme\tcontract 17"),
    ),
    "declare-tokens-and-tenants.md": Rule(
        says=(
            "declared tenant acme",
            r"press-7\s+edge\s+acme\s+press-shop-7\s+1",
            r"cluster log +entry",
            "edge.yaml is good",
        )
    ),
    "tokens-for-a-fleet.md": Rule(
        meanwhile={"weft hub token add": tenant_elsewhere},
        says=(r"guest-7\s+write:telemetry\s+acme\s+guest-7\s+1", "declared 2 tokens"),
    ),
    "expect-edges.md": Rule(
        meanwhile={"weft hub stream expect": tenant_elsewhere},
        says=("declared the edges of acme/telemetry", "acme/presses"),
    ),
    "tls-at-the-hub.md": Rule(
        says=(
            r"(?s)hub.yaml is good.*certificate +\S+hub.crt, valid until.*hub.yaml is good",
            r"press-shop-7\s+edge\s+\S+\s+revoked",
        )
    ),
    "keep-a-tenant-apart.md": Rule(
        meanwhile={"weft hub tenant add": open_hub_elsewhere},
        says=("tenant acme is set apart: shard 16", r"acme\s+own"),
    ),
    "keep-the-newest-row.md": Rule(
        before=(TOUR,), says=("declared tables of default/telemetry", r"default/telemetry\s+machine\s+10s")
    ),
    "erase-a-person.md": Rule(before=(TOUR,), says=("erased [1-9][0-9]* rows? of the table of default/telemetry",)),
    "remove-old-rows.md": Rule(before=(TOUR,), says=(r"default/telemetry\s+365d and 500GiB",)),
    "ask-a-hub-from-python.md": Rule(
        before=(TOUR,), shared=True, says=("anonymous", "telemetry [0-9]+ records", "plant/press/m1")
    ),
    "look-into-an-edge-node.md": Rule(
        before=(TOUR,), shared=True, says=("running for", r"m1 +21\.5", r'"seq": ?1\b', r"(?m)^ +\d+ batch .*stream=1")
    ),
    "change-a-running-node.md": Rule(before=(TOUR,), shared=True, says=(r"^configuration 1 ",)),
    "links-over-bad-networks.md": Rule(
        says=("edge.yaml is good", r"link +lte", r"state +connected", "paused by an operator", r"budget +\S+ .*of 2")
    ),
    "full-disk-or-link-down.md": Rule(before=(TOUR,), answers={"weft log drop": "y\n"}, says=("records",)),
    "prove-nothing-is-missing.md": Rule(
        before=(TOUR,),
        answers={"weft hub declare-deletion": "y\n"},
        says=(
            '"complete_up_to"',
            "NEVER HEARD: welder-1 is expected",
            "log and table agree, and the hub may lack records: every record is in the log once",
            r"^True \d+ \[\]",
            r"\|\s*m1\|\s*3\|\s*3\|",
        ),
    ),
    "trace-a-row.md": Rule(
        before=(TOUR,),
        shared=True,
        says=(r"row machine=m1", r"telemetry, lane press-shop-7/\w{16}, seq", r"plant/press/m1/telemetry"),
    ),
    "write-a-table-from-spark.md": Rule(
        before=(TOUR,), shared=True, says=(r"^readings \d", r"^newest \d", r"^hours \d", r"^days \d")
    ),
    "read-in-spark.md": Rule(
        before=(TOUR, NO_JSON),
        says=(r"\|\s*m1\|\s*21\.5\|", r"\|\s*m1\|\s*NULL\|", r"\{payload -> it is not JSON: .*\}"),
    ),
    "run-a-pipeline.md": Rule(
        before=(TOUR,), shared=True, says=(r"warm\.yaml is good", r"^machine-hours$", r"'machine': 'm1'", r"'mean': 2")
    ),
    "send-rows-back-into-a-stream.md": Rule(
        programs=("curl",),
        before=(TOUR,),
        says=(r"sent=[1-9]", '"weft.position"', "good: every record is in the log once"),
    ),
    "plant-engineer.md": Rule(says=("edge.yaml is good", "m1 +21.5", "m2 +19.0", "plant/press/m1/temperatur 22.0")),
    "press.md": Rule(
        needs=("asyncua",),
        programs=("curl",),
        says=(
            "edge.yaml is good",
            "nsu=urn:example:press;s=Force",
            r"press/Press/Temperature\s+2\d\.",
            r"press\s+connected",
            r'press/Press/Force .*"value":',
            r'"field":"value","value":',
            r'"outcome":"written","value":80',
            r'"outcome":"refused","reason":"expected a number from 0.0 to 120.0',
        ),
    ),
    "data-engineer.md": Rule(
        says=(
            r"'machine': 'm2', 'payload': '\{\"temperature\": 19.0\}'",
            '"complete_up_to": ?"20',
            "good: every record is in the log once",
        )
    ),
    "operator.md": Rule(
        says=(
            "hub.yaml is good",
            r"default/press-shop-7\t.*\tfor \d+ second",
            r"state +connected",
            "weft_edge_link_connected",
        )
    ),
    "machine-hours.md": Rule(
        meanwhile={"weft edge run": marks_each_second, "mosquitto_pub": early_in_a_minute},
        says=(
            r"\{temperature -> expected a number of 64 bits, got \"hot\"\}",
            r"machine-minutes\.yaml is good",
            r"m1 .* 2 +2 +22\.0 +1490 +True",
            r"m2 .* 2 +1 +19\.0 +910 +True",
            "good: every record is in the log once",
            r"plant/press/m1/telemetry \{\"temperature\": 22\.5",
        ),
    ),
    "shipped-pipelines.md": Rule(
        before=(TOUR, f"ln -s {ROOT}/examples examples"),  # from the repository's folder
        shared=True,
        says=(r"name: anomalies", r"'state': 'down', 'records': 1", r"'value': 21\.5, 'model_version': '1'"),
    ),
    "open-the-table.md": Rule(
        needs=("duckdb", "polars"), before=(TOUR, NO_JSON), says=(r"m1 +[│┆|] +21\.5", r"m2 +[│┆|] +19\.0")
    ),
    "from-spark-to-postgresql.md": Rule(
        needs=("psycopg",),
        before=(TOUR,),
        shared=True,
        meanwhile={"python": password_elsewhere},
        says=(r"readings \[\('m1', 21.5\), \('m2', 19.0\)\] unchanged: True",),
    ),
    "from-spark-to-kafka.md": Rule(before=(TOUR,), says=(r"plant/press/m1/telemetry\s*\|\d+\s*\|.*21.5",)),
    "complete-windows.md": Rule(
        before=(TOUR,),
        shared=True,
        says=(
            r"(?m)^complete until 20",
            r"\|press-shop-7\| +2\|",
            r"'windowsPending': 1",
            r"(?m)^\d+ True$",
            r"'measured_at is missing, null or no time': 2",
        ),
    ),
    "spark-on-a-cluster.md": Rule(
        before=(TOUR,), shared=True, says=(r"^records 2$", r"\{'machine': 'm1', 'time_from': ")
    ),
    "post-by-http.md": Rule(
        programs=("curl",),
        says=(
            '"first_seq":3,"count":2',
            "(?i)idempotency-replayed: true",
            "m2/telemetry .*19.0",
            "m1/telemetry .*22.5",
        ),
    ),
    "use-amqp-1.0.md": Rule(
        needs=("proton",), says=("on disk: True", "plant/l4/m1/telemetry 21.5 .*x-opt-weft-offset")
    ),
    "watch-a-fleet.md": Rule(
        before=(TOUR,), shared=True, says=("1 edge: 1 connected", r"tables/default/telemetry \(version")
    ),
    "probe-a-node.md": Rule(before=(TOUR,), shared=True, says=(r"^ready$",)),
    "publish-with-pika.md": Rule(
        needs=("pika", "aio_pika", "celery"),
        says=(
            "pika: on disk",
            "aio-pika: on disk",
            "celery: on disk",
            r"m1/telemetry .*21\.5",
            r"m2/telemetry .*23\.5",
            r"^celery\t1\t",
        ),
    ),
    "api.md": Rule(before=(TOUR,), shared=True, says=('"next_offset"', '"complete_up_to"')),
    "spark.md": Rule(before=(TOUR,), shared=True),
}
"""By file name; a page without an entry needs nothing."""
