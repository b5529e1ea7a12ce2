"""Which part of a search a run makes: in CI a slice that moves with the commit, at night the whole, with other seeds.

A search tries seeds, kills, power cuts, damage or random examples, and more of them find more. Its tests have the mark
``search``, which makes them slow. Consecutive commits search consecutive seeds, so that many commits search as much as
a night. ``WEFT_SLICE`` repeats what a run made: ``926`` that of the 926th commit, ``night-7`` the seventh pass of a row
of ``./run nightly``. Without git every run is slice 0.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
VARIABLE = "WEFT_SLICE"
NIGHT = "night-"
# The number of commits, not random seeds: two runs of one commit would differ. Not the commit's id: seeds would
# overlap, and no one could say what was searched.
CI_SEEDS = 1_000_000_000
"""Seeds below this one are those of nights, and of tests that choose theirs."""
T = TypeVar("T")


@dataclass(frozen=True)
class Slice:
    """A part of every search."""

    number: int
    is_night: bool = False

    @classmethod
    def parse(cls, text: str) -> Slice:
        """Read what ``str`` gives."""
        return cls(int(text.removeprefix(NIGHT)), text.startswith(NIGHT))

    def __str__(self) -> str:
        return f"{NIGHT if self.is_night else ''}{self.number}"

    def amount(self, ci: T, night: T) -> T:
        """Return how much of a search this slice makes."""
        return night if self.is_night else ci

    def seeds(self, ci: int, night: int) -> range:
        """Return the seeds of this slice: no two slices have a seed in common.

        Args:
            ci: how many there are in CI.
            night: how many there are in a pass at night.
        """
        count = self.amount(ci, night)
        first = self.number * count + self.amount(CI_SEEDS, 0)
        return range(first, first + count)

    @property
    def seed(self) -> int:
        """The seed of a search that needs one."""
        return self.seeds(1, 1)[0]

    def some(self, options: Sequence[T], ci: int) -> list[T]:
        """Return as many of these in CI, the next ones in the next slice; all of them at night."""
        if self.is_night or ci >= len(options):
            return list(options)
        return [options[(self.number * ci + each) % len(options)] for each in range(ci)]


def slice_of_commit(root: Path) -> int:
    """Return the number of commits up to the HEAD of a checkout.

    A shallow one does not know them: there it is a number that each commit draws.
    """
    try:
        if _git(root, "rev-parse", "--is-shallow-repository") == "true":
            return int(_git(root, "rev-parse", "HEAD")[:7], 16)
        return int(_git(root, "rev-list", "--count", "HEAD"))
    except (OSError, subprocess.CalledProcessError):
        return 0


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(
        # The checkout may be another user's: it is only asked for numbers.
        ["git", "-c", "safe.directory=*", "-C", str(root), *arguments],
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout.strip()


SLICE = Slice.parse(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else Slice(slice_of_commit(ROOT))
"""The slice of this run."""
