"""Fuzzes one decoder by coverage, with atheris, or feeds inputs to it again.

    python -m tests.fuzz batch -max_total_time=60          from the corpus, with options of libFuzzer
    python -m tests.fuzz batch FILE...                     these inputs only, as after a failure
    python -m tests.fuzz write                             the seeds of all targets into the corpus

What a run finds beyond the corpus goes to the folder that is given first: ``python -m tests.fuzz batch found
tests/fuzz/corpus/batch``.
"""

from __future__ import annotations

import hashlib
import logging
import sys
from pathlib import Path
from types import ModuleType

from tests.fuzz.target import CORPUS, INPUT_BYTES_MAX, check, check_memory, tracing

SEED_BYTES_MAX = 16 << 10
"""Longer seeds stay out of the corpus: the targets have them."""


def write() -> None:
    """Write the seeds of all targets; inputs that were found stay."""
    from tests.fuzz.targets import TARGETS

    for name, target in TARGETS.items():
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for seed in target.seeds():
            if len(seed) <= SEED_BYTES_MAX:
                (folder / hashlib.sha256(seed).hexdigest()[:16]).write_bytes(seed)


def repeat(name: str, files: list[Path]) -> None:
    """Feed inputs to a target again."""
    from tests.fuzz.targets import TARGETS

    for path in files:
        check(TARGETS[name], path.read_bytes())
        with tracing():
            check_memory(TARGETS[name], path.read_bytes())
        print(f"{path}: as it should be")


def fuzz(atheris: ModuleType, name: str, options: list[str]) -> None:
    """Run one target under atheris; ends the process."""
    with atheris.instrument_imports(include=["weft", "websockets"]):
        from tests.fuzz.targets import TARGETS
    target = TARGETS[name]
    if not any(not option.startswith("-") for option in options):
        options = [*options, str(CORPUS / name)]
    atheris.Setup([sys.argv[0], f"-max_len={INPUT_BYTES_MAX}", *options], lambda data: check(target, data))
    atheris.Fuzz()


def main() -> None:
    """Read the command line."""
    logging.disable(logging.CRITICAL)  # thousands of expected complaints
    match sys.argv[1:]:
        case ["write"]:
            write()
        case [name, *files] if files and all(Path(file).is_file() for file in files):
            repeat(name, list(map(Path, files)))
        case [name, *options]:
            import atheris  # type: ignore[import-untyped, import-not-found, unused-ignore]

            fuzz(atheris, name, options)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
