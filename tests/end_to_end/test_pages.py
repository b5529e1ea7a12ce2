"""Every block of shell, Python, SQL and YAML in README, how-to pages and reference, followed to the letter."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.end_to_end.page_reader import (
    RUN,
    SHOWN,
    Block,
    PageReader,
    blocks,
    commands,
    page_reader,
    stand_in,
    words_of,
)
from tests.end_to_end.page_rules import CANNOT_RUN, PAGES, ROOT, RULES, TOUR, Rule
from tests.storage.object_store.buckets import s3_endpoint
from tests.support.brokers import Kafka, connector_jars
from tests.support.postgresql import postgresql, why_not
from tests.support.processes import Node
from tests.support.third_party import KAFKA_CONNECTOR
from tests.support.waiting import PATIENCE_S

DATABASE = "db.example.com:5432"
TOPICS = "kafka.example.com:9092"
BUCKETS = "https://minio.example.com"
NODE = """\
node: n
data_dir: data
listeners: {mqtt: {bind: "127.0.0.1:0"}}
http: {bind: "127.0.0.1:0"}
disk: {budget: 64MiB}
streams: {telemetry: {from: "plant/#"}}
"""
WITH_CODE = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]
ids = [str(page.relative_to(ROOT)) for page in WITH_CODE]


def cannot_run(command: str) -> bool:
    return any(re.match(pattern, command) for pattern in CANNOT_RUN)


def follow(reader: PageReader, page: Path, rule: Rule) -> None:
    for block in blocks(page):
        if block.language in RUN and block.is_followed:
            follow_block(reader, block, rule)


def follow_block(reader: PageReader, block: Block, rule: Rule) -> None:
    if block.language != "sh":
        prepare(reader, block.language, rule)
        reader.read(block)
        return
    for command in commands(block.text):
        if not cannot_run(command):
            prepare(reader, command, rule)
            answers = [answer for start, answer in rule.answers.items() if command.startswith(start)]
            reader.run(command, *answers)


def prepare(reader: PageReader, command: str, rule: Rule) -> None:
    for start, act in rule.meanwhile.items():
        if command.startswith(start) and start not in reader.happened:
            reader.happened.add(start)
            act(reader)


@contextlib.contextmanager
def elsewhere(page: Path) -> Iterator[dict[str, str]]:
    """What a page's text names on other machines, and what stands for it on this one."""
    texts = {"https://hub.example.com": "http://127.0.0.1:8090", "0.0.0.0": "127.0.0.1"}
    texts["-m venv"] = "-m venv --without-pip"  # which nothing runs (CANNOT_RUN), and whose copy takes seconds
    if DATABASE in page.read_text():
        if reason := why_not():
            pytest.skip(reason)
        with postgresql() as server:
            yield texts | {DATABASE: f"127.0.0.1:{server.port}", "/plant?": "/postgres?"}
        return
    if TOPICS in page.read_text():
        try:
            connector, running = connector_jars(), Kafka()
        except LookupError as error:
            pytest.skip(str(error))
        with contextlib.closing(running):
            # The page's reader has a way to Maven Central; a test takes what is there already.
            packages = f'"spark.jars.packages": "{KAFKA_CONNECTOR.name}"'
            yield texts | {TOPICS: running.address, packages: f'"spark.jars": "{connector}"'}
        return
    if BUCKETS not in page.read_text():
        yield texts
        return
    with s3_endpoint() as endpoint:
        endpoint.make_bucket("plant-data")
        yield texts | {BUCKETS: endpoint.url}


def first_part(page: Path) -> list[Block]:
    """The tour up to where its reader has messages in the hub."""
    found = blocks(page)
    return found[: next(i for i, block in enumerate(found) if block.language == "python")]


class Tour:
    """A reader who has followed the tour, for all pages that change nothing of what it makes."""

    def __init__(self) -> None:
        self._open = contextlib.ExitStack()
        self._reader: PageReader | None = None

    @contextlib.contextmanager
    def reader(self, texts: dict[str, str]) -> Iterator[PageReader]:
        """Yield the reader for a page; after one that failed, another one."""
        if self._reader is None:
            self._reader = self._open.enter_context(reader_of_a_page(texts))
            follow_tour(self._reader)
            self._reader.keep()
        self._reader.turn_page(texts)
        try:
            yield self._reader
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._reader = None
        self._open.close()


@pytest.fixture(scope="module")
def tour() -> Iterator[Tour]:
    with contextlib.closing(Tour()) as made:
        yield made


@contextlib.contextmanager
def reader_of_a_page(texts: dict[str, str]) -> Iterator[PageReader]:
    # pytest's own folders have long names, and a node's socket in its data_dir must fit into 107 bytes.
    with tempfile.TemporaryDirectory(prefix="page-") as place, page_reader(Path(place), texts) as reader:
        yield reader


