"""Every resolved value of a cluster file, and why it is what it is."""

from collections.abc import Callable, Iterator
from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from llmsim.config.cluster_file.cluster import Cluster
from llmsim.config.cluster_file.instance import Instance
from llmsim.config.cluster_file.json_positions import Location, field_path
from llmsim.config.deployment import Deployment, Group
from llmsim.config.engine.args import CLUSTER_FILE
from llmsim.config.engine.options import name_used
from llmsim.config.errors import InputError, nearest

LAYOUT = {
    "tp_size": ("tp_size", "tensor_parallel_size", "attn_tp_size", "num_npus"),
    "pp_size": ("pp_size", "pipeline_parallel_size", "npu_group", "num_npus"),
    "ep_size": ("ep_size", "enable_expert_parallel", "ffn_ep_size"),
    "ffn_tp_size": ("ffn_tp_size",),
    "prefill_context_parallel_size": ("prefill_context_parallel_size",),
    "dp": ("dp_group", "data_parallel_size", "attn_dp_size"),
    "num_npus": ("num_npus", "tp_size", "pp_size"),
}
"""Values of a group, and the keys of the file that they follow from."""
ATTRIBUTES = {
    "prefill_context_parallel_size": "pcp",
    "num_npus": "num_devices",
}
"""Attributes of a group that are not a key of the file without `_size`."""
PS_PER_NS = 1000
GIVEN = {"model_name": "model_name", "hardware": "hardware", "pd_type": "role"}
"""Keys of an instance that are taken as they are, and the attributes of its group."""
WITHOUT_EFFECT = ("$schema", "description")
"""Keys that are there for editors and people."""

PriceOf = Callable[[Group], tuple[float | None, str]]
"""USD that an hour of one of a group's devices costs, and who says so."""

DIGITS = 12
"""Decimals of a GiB beyond which a byte does not change."""


class Explained(Struct, frozen=True):
    """One resolved value."""

    field: str
    """A path as the cluster file would write it, such as `nodes[0].instances[0].max_num_seqs`."""
    value: Any
    why: str


def explain(
    cluster: Cluster, deployment: Deployment, price_of: PriceOf, field: str = ""
) -> list[Explained]:
    """All resolved values, then what the file's other keys say; or those at and below a path.
    Raises InputError where there are none.
    """
    cluster = cluster.model_copy()
    cluster._document = cluster._document.with_lines()
    resolved = {one.field: one for one in _rows(cluster, deployment, price_of)}
    stated = [one for one in _stated(cluster) if one.field not in resolved]
    found = [*resolved.values(), *stated]
    wanted = [one for one in found if _is_at_or_below(one.field, field)]
    if not wanted:
        close = _near(field, [one.field for one in found])
        raise InputError(
            f"--field {field} is no resolved value of {cluster.path}{close}; without --field all "
            "are listed",
            file=cluster.path,
            field="--field",
            value=field,
        )
    return wanted


def _is_at_or_below(path: str, field: str) -> bool:
    """Whether a path is a field, or inside it; every path is below none."""
    return not field or path == field or path.startswith((f"{field}.", f"{field}["))


def _near(field: str, paths: list[str]) -> str:
    """What a field that is none may mean: a path whose last key is the same, or begins with it."""
    last = field.rpartition(".")[2]
    same = (path for path in paths if path.endswith(f".{last}"))
    longer = (path for path in paths if path.rpartition(".")[2].startswith(f"{last}_"))
    meant = next(same, None) or next(longer, None)
    return nearest(field, paths) if meant is None else f' (did you mean "{meant}"?)'


def _rows(cluster: Cluster, deployment: Deployment, price_of: PriceOf) -> Iterator[Explained]:
    links = deployment.link
    bandwidths = [value / 1e9 for value in links.bandwidth_bytes_per_s]
    latencies = [value / PS_PER_NS for value in links.latency_ps]
    yield Explained("link_bw", bandwidths, _at(cluster, ("link_bw",)))
    yield Explained("link_latency", latencies, _at(cluster, ("link_latency",)))
    yield from _host_links(cluster, deployment)
    if deployment.disaggregation is not None:
        how = deployment.disaggregation
        for key, value in (
            ("kv_transfer", how.how),
            ("kv_transfer_mode", "push" if how.push else "pull"),
        ):
            given = getattr(cluster, key) is not None
            yield Explained(key, value, _at(cluster, (key,)) if given else "default")
    locations = {field_path(location): (location, one) for location, one in cluster.instances()}
    seen: set[str] = set()
    for group in deployment.groups:
        if group.field_path not in seen:
            seen.add(group.field_path)
            yield from _group(cluster, group, *locations[group.field_path], price_of)


