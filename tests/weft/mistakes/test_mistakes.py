"""People make mistakes; each gets one message that names what is wrong and what to do, and a documented exit status."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.weft.mistakes import place as surroundings
from tests.weft.mistakes.place import Mistake, Place, Said, made
from tests.weft.mistakes.table_access import ACCESS, CERTIFICATES, CREDENTIALS, EXPOSURE
from tests.weft.mistakes.table_machine import MACHINE, PIPELINES, PROGRAMS, SCHEMAS
from tests.weft.mistakes.table_reading import READING, USAGE
from tests.weft.mistakes.table_settings import SETTINGS, YAML
from weft.cli import main
from weft.output import EXIT_CODES

TABLE = [
    *YAML,
    *SETTINGS,
    *SCHEMAS,
    *MACHINE,
    *CREDENTIALS,
    *CERTIFICATES,
    *EXPOSURE,
    *USAGE,
    *READING,
    *ACCESS,
    *PROGRAMS,
    *PIPELINES,
]
WORDS_MAX = 25
_PLACE = re.compile(r"^(?:weft|warning|WARNING weft|Error): |\S+\.yaml(?::\d+)?: |^[a-z_.]+: ")
_LIST = re.compile(r"\([^)]*,[^)]*\)")
_SENTENCE_END = re.compile(r"(?<=[.?!])\s+|\n")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with made() as found:
        surroundings.files_of(found, tmp_path_factory.mktemp("files"))
        surroundings.machine(found)
        with surroundings.running(found):
            yield found


def test_the_table_is_long_and_its_rows_differ() -> None:
    assert len(TABLE) >= 103
    assert len({mistake.did for mistake in TABLE}) == len(TABLE)
    assert len({(mistake.command, *mistake.files.items(), mistake.given) for mistake in TABLE}) == len(TABLE)


@pytest.mark.parametrize(
    "mistake",
    # A hub tries a bucket for 17 seconds before it says so; an audit, which says the same, for one.
    [pytest.param(row, marks=pytest.mark.slow) if row.did == "a bucket that does not answer" else row for row in TABLE],
    ids=lambda mistake: mistake.did.replace(" ", "-"),
)
def test_a_mistake(mistake: Mistake, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    if mistake.needs and not place.filled(mistake.needs, Path()):
        pytest.skip(f"this machine has no {mistake.needs}")
    folder = place.folder(mistake.files)
    monkeypatch.chdir(folder)
    arguments = [place.filled(each, folder) for each in mistake.arguments]
    said = in_process(arguments, place, folder) if mistake.in_process else place.run(arguments, folder, mistake.given)
    assert (said.stderr or said.stdout, said.exit_status) == (mistake.message, mistake.exit_status)
    assert said.exit_status in EXIT_CODES
    if mistake.exit_status and said.stderr:
        assert not said.stdout or "--json" in arguments


@pytest.mark.parametrize("mistake", TABLE, ids=lambda mistake: mistake.did.replace(" ", "-"))
def test_a_message_reads_well(mistake: Mistake) -> None:
    assert mistake.message
    for word in ("Traceback", "WEFT_TRACEBACK", "Errno", "None", "nobody", "hunter2"):
        assert word not in mistake.message
    for message in sentences(mistake.message):
        assert len(message.split()) <= WORDS_MAX, message


def in_process(arguments: list[str], place: Place, folder: Path) -> Said:
    """A command in this process, by the entry point of ``weft``."""
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), pytest.raises(SystemExit) as ended:
        main(arguments)
    assert isinstance(ended.value.code, int)
    return Said(ended.value.code, *(place.emptied(each.getvalue(), folder) for each in (stdout, stderr)))


def sentences(message: str) -> Iterator[str]:
    """What people read as one: without file, line and setting, and of JSON the texts."""
    if message.startswith("{"):
        facts = json.loads(message)
        lines = [facts["error"]] if "error" in facts else [each["message"] for each in facts["errors"]]
        message = "\n".join(lines)
    for line in message.splitlines():
        yield from _SENTENCE_END.split(_LIST.sub("", _PLACE.sub("", line)))


def test_every_exit_status_is_documented() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    for status, meaning in EXIT_CODES.items():
        assert f"| {status} | {meaning} |" in page
    assert {mistake.exit_status for mistake in TABLE} <= EXIT_CODES.keys()


def test_it_runs_as_a_user_without_rights(place: Place) -> None:
    """Otherwise rows about rights would say nothing."""
    folder = place.folder({"closed@0000": "x"})
    said = place.run(["user", "list", "--file", str(folder / "closed")], folder)
    assert said.exit_status
    assert os.geteuid() == 0 or not os.access(folder / "closed", os.R_OK)
