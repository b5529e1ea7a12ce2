"""Result of a check."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from pyspark.sql import DataFrame

from weft.config.errors import Finding, KeyPath
from weft.config.pipelines.pipeline import Pipeline


class StepColumns(NamedTuple):
    """The columns that a step makes, in their order."""

    step: str
    """``source``, the number of the step with its name, or ``sink``."""
    columns: dict[str, str]
    """Name -> type, as Spark writes it."""


@dataclass
class Report:
    """Findings of a check. The pipeline can start if there are no errors."""

    errors: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    steps: list[StepColumns] = field(default_factory=list)
    """Columns of the source and of each step up to the first one that is wrong."""

    @property
    def is_good(self) -> bool:
        """Return whether the pipeline can start."""
        return not self.errors

    def refuse(self, path: KeyPath, message: str) -> None:
        """Add an error."""
        self.errors.append(Finding(path, message))

    def doubt(self, path: KeyPath, message: str) -> None:
        """Add a warning."""
        self.warnings.append(Finding(path, message))

    def show(self, step: str, frame: DataFrame) -> None:
        """Add the columns of a step."""
        self.steps.append(StepColumns(step, {each.name: each.dataType.simpleString() for each in frame.schema.fields}))


def step_name(pipeline: Pipeline, at: int) -> str:
    """Return a step's name for people: its number from 1 and its name."""
    name = pipeline.steps[at].name
    return f"step {at + 1}" + (f" ({name})" if name else "")
