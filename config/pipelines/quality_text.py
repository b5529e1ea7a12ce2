"""Text forms of quality rules: YAML or JSON."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from weft.config.load import parse
from weft.config.payload_schema.quality import OVER_S, QualityRule, QualityRules, UniqueKeys, ValueRange, check_rules
from weft.config.units import format_duration


def parse_rules(text: str, name: str = "rules") -> QualityRules:
    """Return the rules of a text in YAML or JSON.

    Args:
        name: name of the text in errors.

    Raises:
        ConfigError: the text is not rules; the message names the place and the fix.
    """
    return parse(text, name, QualityRules, lambda rules: list(check_rules(rules))).config


def rules_text(rules: QualityRules) -> str:
    """Return rules in YAML, as ``parse_rules`` reads them: a line for each rule."""
    vanished = "null" if rules.vanished_after is None else rules.vanished_after
    lines = [*(["quarantine: true"] if rules.quarantine else []), f"vanished_after: {vanished}", "rules:"]
    for name, rule in rules.rules.items():
        written = yaml.safe_dump(
            _written(rule), allow_unicode=True, default_flow_style=True, sort_keys=False, width=1 << 20
        )
        lines.append(f"  {name}: {written.rstrip()}")
    return "\n".join(lines) + "\n"


def _written(rule: QualityRule) -> dict[str, Any]:
    name, value = rule.chosen
    if isinstance(value, ValueRange):
        value = {key: _number(each) for key, each in msgspec.to_builtins(value).items() if each is not None}
    elif isinstance(value, UniqueKeys):
        is_short = value.within == UniqueKeys(fields=("",)).within
        value = [*value.fields] if is_short else {"fields": [*value.fields], "within": value.within}
    elif name == "fresh":
        value = format_duration(value)
    told: dict[str, Any] = {name: value}
    if rule.tolerate:
        told["tolerate"] = rule.tolerate
    if rule.over_s != OVER_S:
        told["over"] = format_duration(rule.over_s)
    return told


def _number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value
