"""The reference page of the engine's options, made of the table `EngineOptions` (`llmsim schema
--options`).
"""

from collections.abc import Mapping
from typing import Any

from llmsim.config.engine.options import EngineOptions, command_line_options
from llmsim.config.engine.scheduler_kinds import FEATURES, INSTALLED, KINDS, SCHEDULERS

HEADING = """\
# Engine options

`llmsim schema --options` prints this page. Each option is a key of `engine` or of an instance in the cluster file.
A key of an instance comes first, then the command line, then `engine`, then the engine profile.

| key | command line | values | meaning |
| --- | --- | --- | --- |
"""  # noqa: E501
LARGE = (1 << 31) - 1
"""A limit from here on only keeps a number within its integer type."""


def options_page() -> str:
    """The page in Markdown, a row per option in the order of the table."""
    properties = EngineOptions.model_json_schema()["properties"]
    on_command_line = command_line_options()
    rows = []
    for name in EngineOptions.model_fields:
        mark = on_command_line.get(name)
        names = "" if mark is None else ", ".join(f"`{one}`" for one in mark[0].declarations(name))
        meaning = str(EngineOptions.model_fields[name].description)
        rows.append(f"| `{name}` | {names} | {_values(properties[name])} | {meaning} |\n")
    return HEADING + "".join(rows)


def features_table() -> str:
    """Which scheduler goes with which feature, in Markdown; the reason of each that does not."""
    heading = "| feature | goes with | does not go with |\n| --- | --- | --- |\n"
    native = [KINDS[name] for name in SCHEDULERS if name != INSTALLED]
    rows = []
    for feature, meaning in FEATURES.items():
        able = ", ".join(f"`{kind.name}`" for kind in native if feature not in kind.lacks)
        reasons: dict[str, list[str]] = {}
        for kind in native:
            if feature in kind.lacks:
                reasons.setdefault(kind.lacks[feature], []).append(f"`{kind.name}`")
        others = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
        rows.append(f"| {meaning} | {able} | {others} |\n")
    return heading + "".join(rows)


def _values(schema: Mapping[str, Any]) -> str:
    """The type and its limits, in words."""
    kinds = [kind for kind in schema.get("anyOf", [schema]) if kind.get("type") != "null"]
    return " or ".join(_kind(kind) for kind in kinds)


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if "$ref" in schema:
        return "object"
    if schema.get("type") == "array":
        return f"list of {_kind(schema['items'])}"
    unit = f" {schema['unit']}" if "unit" in schema else ""
    return ", ".join([f"{schema.get('type', 'any')}{unit}", *_limits(schema)])


def _limits(schema: Mapping[str, Any]) -> list[str]:
    words = {
        "minimum": "at least",
        "exclusiveMinimum": "above",
        "maximum": "at most",
        "exclusiveMaximum": "below",
    }
    given = [(word, schema[key]) for key, word in words.items() if key in schema]
    return [f"{word} {limit}" for word, limit in given if limit < LARGE]
