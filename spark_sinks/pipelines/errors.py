"""The error of a pipeline that cannot run as it is written."""

from __future__ import annotations

from weft.config.errors import Finding, KeyPath, format_path


class PipelineError(ValueError):
    """A setting of a pipeline that does not work. The message names the problem and the remedy."""

    def __init__(self, path: KeyPath, message: str) -> None:
        self.finding = Finding(path, message)
        super().__init__(f"{format_path(path)}: {message}")

    def __reduce__(self) -> tuple[type[PipelineError], tuple[KeyPath, str]]:
        """Return the arguments for a copy: Spark sends errors from process to process by pickle."""
        return type(self), self.finding