def follow_tour(reader: PageReader) -> None:
    for block in first_part(ROOT / TOUR):
        if block.language in RUN:
            follow_block(reader, block, Rule())


@pytest.mark.search(turns=4)
@pytest.mark.processes
@pytest.mark.spark
@pytest.mark.timeout(590)
@pytest.mark.parametrize("page", WITH_CODE, ids=ids)
def test_a_page_does_what_it_says(page: Path, tour: Tour) -> None:
    rule = RULES.get(page.name, Rule())
    for module in rule.needs:
        pytest.importorskip(module)
    if missing := [program for program in rule.programs if shutil.which(program) is None]:
        pytest.skip(f"{', '.join(missing)}: not installed")
    with elsewhere(page) as texts, tour.reader(texts) if rule.shared else reader_of_a_page(texts) as reader:
        for step in rule.before:
            if step != TOUR:
                reader.run(step)
            elif not rule.shared:
                follow_tour(reader)
        follow(reader, page, rule)
        for pattern in rule.says:
            assert re.search(pattern, reader.said, re.MULTILINE), f"{pattern} is not in:\n{reader.said}"


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_block_says_what_it_is(page: Path) -> None:
    unknown = [block for block in blocks(page) if block.language not in (*RUN, *SHOWN)]
    assert [f"{page.name}:{block.line}: ```{block.language}" for block in unknown] == []


@pytest.mark.parametrize("page", WITH_CODE, ids=ids)
def test_every_file_of_a_page_has_a_name(page: Path) -> None:
    nameless = [block for block in blocks(page) if block.language == "yaml" and block.is_followed and not block.file]
    assert [f"{page.name}:{block.line}: no file is named" for block in nameless] == []


def test_every_block_that_is_not_followed_has_a_test_of_its_own() -> None:
    """tests/cloud_hub/tables/test_columns.py runs four, tests/spark_sinks/test_delta_spark.py the fifth, and
    tests/functions/test_python.py trains and scores, and tests/functions/test_pages.py
    writes a function. tests/interop/test_pages.py and test_pages.py follow pages with real brokers, and
    tests/functions/test_sparkplug_on_a_node.py runs the query over tags, and
    tests/end_to_end/test_down_kills.py and tests/cloud_hub/http/test_messages.py publish to edges,
    tests/weft/test_hub_tables.py declares schemas, test_down_kills.py pulls from an edge,
    tests/cloud_hub/tables/test_erasure.py waits for the end of an erasure, tests/cloud_hub/tables/test_service.py
    declares a term of the log, tests/weft/test_client.py asks a hub with tokens, tests/weft/test_doctor.py calls the
    doctor of an edge, tests/deploy/test_release.py checks a signed release, tests/deploy/test_debian_package.py
    installs packages, tests/cloud_hub/console opens a hub in a browser, tests/weft/test_hub_approvals.py has a second
    person approve acts, tests/weft/test_hub_regions.py compares regions,
    tests/spark_sinks/source/test_moving.py moves queries between them,
    tests/cloud_hub/http/test_sharing.py reads shared tables in pandas,
    tests/cloud_hub/http/test_iceberg.py and tests/cloud_hub/tables/test_iceberg.py read by Iceberg,
    tests/end_to_end/test_engines.py reads with engines of others, tests/cloud_hub/reads/test_sql.py asks in SQL,
    tests/cloud_hub/kafka/test_broker.py reads by Kafka, tests/end_to_end/test_pairs.py has devices of a pair, and
    tests/cloud_hub/reads/test_series.py asks what a dashboard of Grafana asks."""
    left_out = [(page.name, block.language) for page in PAGES for block in blocks(page) if not block.is_followed]
    model = [("score-with-a-model.md", "sh"), ("score-with-a-model.md", "python")]
    own = [("write-a-function.md", "python")] * 4
    brokers = {
        "behind-an-existing-mosquitto.md": 3,
        "feed-from-a-plc-with-sparkplug.md": 1,
        "feed-from-node-red.md": 1,
        "replace-rabbitmq-at-the-edge.md": 2,
        "store-what-amqtt-receives.md": 1,
    }
    steps = [("run-a-pipeline.md", "python"), *[("publish-to-edges.md", "sh")] * 2]
    steps += [("typed-tables.md", language) for language in (*["sh"] * 6, *["python"] * 2)]
    steps += [
        ("pull-records-from-an-edge.md", "sh"),
        ("erase-a-person.md", "sh"),
        ("remove-old-rows.md", "sh"),
        *[("ask-a-hub-from-python.md", "python")] * 3,
        ("ask-a-hub-from-anywhere.md", "sh"),
        ("declare-tokens-and-tenants.md", "sh"),
        ("read-by-iceberg.md", "sh"),
        ("read-by-iceberg.md", "python"),
        ("read-by-iceberg.md", "sql"),
        *[("read-from-engines.md", "python")] * 8,
        *[("read-from-engines.md", "sql")] * 3,
        *[("transform-with-dbt.md", "sh")] * 2,
        *[("run-by-a-scheduler.md", "sh")] * 2,
        *[("find-out-what-is-wrong.md", "sh")] * 2,
        ("operator.md", "sh"),
        ("check-a-release.md", "sh"),
        *[("ask-in-sql.md", "sh")] * 2,
        ("ask-in-sql.md", "sql"),
        ("read-by-kafka.md", "python"),
        ("build-a-pair.md", "python"),
        ("share-tables.md", "sh"),
        ("share-tables.md", "python"),
        ("share-tables.md", "python"),
        ("install-by-package.md", "sh"),
        ("see-a-hub-in-a-browser.md", "sh"),
        *(("chart-a-stream-in-grafana.md", language) for language in ("sh", "sql")),
        ("see-who-did-what.md", "sh"),
        *[("two-regions.md", "sh")] * 3,
        ("lose-a-region.md", "sh"),
    ]
    steps += [("run-a-pipeline.md", "sh"), ("run-a-pipeline.md", "python")]
    steps += [("test-a-pipeline.md", "json"), *[("test-a-pipeline.md", "sh")] * 2]
    steps += [("check-data-quality.md", "sh"), *[("check-data-quality.md", "python")] * 2]
    tags = [("feed-from-a-plc-with-sparkplug.md", "python")]
    with_brokers = [(page, "sh") for page, count in brokers.items() for _ in range(count)]
    assert sorted(left_out) == sorted([("open-the-table.md", "python")] * 5 + model + own + with_brokers + tags + steps)


