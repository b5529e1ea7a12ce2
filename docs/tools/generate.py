"""Generator of docs/architecture.svg, of settings.md, metrics.md, alerts.md, cli.md and openapi.json of docs/reference,
of deploy/monitoring and of the charts' schemas, from the code, of the list of decisions from their pages, and of
docs/downsampling.md with its pictures, from the code and real data.

It also fills the columns of the pages on conformance that name tests, and wraps the pages that people write. ``./run
docs`` and ``./run fix`` call it. A test fails while a page or a picture differs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from docs.tools import downsampling, prose
from docs.tools.chart_schemas import CHARTS, chart_schemas
from docs.tools.commands import contexts
from docs.tools.monitoring.files import alert_rows, monitoring_files
from docs.tools.picture import picture
from tests.architecture import amqp_conformance, mqtt_conformance
from weft.cli import cli
from weft.commands.groups import COMMANDS, SUMMARIES, Command, Group
from weft.config.metrics.edge import EDGE_METRICS
from weft.config.metrics.hub import HUB_METRICS
from weft.config.metrics.metric import PROCESS_METRICS
from weft.config.models import EdgeConfig, HubConfig
from weft.config.pipelines import Pipeline
from weft.config.schema import settings
from weft.hub_api.operations import document
from weft.output import EXIT_CODES

_EXIT = """Commands print answers on standard output and errors on standard error."""
_PIPELINES = """\
Settings of a pipeline's YAML file; [Run a pipeline](../how-to/run-a-pipeline.md) shows one at work. Durations are
written `10s`, `1h30m`. Relative paths start at the folder of the file; those of a shipped pipeline at the working
directory. Unknown settings are errors. Secrets stay in files or in the environment.
`weft config schema pipeline` prints a JSON Schema for editors; `config/examples/` has complete examples."""
_ERRORS = """With `--json` an error is one line of JSON, the last on standard error; standard output stays empty:

```json
{"error": "edge.yaml:1: node: ...", "exit_status": 2, "problems":
  [{"file": "edge.yaml", "line": 1, "setting": "node", "message": "expected text ..."}]}
```

`problems` is empty when no configuration is at fault; `line` and `setting` are null for a file as a whole. An answer of
"no" is not an error and goes to standard output:

