"""An alert, its rule for Prometheus and its row of the reference page."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import yaml

CRITICAL: Literal["critical"] = "critical"
WARNING: Literal["warning"] = "warning"
EDGE_JOB, HUB_JOB = "weft-edge", "weft-hub"
"""Names of the scrape jobs; only the two alerts on nodes that do not answer need them."""
_WIDTH = 110
_VALUE = re.compile(r"{{ \$value[^}]*}}")
_LABEL = re.compile(r"{{ \$labels\.(\w+) }}")


# Definitions of a line or two, because 5,000 lines of Grafana's JSON cannot be reviewed; not Jsonnet, a language and
# tool chain for 150 lines.
class Alert(NamedTuple):
    """One alerting rule."""

    name: str
    when: str
    """The expression."""
    lasting: str
    """Time for which it must hold, such as ``15m``; ``0m`` alerts at once."""
    severity: Literal["critical", "warning"]
    says: str
    """Sentence without its full stop: the state that is wrong."""
    do: str
    """Advice: the next step of an operator."""
    page: str = ""
    """Name of the how-to page that says more."""
    about: tuple[str, ...] = ()
    """Labels besides ``instance`` that name what it is about."""
    by_instance: bool = True
    """False for what concerns no single node."""

    def rule(self) -> dict[str, Any]:
        """Return the rule as Prometheus reads it."""
        subject = ["{{ $labels.instance }}"] if self.by_instance else []
        subject += [f"{label} {{{{ $labels.{label} }}}}" for label in self.about]
        about = f"{', '.join(subject)}: " if subject else ""
        annotations = {"summary": f"{about}{self.says}. {self.do}"}
        if self.page:
            annotations["page"] = f"docs/how-to/{self.page}"
        return {
            "alert": self.name,
            "expr": self.when,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": annotations,
        }


def rules_file(groups: Sequence[tuple[str, Sequence[Alert]]], comment: str) -> str:
    """Return a file of rules with one group for each sequence of alerts."""
    document = {"groups": [{"name": name, "rules": [each.rule() for each in alerts]} for name, alerts in groups]}
    return comment + yaml.safe_dump(document, sort_keys=False, width=_WIDTH, allow_unicode=True)


def reference_rows(alerts: Sequence[Alert]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of the reference page: name, severity, time, what is wrong, what to do."""
    for each in alerts:
        yield (
            f"`{each.name}`",
            each.severity,
            each.lasting,
            _VALUE.sub("N", _LABEL.sub("", each.says).replace(" ()", "")),
            each.do,
        )