def test_every_reason_to_leave_a_command_out_is_used() -> None:
    shell = [block.text for page in PAGES for block in blocks(page) if block.language == "sh"]
    found = [command for text in shell for command in commands(text)]
    unused = [pattern for pattern in CANNOT_RUN if not any(re.match(pattern, command) for command in found)]
    assert unused == []


def test_commands_are_told_apart_as_a_shell_does() -> None:
    text = "# a comment\nweft a \\\n  b  # it's one\n\nweft 'c\nd'\n"
    assert list(commands(text)) == ["weft a \\\n  b  # it's one", "weft 'c\nd'"]


def test_a_command_that_a_shell_would_change_is_left_to_it() -> None:
    assert words_of("weft a 'b-*' \"$.c > 1\" \\\n  --d  # e") == ["weft", "a", "b-*", "$.c > 1", "--d"]
    for text in ("weft a > b", "weft a; weft b", 'weft "$A"', "weft $(a)", "weft a | b", "weft ~/a"):
        assert words_of(text) == []


def test_no_block_of_a_page_goes_unseen(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text.\n\n    indented command\n\n- A list:\n\n    its second paragraph\n\n  ```sh\n  in a list\n  ```\n\n"
        "Write `a.yaml`:\n\n```yaml\nb: 1\n```\n\n```\nwithout a language\n```\n"
    )
    found = [(block.language, block.text, block.line, block.file) for block in blocks(page)]
    assert found == [
        ("sh", "indented command\n", 3, None),
        ("sh", "in a list\n", 9, None),
        ("yaml", "b: 1\n", 15, "a.yaml"),
        ("", "without a language\n", 19, "a.yaml"),
    ]


@pytest.mark.processes
def test_stand_ins_do_what_pages_ask_of_the_tools(tmp_path: Path) -> None:
    config = tmp_path / "edge.yaml"
    config.write_text(NODE)
    pub, sub, curl = (stand_in(tmp_path / name) for name in ("mosquitto_pub", "mosquitto_sub", "curl"))
    node = Node("edge", config)
    try:
        where = ["-h", "127.0.0.1", "-p", str(node.mqtt_port), "-q", "1", "-t", "plant/a"]
        subprocess.run([pub, *where, "-m", "21.5", "-r"], check=True)
        got = subprocess.run([sub, *where, "-C", "1"], check=True, capture_output=True, text=True, timeout=PATIENCE_S)
        assert got.stdout == "21.5\n"
        url = f"{node.url}status"
        reported = subprocess.run(
            [curl, "-H", "Accept: a/b", url], check=True, capture_output=True, text=True, timeout=PATIENCE_S
        )
        assert json.loads(reported.stdout)["streams"]["telemetry"]["durable_end"] == 1
        assert node.stop() == 0
    finally:
        node.kill()
