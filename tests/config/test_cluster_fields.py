"""Every field of the cluster schema x missing, wrong type, out of range, misspelt: one sentence
with its place.
"""

import math
from collections.abc import Iterator
from typing import Any

import pytest
from cluster_examples import full, full_layouts, parsed

from llmsim.config import EngineOverrides, cluster_schema, resolve
from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.errors import InputError
from llmsim.config.schema import schema_at

SCHEMA = cluster_schema()
FREE_KEYS = [
    ("nodes", 0, "power", "npu", "H100"),
    ("nodes", 0, "instances", 0, "placement", "layers", "lm_head"),
    ("slo_classes", "chat"),
]
VALUES: dict[str, Any] = {
    "integer": 3,
    "number": 2.5,
    "boolean": True,
    "string": "x",
    "array": [],
    "object": {},
}
JSON_TYPE = {
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}


def locations(node: Any, here: Location = ()) -> Iterator[Location]:
    if here:
        yield here
    members = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, value in members:
        yield from locations(value, (*here, key))


FIELDS = list(locations(full()))
NAMED = [location for location in FIELDS if isinstance(location[-1], str)]


def value_at(document: Any, location: Location) -> Any:
    for part in location:
        document = document[part]
    return document


def edited(location: Location, value: Any) -> Any:
    document = full()
    value_at(document, location[:-1])[location[-1]] = value
    return document


def refusal(document: Any) -> str:
    """The message of the refusal; it must be one line that names the file."""
    with pytest.raises(InputError) as caught:
        parsed(document)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("c.json:")
    assert len(message) < 900
    assert "pydantic" not in message
    return message


def accepts(location: Location, kind: str) -> bool:
    node = schema_at(SCHEMA, location)
    kinds = {node.get("type"), "array" if node.get("or_list") else None}
    return kind in kinds or (kind == "integer" and "number" in kinds)


def test_the_full_example_gives_every_key_of_the_schema() -> None:
    def properties(node: Any) -> Iterator[str]:
        if isinstance(node, dict):
            yield from node.get("properties", {})
        for value in (
            node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
        ):
            yield from properties(value)

    of_layouts = {location[-1] for location in locations(full_layouts())}
    assert set(properties(SCHEMA)) <= {location[-1] for location in NAMED} | of_layouts
    parsed(full())
    parsed(full_layouts())


@pytest.mark.parametrize("location", NAMED, ids=field_path)
def test_a_missing_field_is_named_or_has_a_default(location: Location) -> None:
    document = full()
    del value_at(document, location[:-1])[location[-1]]
    if location[-1] in schema_at(SCHEMA, location[:-1]).get("required", []):
        message = refusal(document)
        assert f"{field_path(location)} is missing; expected " in message
    else:
        try:
            parsed(document)
        except InputError as error:  # a rule between fields: as clean as any other
            assert str(error).startswith("c.json:")


@pytest.mark.parametrize("location", FIELDS, ids=field_path)
def test_a_value_of_a_wrong_type_is_refused_with_its_place(location: Location) -> None:
    for kind, value in VALUES.items():
        if accepts(location, kind):
            continue
        message = refusal(edited(location, value))
        assert f"{field_path(location)} is " in message, kind
        assert "; expected " in message


@pytest.mark.parametrize("location", FIELDS, ids=field_path)
def test_null_is_refused_or_means_not_given(location: Location) -> None:
    try:
        parsed(edited(location, None))
    except InputError as error:
        assert str(error).startswith("c.json:")


def out_of_range(node: dict[str, Any]) -> Iterator[Any]:
    whole = node.get("type") == "integer"
    if "minimum" in node:
        yield node["minimum"] - (1 if whole else 1e-6)
    if "exclusiveMinimum" in node:
        yield node["exclusiveMinimum"]
    if "maximum" in node:
        yield node["maximum"] + (1 if whole else max(1e-6, node["maximum"] * 1e-6))
    if "exclusiveMaximum" in node:
        yield node["exclusiveMaximum"]
    if node.get("type") in ("integer", "number"):
        yield from (-1, -0.5, 10**400, True, "1", math.nan, math.inf, -math.inf)
    if node.get("type") == "string":
        yield from (
            ("", "\x00", "\ud800", "x" * 5000) if "enum" not in node else ("", "other", "\ud800")
        )


RANGED = [
    location
    for location in FIELDS
    if schema_at(SCHEMA, location).get("type") in ("integer", "number", "string")
]
UNCHECKED = {("$schema",), ("description",)}


@pytest.mark.parametrize(
    "location", [place for place in RANGED if place not in UNCHECKED], ids=field_path
)
def test_a_value_out_of_range_is_refused_with_its_place(location: Location) -> None:
    values = list(out_of_range(schema_at(SCHEMA, location)))
    assert len(values) >= 2
    for value in values:
        message = refusal(edited(location, value))
        if not (
            isinstance(value, float) and not math.isfinite(value)
        ):  # those stop the JSON reader, with line and column
            assert f"{field_path(location)} is " in message, value
            assert "expected " in message


@pytest.mark.parametrize(
    "location", [place for place in NAMED if place not in FREE_KEYS], ids=field_path
)
def test_a_misspelt_key_is_recognised(location: Location) -> None:
    key = location[-1]
    assert isinstance(key, str)
    document = full()
    parent = value_at(document, location[:-1])
    parent[key + "q"] = parent.pop(key)
    message = refusal(document)
    assert (
        f'{field_path((*location[:-1], key + "q"))} is not a known key (did you mean "{key}"?)'
        in message
    )


@pytest.mark.parametrize("location", NAMED, ids=field_path)
def test_the_schema_describes_every_field(location: Location) -> None:
    node = schema_at(SCHEMA, location)
    assert node.get("description"), location
    if node.get("type") == "number":
        unitless = {
            "watermark",
            "gpu_memory_utilization",
            "npu_memory_utilization",
            "mem_util",
            "util",
            "expert_cache",
        }
        unitless |= {
            "hicache_ratio",
            "swa_full_tokens_ratio",
            "mamba_full_memory_ratio",
            "kv_load_failure_rate",
            "acceptance_rate",
            "proposal_rate",
            "synthetic_acceptance_length",
        }
        assert "unit" in node or location[-1] in unitless


@pytest.mark.parametrize("location", NAMED, ids=field_path)
def test_whatever_parses_also_resolves_or_is_refused_cleanly(location: Location) -> None:
    for value in (0, 1, None, [], [1], "fp8", "npu"):
        try:
            resolve(parsed(edited(location, value)), EngineOverrides())
        except InputError as error:
            assert str(error).startswith("c.json:")
