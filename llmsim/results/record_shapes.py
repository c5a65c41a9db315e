"""Which kinds of values the JSON files of a run folder hold, for those who read what others may
have edited.

Keys that are missing are left to the reader who needs them: earlier versions wrote fewer.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from llmsim.results.requests.metrics import PERCENTILES


class Leaf(NamedTuple):
    """A value without parts."""

    words: str
    kinds: tuple[type, ...]
    largest: float | None = None
    """Of a number, either side of 0."""


class ListOf(NamedTuple):
    """A list of alike entries."""

    entry: "Shape"


class MapOf(NamedTuple):
    """An object with any keys and alike values."""

    value: "Shape"


class Maybe(NamedTuple):
    """A shape, or null."""

    shape: "Shape"


Shape = Leaf | ListOf | MapOf | Maybe | Mapping[str, Any]
"""A mapping stands for an object with those keys, and perhaps others."""

NUMBER = Leaf("a number", (int, float), 1e100)
"""No figure of a run is larger, and sums and percentages of such figures are finite."""
COUNT = Leaf("a whole number", (int,), (1 << 63) - 1)
TEXT, FLAG = Leaf("a text", (str,)), Leaf("true or false", (bool,))
ANYTHING = Leaf("a value", (object,))
FIGURE = Maybe(NUMBER)


def _statistics(*names: str) -> dict[str, Shape]:
    statistics = ("mean", "median", "std", *(f"p{q}" for q in PERCENTILES))
    return {f"{statistic}_{name}_ms": FIGURE for name in names for statistic in statistics}


_LATENCIES = ("ttft", "tpot", "e2el", "queueing_delay")
_GOODPUT = Maybe(
    {
        "targets_ms": MapOf(NUMBER),
        "good": COUNT,
        "share": FIGURE,
        "shares": MapOf(FIGURE),
        "request_goodput": FIGURE,
    }
)
_CLASS = {
    **dict.fromkeys(("requests", "completed", "total_input_tokens", "total_output_tokens"), COUNT),
    **dict.fromkeys(("request_throughput", "output_throughput"), FIGURE),
    **_statistics(*_LATENCIES),
    "goodput": _GOODPUT,
}
_KV_CACHE = {
    **dict.fromkeys(("group", "devices", "tensor_parallel", "num_blocks"), COUNT),
    **dict.fromkeys(("block_size_tokens", "capacity_tokens", "peak_blocks_used"), COUNT),
    **dict.fromkeys(("model", "hardware"), TEXT),
    **dict.fromkeys(("block_bytes", "peak_usage"), FIGURE),
    "longest_requests": Maybe(MapOf(NUMBER)),
    "ledger": ListOf({"label": TEXT, "bytes": COUNT}),
}
_UTILISATION = {
    "group": COUNT,
    **dict.fromkeys(("busy", "mfu", "mbu", "mfu_busy", "mbu_busy"), FIGURE),
}
_ENERGY = {
    **dict.fromkeys(("total_j", "window_s", "pool_j", "unattributed_j"), NUMBER),
    **dict.fromkeys(("mean_power_w", "peak_power_w", "mean_request_j", "p99_request_j"), FIGURE),
    **dict.fromkeys(("j_per_output_token", "j_per_token"), FIGURE),
    "components_j": MapOf(NUMBER),
    "nodes": ListOf(Maybe({"components_j": MapOf(NUMBER)})),
    "power_series": {"time_s": ListOf(NUMBER), "power_w": ListOf(NUMBER)},
}
_COST = {
    "currency": TEXT,
    **dict.fromkeys(("price_per_hour", "electricity", "total"), FIGURE),
    **dict.fromkeys(("per_million_output_tokens", "per_million_tokens"), FIGURE),
    "groups": ListOf(
        {
            "hardware": TEXT,
            "devices": COUNT,
            "price_per_device_hour": FIGURE,
            **dict.fromkeys(("basis", "source"), Maybe(TEXT)),
        }
    ),
    "without_price": ListOf(TEXT),
}
_ERROR = {"half": NUMBER, "most": NUMBER}
_SOURCES = {
    "busy_time_s": FIGURE,
    "by_provenance": MapOf(FIGURE),
    "by_source": MapOf(FIGURE),
    "expected_error_percent": _ERROR,
    "table_interpolation_error_percent": _ERROR,
    "extrapolations": ListOf({"operator": TEXT, "beyond": NUMBER, "what": TEXT}),
    "operators": ListOf(
        {
            "group": COUNT,
            "operator": TEXT,
            "source": TEXT,
            "time_s": FIGURE,
            "share": FIGURE,
            "provenance": MapOf(FIGURE),
        }
    ),
}
_COUNTS = (
    "completed",
    "failed",
    "rejected",
    "cancelled",
    "cancelled_output_tokens",
    "refused",
    "errored",
    "unfinished",
    "total_input_tokens",
    "total_output_tokens",
    "preemptions",
    "recomputed_tokens",
    "steps",
)
SUMMARY: Mapping[str, Shape] = {
    "schema_version": COUNT,
    **dict.fromkeys(_COUNTS, COUNT),
    **dict.fromkeys(("duration", "request_throughput", "output_throughput"), FIGURE),
    "total_token_throughput": FIGURE,
    **_statistics(*_LATENCIES, "itl"),
    "goodput": _GOODPUT,
    "classes": MapOf(_CLASS),
    "kv_cache": ListOf(_KV_CACHE),
    "prefix_cache": {"queried_tokens": COUNT, "hit_tokens": COUNT, "hit_rate": FIGURE},
    "graphs": {
        **dict.fromkeys(("full_graph", "piecewise_graph", "without_graph"), COUNT),
        "launching_s": FIGURE,
    },
    "utilisation": ListOf(_UTILISATION),
    "blame": MapOf({"mean_ms": FIGURE, "share": FIGURE}),
    "communication": MapOf(NUMBER),
    "kv_transfer": Maybe({"requests": COUNT, "bytes": COUNT, **_statistics("transfer")}),
    "host_links": ListOf(
        {
            "node": COUNT,
            "devices": ListOf(COUNT),
            **dict.fromkeys(("to_host_bytes", "from_host_bytes"), COUNT),
            **dict.fromkeys(("to_host_busy", "from_host_busy"), FIGURE),
        }
    ),
    "energy": Maybe(_ENERGY),
    "cost": Maybe(_COST),
    "carbon": Maybe({"total_g": NUMBER, "grid_g_per_kwh": NUMBER}),
    "sources": _SOURCES,
    "invariants": MapOf(TEXT),
    "workload": {"source": TEXT, "requests": COUNT},
    "notes": ListOf(TEXT),
    "interrupted": FLAG,
    "horizon_s": FIGURE,
}
"""The parts of `summary.json` that reports and exports read."""

_FILE = {"path": TEXT, "sha256": Maybe(TEXT), "bytes": Maybe(COUNT)}
_GROUP = {
    **dict.fromkeys(("index", "num_devices", "tp", "pp"), COUNT),
    **dict.fromkeys(("model_name", "hardware"), TEXT),
    "pd_type": Maybe(TEXT),
    "engine": MapOf(ANYTHING),
}
MANIFEST: Mapping[str, Shape] = {
    "llmsim_version": TEXT,
    "seed": COUNT,
    "run": Maybe({"cluster": Maybe({"text": TEXT, "name": TEXT}), "options": MapOf(ANYTHING)}),
    "config": {"groups": ListOf(_GROUP)},
    "inputs": ListOf(_FILE),
    "files": ListOf(_FILE),
    "host": {"directory": TEXT},
}
"""The same of `manifest.json`."""


class Misfit(NamedTuple):
    """A value that has not the shape that it should have."""

    field: str
    value: Any
    words: str


def misfit(value: Any, shape: Shape, field: str = "") -> Misfit | None:
    """The first value that is not of its kind, or None."""
    match shape:
        case Maybe(inside):
            return None if value is None else misfit(value, inside, field)
        case Leaf():
            return _misfit_of_leaf(value, shape, field)
        case ListOf(entry) if isinstance(value, list):
            found = (misfit(one, entry, f"{field}[{i}]") for i, one in enumerate(value))
        case MapOf(one_shape) if isinstance(value, dict):
            found = (misfit(one, one_shape, _inside(field, key)) for key, one in value.items())
        case Mapping() if isinstance(value, dict):
            known = (key for key in value if key in shape)
            found = (misfit(value[key], shape[key], _inside(field, key)) for key in known)
        case _:
            return Misfit(field, value, "a list" if isinstance(shape, ListOf) else "an object")
    return next((one for one in found if one is not None), None)


def _misfit_of_leaf(value: Any, leaf: Leaf, field: str) -> Misfit | None:
    is_number = leaf.largest is not None
    fits = isinstance(value, leaf.kinds) and not (is_number and isinstance(value, bool))
    if not fits:
        return Misfit(field, value, leaf.words)
    if leaf.largest is not None and not abs(value) <= leaf.largest:
        return Misfit(field, value, f"{leaf.words} of at most {leaf.largest:g} either side of 0")
    return None


def stray_group(summary: Mapping[str, Any]) -> Misfit | None:
    """The first group of a summary of that shape that is not numbered as groups are, or None."""
    groups = [one.get("group", i) for i, one in enumerate(summary.get("kv_cache", ()))]
    for i, group in enumerate(groups):
        if group != i:
            return Misfit(f"kv_cache[{i}].group", group, str(i))
    for i, one in enumerate(summary.get("utilisation", ())):
        if one.get("group", 0) not in groups:
            return Misfit(f"utilisation[{i}].group", one["group"], "a group of kv_cache")
    return None


def _inside(field: str, key: str) -> str:
    return f"{field}.{key}" if field else key
