"""Code runs as one of the edge's keys signed it, or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.functions.python.conftest import Subject
from tests.support.processes import weft
from weft.commands.common import check_code, located_edge
from weft.config.signing import make_key
from weft.functions.contract import NotReady
from weft.output import Refused

Make = Callable[..., Subject]
CODE = "import other\ndef process(record, ctx):\n    return {'by': '%s', 'other': other.NAME}\n"


def sign(*files: Path, key: str = "ops") -> None:
    done = weft("config", "sign-code", *files, "--key", files[0].parent / f"{key}.key")
    assert done.exit_code == 0, done.exception


@pytest.fixture
def keys(tmp_path: Path) -> tuple[str, ...]:
    for name in ("ops", "next", "thief"):
        private, public, _ = make_key()
        (tmp_path / f"{name}.key").touch(0o600)
        (tmp_path / f"{name}.key").write_bytes(private)
        (tmp_path / f"{name}.pub").write_bytes(public)
    return tuple(str(tmp_path / f"{name}.pub") for name in ("ops", "next"))


async def test_code_waits_for_a_signature_and_goes_on_as_it_was_signed(
    subject: Make, keys: tuple[str, ...], tmp_path: Path
) -> None:
    code, other = tmp_path / "score.py", tmp_path / "other.py"
    other.write_text("NAME = 'fine'\n")
    it = subject(CODE % "one", signed_by=keys, files=(str(other),))
    with pytest.raises(NotReady, match=r"score\.py has no signature beside it"):
        await it.feed({"n": 1})
    sign(code)
    with pytest.raises(NotReady, match=r"other\.py has no signature beside it"):
        await it.feed({"n": 1})
    sign(other, key="next")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}]
    it.write(CODE % "two")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}], "changed code must not run"
    assert "score.py was changed after it was signed" in it.function.trouble()
    assert it.function.trouble().endswith("continues")
    sign(code, key="thief")
    assert await it.feed({"n": 1}) == [{"by": "one", "other": "fine"}]
    assert "none of the keys of functions_signed_by" in it.function.trouble()
    sign(code)
    assert await it.feed({"n": 1}) == [{"by": "two", "other": "fine"}]
    assert it.function.trouble() == ""
    other.write_text("NAME = 'other'\n")
    assert await it.feed({"n": 1}) == [{"by": "two", "other": "fine"}]
    # A good signature of another file, under its own name or in its place, is none of this one.
    shutil.copy(f"{code}.sig", f"{other}.sig")
    await it.feed({"n": 1})
    assert "is for a file of the name 'score.py'" in it.function.trouble()


def test_a_configuration_with_code_that_is_not_signed_is_refused(keys: tuple[str, ...], tmp_path: Path) -> None:
    code, config = tmp_path / "score.py", tmp_path / "edge.yaml"
    code.write_text("def process(record, ctx):\n    return record\n")
    config.write_text(
        "node: press-7\ndata_dir: data\nlisteners: {mqtt: null}\nhttp: null\nfunctions_signed_by: [ops.pub, next.pub]\n"
        "streams:\n  raw: {from: '#'}\n  scored: {from_stream: raw, functions: [{python: {file: score.py}}]}\n"
    )
    shown = weft("edge", "check", config)
    assert "streams.scored.functions[0].python.file" in shown.output
    assert "score.py has no signature beside it" in shown.output
    with pytest.raises(Refused, match=r"score\.py has no signature"):
        check_code(located_edge(str(config)))
    sign(code)
    check_code(located_edge(str(config)))
    assert "signature" not in weft("edge", "check", config).output
    (tmp_path / "ops.pub").unlink()
    with pytest.raises(Refused, match=r"ops\.pub: no such file"):
        check_code(located_edge(str(config)))