- `weft edge status --json` of a node that does not run
- `weft audit --json` of a table that lacks records
- `weft edge check --json` and `weft hub check --json` of a wrong configuration, which print `errors` and `warnings`,
  both in the form of `problems`."""
_DECISIONS = """\
One page each: the context, what was decided, what else was considered, and what follows. Written when the alternatives
are worth remembering; the reason itself is in a comment where the code decides. The status is `accepted`, or
`replaced by` another page. A small decision is a section of the page on its subject. A number that is missing here
stands in a comment alone, where the code decides; its page is in the history. Lines end at 120 columns."""
DOCS = Path(__file__).parents[1]
REFERENCE = DOCS / "reference"
DECISIONS = DOCS / "decisions"
PICTURE = DOCS / "architecture.svg"
SUMMARY_FILE = DOCS.parent / "weft" / "commands" / SUMMARIES
MONITORING = DOCS.parent / "deploy" / "monitoring"
_DECISION = re.compile(r"^##? (\d{4}): (.+)\n\n(?:Status: .+\n)?Date: (\S+)$", re.MULTILINE)
_GENERATED = "<!-- Written by docs/tools/generate.py from the code. Edit the code. -->"


def pages() -> dict[str, str]:
    """Return file name -> content of every generated page."""
    return {
        "settings.md": _settings_page(),
        "pipelines.md": _pipelines_page(),
        "metrics.md": _metrics_page(),
        "alerts.md": _alerts_page(),
        "cli.md": _cli_page(),
        "openapi.json": json.dumps(document(), indent=1) + "\n",
    }


def _settings_page() -> str:
    lines = [
        "# Settings",
        _GENERATED,
        "",
        "Durations are written `250ms`, `10s`, `1h30m`; sizes `64KiB`, `16MiB`, `2GiB`. Relative paths start at",
        "the folder of the configuration file. Unknown settings are errors. Secrets stay in files or in the",
        "environment, never in the configuration. `weft config schema edge` prints a JSON Schema for editors;",
        "`config/examples/` has complete examples.",
    ]
    for title, model in (("Edge node", EdgeConfig), ("Hub", HubConfig)):
        lines += ["", f"## {title}", "", model.__doc__ or "", "", *_settings_table(model)]
    return "\n".join(lines) + "\n"


def _settings_table(model: type[msgspec.Struct]) -> Iterator[str]:
    yield from ("| setting | expected | default | meaning |", "|---|---|---|---|")
    for setting in settings(model):
        default = f"`{setting.default}`" if setting.default not in ("", "required", "none") else setting.default
        yield _row(f"`{setting.path}`", setting.expected, default, setting.description)


def _pipelines_page() -> str:
    lines = ["# Pipelines", _GENERATED, "", *_PIPELINES.splitlines(), "", *_settings_table(Pipeline)]
    return "\n".join(lines) + "\n"


def _metrics_page() -> str:
    lines = [
        "# Metrics",
        _GENERATED,
        "",
        "In Prometheus format at `/metrics` of each node. A node has those of HTTP, AMQP",
        "and queues where a listener speaks the protocol.",
    ]
    for title, metrics in (("Edge node", EDGE_METRICS), ("Hub", HUB_METRICS), ("Both", PROCESS_METRICS)):
        lines += ["", f"## {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|"]
        lines += [_row(f"`{m.name}`", m.kind, ", ".join(m.labels), m.help) for m in metrics]
    return "\n".join(lines) + "\n"


def _alerts_page() -> str:
    lines = [
        "# Alerts",
        _GENERATED,
        "",
        "The rules of `deploy/monitoring/weft-alerts.yaml` for Prometheus;",
        "[watch a fleet](../how-to/watch-a-fleet.md) describes their use. An alert fires when its condition held for",
        "the time under `after`. N is the value that was measured.",
    ]
    for title, rows in alert_rows():
        lines += ["", f"## {title}", "", "| alert | severity | after | meaning | what to do |", "|---|---|---|---|---|"]
        lines += [_row(*cells) for cells in rows]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _cli_page() -> str:
    lines = ["# Command line", _GENERATED, "", *_EXIT.splitlines(), "", "| exit status | meaning |", "|---|---|"]
    lines += [_row(str(status), meaning) for status, meaning in EXIT_CODES.items()]
    lines += ["", *_ERRORS.splitlines()]
    for context in contexts("weft", cli):
        lines += ["", f"## `{context.command_path}`", "", "```text", context.get_help().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def decisions_page() -> str:
    """Return the list of decisions in the order of their numbers.

    A decision is a page, or a section of a page on its subject. Either has a title "NUMBER: TITLE", and its date below.
    """
    found = list[tuple[str, str, str, str]]()
    for page in DECISIONS.glob("0*.md"):
        own = page.name[:4]
        for number, title, date in _DECISION.findall(page.read_text()):
            place = page.name if number == own else f"{page.name}#{_anchor(f'{number}: {title}')}"
            see = "" if number == own else f"see [{own}]({page.name}): "
            found.append((number, date, see, f"[{title}]({place})"))
    lines = ["# Decisions", _GENERATED.replace("code", "pages"), "", *_DECISIONS.splitlines(), ""]
    lines += ["| number | date | decision |", "|---|---|---|"]
    lines += [_row(number, date, f"{see}{link}") for number, date, see, link in sorted(found)]
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    """Return the anchor of a heading, as GitHub and the site make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _commands(group: Group) -> Iterator[Command]:
    """Yield the commands of a group and of those in it."""
    for entry in group.commands.values():
        if isinstance(entry, Group):
            yield from _commands(entry)
        else:
            yield entry


def summaries() -> str:
    """Return the first sentence of each command, as lists of commands show it."""
    texts = {each.place: each.load("").get_short_help_str(1000) for each in _commands(COMMANDS)}
    return "".join(f"{place}\t{text}\n" for place, text in sorted(texts.items()))


def main() -> None:
    """Write everything."""
    SUMMARY_FILE.write_text(summaries())
    for file, text in pages().items():
        (REFERENCE / file).write_text(text)
    (DECISIONS / "README.md").write_text(decisions_page())
    PICTURE.write_text(picture())
    for file, text in monitoring_files().items():
        (MONITORING / file).write_text(text)
    for file, text in chart_schemas().items():
        (CHARTS / file).write_text(text)
    for file, text in downsampling.pages().items():
        (DOCS / file).write_text(text)
    for conformance in (amqp_conformance, mqtt_conformance):
        conformance.PAGE.write_text(conformance.filled(conformance.PAGE.read_text()))
    prose.wrap_pages()


if __name__ == "__main__":
    main()
