"""The JSON Schema of the cluster file, for editors, documentation and error messages."""

from copy import deepcopy
from functools import cache
from typing import Any

from llmsim.config.cluster_file.cluster import Cluster

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def cluster_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of the cluster file; `unit` beside a number says what it counts. The
    caller's own copy.
    """
    return deepcopy(shared_schema())


@cache
def shared_schema() -> dict[str, Any]:
    """What `cluster_schema` copies, for those who only read it: the copy takes longer than a look
    at a field.
    """
    schema = Cluster.model_json_schema(by_alias=True, mode="validation")
    schema.pop("title", None)
    for name in ("Instance", "LayoutInstance"):  # `model` is another name of `model_name`
        instance = schema["$defs"][name]
        instance["required"].remove("model_name")
        instance["anyOf"] = [{"required": ["model_name"]}, {"required": ["model"]}]
    schema["anyOf"] = [{"required": ["nodes"]}, {"required": ["layouts"]}]
    return {"$schema": DIALECT, "title": "llmsim cluster", **_without_titles(schema)}


def _without_titles(node: Any) -> Any:
    """Drops the titles that repeat a key; a property that is itself called "title" is an object and
    stays.
    """
    if isinstance(node, dict):
        return {
            key: _without_titles(value)
            for key, value in node.items()
            if key != "title" or not isinstance(value, str)
        }
    if isinstance(node, list):
        return [_without_titles(item) for item in node]
    return node


def schema_at(schema: dict[str, Any], location: tuple[str | int, ...]) -> dict[str, Any]:
    """The part of the schema that describes a field, references resolved; {} where it has none.

    Of the alternatives of a field it picks the one that the next step of the path fits, null never.
    `or_list` is set where the field may also be a list of what is described.
    """
    node = schema
    for i, part in enumerate(location):
        node = _resolved(schema, node, wants_list=isinstance(part, int))
        node = node.get("items", {}) if isinstance(part, int) else _member(node, part)
        if i == len(location) - 1:
            node = _resolved(schema, node, wants_list=False)
    return node


def _member(node: dict[str, Any], key: str) -> dict[str, Any]:
    if key in node.get("properties", {}):
        return dict(node["properties"][key])
    free = [*node.get("patternProperties", {}).values(), node.get("additionalProperties")]
    return next((dict(member) for member in free if isinstance(member, dict)), {})


def _resolved(root: dict[str, Any], node: dict[str, Any], wants_list: bool) -> dict[str, Any]:
    """Follows $ref and anyOf; description and unit of the outside are kept."""
    while "$ref" in node or "anyOf" in node:
        outer = {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
        if "$ref" in node:
            inner = root["$defs"][node["$ref"].removeprefix("#/$defs/")]
        else:
            branches = [branch for branch in node["anyOf"] if branch.get("type") != "null"]
            lists = [branch for branch in branches if branch.get("type") == "array"]
            inner = lists[0] if wants_list and lists else branches[0]
            if len(branches) > len(lists) > 0 and not wants_list:
                outer["or_list"] = True
        node = {**inner, **outer}
    return node