def _host_links(cluster: Cluster, deployment: Deployment) -> Iterator[Explained]:
    """Those of nodes whose links to the host the file tells apart."""
    for node, fields in zip(deployment.nodes, cluster.nodes, strict=True):
        given = fields.host_link or cluster.host_link
        if node.host_link is None or given is None:
            continue
        place: Location = () if fields.host_link is None else ("nodes", node.index)
        values = {
            "bandwidth_gb_per_s": node.host_link.bandwidth_bytes_per_s / 1e9,
            "latency_ns": node.host_link.latency_ps / PS_PER_NS,
            "devices_per_link": node.host_link.devices_per_link,
        }
        otherwise = {"latency_ns": _at(cluster, ("link_latency",)), "devices_per_link": "default"}
        for key, value in values.items():
            stated = key in given.model_fields_set
            why = _at(cluster, (*place, "host_link", key)) if stated else otherwise[key]
            yield Explained(f"nodes[{node.index}].host_link.{key}", value, why)


def _group(
    cluster: Cluster, group: Group, location: Location, instance: Instance, price_of: PriceOf
) -> Iterator[Explained]:
    def row(name: str, value: Any, why: str) -> Explained:
        return Explained(f"{group.field_path}.{name}", value, why)

    for name, attribute in GIVEN.items():
        given = name in instance.model_fields_set
        value = getattr(group, attribute)
        yield row(name, value, _at(cluster, (*location, name)) if given else "default")
    for name, keys in LAYOUT.items():
        used = [key for key in keys if key in instance.model_fields_set]
        why = _at(cluster, (*location, used[0])) if used else "default"
        yield row(name, getattr(group, ATTRIBUTES.get(name, name.removesuffix("_size"))), why)
    for key, value in (
        ("mem_size", _gib(group.memory.capacity_bytes)),
        ("mem_bw", group.memory.bandwidth_bytes_per_s / 1e9),
    ):
        why = _at(cluster, (*location, "npu_mem", key))
        if key in group.memory_from_sheet:
            why = f"data sheet of {group.hardware}"
        yield row(f"npu_mem.{key}", value, why)
    price, source = price_of(group)
    if group.price_per_device_hour is not None:
        source = _at(cluster, (*location, "price_per_device_hour"))
    yield row("price_per_device_hour", price, source)
    engine = group.engine
    for name, value in engine.shown().items():
        yield row(name, value, _engine_origin(cluster, location, instance, name, engine.origin))


def _stated(cluster: Cluster) -> Iterator[Explained]:
    """What the file says, and the defaults of the sections that it has, key by key."""
    for location, value, given in _values(cluster, ()):
        if location[-1] in WITHOUT_EFFECT or (cluster.layouts and location[0] == "nodes"):
            continue
        why = _at(cluster, location) if given else "default"
        yield Explained(field_path(location), value, why)


def _values(
    value: Any, location: Location, given: bool = True
) -> Iterator[tuple[Location, Any, bool]]:
    """Every value of a section and of those inside it that is not None, where it is, and whether
    the file gives it.
    """
    if isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            inside = getattr(value, name)
            key = field.alias or name
            yield from _values(inside, (*location, key), given and name in value.model_fields_set)
    elif isinstance(value, dict) and _has_sections(value.values()):
        for key, inside in value.items():
            yield from _values(inside, (*location, key), given)
    elif isinstance(value, tuple) and _has_sections(value):
        for i, inside in enumerate(value):
            yield from _values(inside, (*location, i), given)
    elif value is not None and value != () and value != {}:
        yield location, value, given


def _has_sections(values: Any) -> bool:
    """Whether the members of a list or an object are sections, or lists of them."""
    return any(
        isinstance(one, BaseModel) or (isinstance(one, tuple) and _has_sections(one))
        for one in values
    )


def _engine_origin(
    cluster: Cluster, location: Location, instance: Instance, name: str, origins: Any
) -> str:
    """Why an engine option is what it is; one of the file with its line."""
    origin = str(origins.get(name) or origins.get("limits", "default"))
    if not origin.startswith(CLUSTER_FILE):
        return origin
    rest = origin.removeprefix(CLUSTER_FILE)
    option = f"{name.removesuffix('_ps')}_ns" if name.endswith("_ps") else name
    for options, place in ((instance, location), (cluster.engine, ("engine",))):
        key = name_used(options, option)
        if key in options.model_fields_set or option in options.model_fields_set:
            return f"{_at(cluster, (*place, key))}{rest}"
    return origin


def _at(cluster: Cluster, location: Location) -> str:
    document = cluster._document
    if not document.text:
        return CLUSTER_FILE
    return f"{CLUSTER_FILE}, line {document.line(location)}"


def _gib(count: int) -> float:
    """A number of bytes in GiB, with as many digits as it takes to give them back."""
    exact = count / (1 << 30)
    short = (round(exact, digits) for digits in range(DIGITS))
    return next((one for one in short if round(one * (1 << 30)) == count), exact)
