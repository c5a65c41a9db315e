"""A cluster file with comments, for people who edit it."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llmsim.api.cluster import Cluster

NOTES = {
    "link_bw": "GB/s of a device's links: within a node (two dimensions), then between nodes: one "
    "network card for each device, of the data sheet, or 400 Gb/s where it has none. The second "
    "number also joins a device to its host, unless the node has a host_link: 64 at most for PCIe "
    "5.0 x16.",
    "link_latency": "ns of the same links; assumptions, as no data sheet states them.",
    "nodes": "One entry for each host; an instance that needs several has nnodes, and hosts "
    "without instances behind its own.",
    "cpu_mem": "GiB, GB/s and ns of the host memory; an assumption. Only KV tiers, offloaded "
    "weights and operators on the host use it.",
    "model_name": "A bundled model, or the path of a config.json (docs/reference/models.md).",
    "hardware": "A bundled device, or the path of a data sheet.",
    "npu_mem": "GiB and GB/s of one device, from the data sheet; drivers report a little less.",
    "tp_size": "Tensor-parallel devices of each pipeline stage.",
    "pp_size": "Pipeline stages.",
    "nnodes": "Nodes that share the devices evenly: this one and the next ones.",
    "ep_size": "Ranks over which whole experts are spread; 1 shards every expert.",
    "pd_type": "prefill: computes prompts and hands their KV over; decode: generates; attention, "
    "ffn: run their halves of every layer, for prompts too where no instance has prefill.",
    "afd_group": "Attention and FFN instances that run their layers together.",
    "attn_tp_size": "Tensor-parallel devices of an attention instance.",
    "ffn_tp_size": "Devices over which one FFN or expert is cut.",
    "ffn_ep_size": "Devices over which whole experts are spread.",
}
ENGINE = {
    "max_num_seqs": "sequences that run at once",
    "max_num_batched_tokens": "tokens of one step",
    "gpu_memory_utilization": "share of a device's memory that the engine uses",
    "block_size": "tokens of a KV block",
    "enable_prefix_caching": "equal beginnings of prompts share KV",
    "enable_chunked_prefill": "long prompts are cut into steps",
}
"""Engine options that people change first; docs/reference/options.md has all."""


def commented(cluster: Cluster, *, yaml: bool = False) -> str:
    """The cluster as JSON with `//` comments, or as YAML: what each key means, and the options that
    it leaves to the engine's profile.
    """
    fields = cluster.fields()
    engine = _engine(cluster)
    about = " ".join(fields.pop("description").split())
    lines = list((_yaml if yaml else _json)(fields, engine))
    mark = "#" if yaml else "//"
    top = [
        f"{mark} {about}",
        f"{mark} Comments are allowed. `llmsim config explain FILE` shows every value and its "
        "origin.",
    ]
    return "\n".join([*top, *lines]) + "\n"


def _engine(cluster: Cluster) -> Any:
    """The options of the first instance, as the profile gives them."""
    from llmsim.config import EngineOverrides, resolve
    from llmsim.lowering.device_memory import sheet_memory

    parsed = cluster.parsed()
    deployment = resolve(parsed, EngineOverrides(), sheet=sheet_memory(parsed.path))
    return deployment.groups[0].engine


LINKS = ("link_bw", "link_latency")
PCIE_GB_PER_S = 64
"""PCIe 5.0 x16 in one direction: what is faster joins devices, and is no link to a host."""
HOST_LINK = {"bandwidth_gb_per_s": PCIE_GB_PER_S, "devices_per_link": 1}
HOST_LINK_NOTE = (
    "the link to the host, where it is not the second link_bw: PCIe 5.0 x16 has 64, 4.0 has 32; 2 "
    "devices_per_link where two share a switch"
)
OPTIONS = (
    "Options of every instance. Commented ones show what the profile gives "
    "(docs/reference/options.md)."
)


def _json(fields: Mapping[str, Any], engine: Any) -> Iterator[str]:
    yield "{"
    for key in LINKS:
        yield f"  // {NOTES[key]}"
        yield f'  "{key}": {json.dumps(fields[key])},'
    for line in _host_link(fields):
        yield f'  // "host_link": {line},  // {HOST_LINK_NOTE}'
    yield f"  // {OPTIONS}"
    yield '  "engine": {'
    for name, what in ENGINE.items():
        yield f'    // "{name}": {json.dumps(getattr(engine, name))},  // {what}'
    yield f'    "engine_profile": "{engine.engine_profile}"'
    yield "  },"
    yield f"  // {NOTES['nodes']}"
    yield '  "nodes": ['
    yield from _nodes(fields["nodes"])
    yield "  ]"
    yield "}"


def _host_link(fields: Mapping[str, Any]) -> Iterator[str]:
    """The value to begin with where the links of a node join devices alone, such as NVLink."""
    if fields["link_bw"][1] > PCIE_GB_PER_S:
        yield json.dumps(HOST_LINK)


def _yaml(fields: Mapping[str, Any], engine: Any) -> Iterator[str]:
    for key in LINKS:
        yield f"# {NOTES[key]}"
        yield f"{key}: {json.dumps(fields[key])}"
    for line in _host_link(fields):
        yield f"# host_link: {line}  # {HOST_LINK_NOTE}"
    yield f"# {OPTIONS}"
    yield "engine:"
    for name, what in ENGINE.items():
        yield f"  # {name}: {json.dumps(getattr(engine, name))}  # {what}"
    yield f"  engine_profile: {engine.engine_profile}"
    yield f"# {NOTES['nodes']}"
    yield "nodes:"
    told: set[str] = set()
    for node in fields["nodes"]:
        if "cpu_mem" not in told:
            yield f"  # {NOTES['cpu_mem']}"
        told.add("cpu_mem")
        yield f"  - cpu_mem: {json.dumps(node['cpu_mem'])}"
        yield "    instances:" if node["instances"] else "    instances: []"
        for instance in node["instances"]:
            if told >= set(instance) - {"npu_mem"}:
                yield f"      - {json.dumps(instance)}"
                continue
            yield "      -"
            for key, value in instance.items():
                if key not in told and key in NOTES:
                    yield f"        # {NOTES[key]}"
                told.add(key)
                yield f"        {key}: {json.dumps(value)}"


def _nodes(nodes: list[Mapping[str, Any]]) -> Iterator[str]:
    """The nodes; keys are explained where they first appear, equal instances follow in one line
    each.
    """
    told: set[str] = set()
    for i, node in enumerate(nodes):
        yield "    {"
        if "cpu_mem" not in told:
            yield f"      // {NOTES['cpu_mem']}"
        told.add("cpu_mem")
        yield f'      "cpu_mem": {json.dumps(node["cpu_mem"])},'
        yield '      "instances": ['
        instances = node["instances"]
        for j, instance in enumerate(instances):
            comma = "," if j + 1 < len(instances) else ""
            if told >= set(instance) - {"npu_mem"}:
                yield f"      {json.dumps(instance)}{comma}"
                continue
            yield "      {"
            for key, value in instance.items():
                if key not in told and key in NOTES:
                    yield f"        // {NOTES[key]}"
                told.add(key)
                end = "" if key == list(instance)[-1] else ","
                yield f'        "{key}": {json.dumps(value)}{end}'
            yield f"      }}{comma}"
        yield f"    ]}}{',' if i + 1 < len(nodes) else ''}"
