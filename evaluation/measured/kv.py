"""Predicts the KV capacity of servers whose start-up logs are published."""

import csv
import json
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmsim.api.preparation.prepare import prepare
from llmsim.cli.run.arguments import checked_options
from llmsim.config.errors import LlmsimError
from measured.models import MODELS
from measured.points import Skipped

CARDS = {
    "NVIDIA H100 80GB HBM3": "H100",
    "NVIDIA H200": "H200",
    "NVIDIA L40S": "L40S",
    "NVIDIA GB10": "GB10",
}
PARTLY = ("FAILED", "inferred", "fragments", "cut off", "doubt", "crashed")
"""Words of a note on a row that is not fully described."""


@dataclass(frozen=True)
class Server:
    """One published start-up: what it was started with, and the tokens that its cache holds."""

    name: str
    engine: str
    version: str
    model: str
    types: str
    card: str
    memory_gib: float
    ranks: dict[str, int]
    utilization: float
    options: tuple[str, ...]
    tokens: int
    spreads_experts: bool
    note: str = field(repr=False)

    @property
    def system(self) -> str:
        """What counts as one server: starts that differ in nothing but lengths are alike."""
        return f"{self.model} {self.types} {self.ranks} {self.card}"


def read_servers(path: Path) -> list[Server]:
    """Every row of the table."""
    with path.open(encoding="utf-8", newline="") as file:
        return [_server(row) for row in csv.DictReader(file)]


def _server(row: dict[str, str]) -> Server:
    options = {
        "--max-model-len": row["max_model_len"],
        "--max-num-seqs": row["max_num_seqs"],
        "--max-num-batched-tokens": row["max_num_batched_tokens"],
        "--kv-cache-dtype": "fp8" if row["kv_cache_dtype"].startswith("fp8") else "",
        "--dtype": {"float32": "float32", "bfloat16 / fp8": "fp8"}.get(row["quantisation"], ""),
    }
    given = {name: value for name, value in options.items() if value}
    if given.get("--dtype") == "fp8" and "FP8" in row["model"].upper():
        del given["--dtype"]  # the checkpoint says so itself
    words = [word for pair in given.items() for word in pair]
    if "prefix_caching=False" in row["other_options"]:
        words.append("--no-enable-prefix-caching")
    return Server(
        name=row["id"],
        engine=row["engine"],
        version=row["engine_version"],
        model=row["model"],
        types=row["quantisation"],
        card=row["gpu"],
        memory_gib=_gib(row["gpu_memory_gib"]),
        ranks={name: int(row[name] or 1) for name in ("tp", "pp", "dp")},
        utilization=_first(row["gpu_memory_utilization"]),
        options=tuple(words),
        tokens=int(row["kv_tokens"].replace(",", "") or 0),
        spreads_experts="enable_expert_parallel" in row["other_options"],
        note=row["note"],
    )


def _gib(text: str) -> float:
    return _first(text) / 1024 if "MiB" in text else _first(text)


def _first(text: str) -> float:
    found = re.match(r"\s*([0-9.]+)", text)
    return float(found[1]) if found else math.nan


@dataclass(frozen=True)
class Predicted:
    """Tokens of the published log's own count, and where the memory went."""

    tokens: int
    lines: tuple[tuple[str, int], ...]


def predict(server: Server, scratch: Path) -> Predicted:
    """The simulator's ledger; raises Skipped for what is not fully described or has no preset."""
    doubt = next((word for word in PARTLY if word in server.note), None)
    if doubt is not None or not server.tokens or math.isnan(server.utilization):
        raise Skipped(f"not fully described ({doubt or 'no tokens or utilisation'})")
    if server.engine != "vLLM" or not server.version[:1].isdigit():
        raise Skipped("another engine than vLLM, or no version")
    if server.card not in CARDS:
        raise Skipped(f"no data sheet of {server.card}")
    model = MODELS.get(server.model)
    if model is None:
        raise Skipped(f"no preset of {server.model}")
    cluster = scratch / f"{server.name}.json"
    cluster.write_text(json.dumps(_cluster(server, model, scratch)), encoding="utf-8")
    arguments = [
        "--cluster-config",
        str(cluster),
        "--dataset",
        "synthetic:n=1,rate=1,input=8,output=2",
    ]
    arguments += ["--cost-source", "roofline", "--engine-profile", f"vllm-{server.version}"]
    try:
        group = prepare(checked_options([*arguments, *server.options])).lowered.groups[0]
    except LlmsimError as error:
        raise Skipped(str(error)) from error
    ledger = group.ledger
    return Predicted(_tokens(group), ledger.lines)


def _tokens(group: Any) -> int:
    """As vLLM prints it: the requests of the longest length that the blocks hold, in tokens."""
    most, budget = group.engine.max_model_len, group.engine.max_num_batched_tokens
    if group.ledger.tables is None:
        return int(group.ledger.num_blocks * group.engine.block_size)
    return int(group.ledger.at_once(most, budget, group.engine.block_size) * most)


def _cluster(server: Server, model: str | dict[str, Any], scratch: Path) -> dict[str, Any]:
    if isinstance(model, dict):
        path = scratch / f"{server.name}_model.json"
        path.write_text(json.dumps(model), encoding="utf-8")
        model = str(path)
    memory = {} if math.isnan(server.memory_gib) else {"mem_size": server.memory_gib}
    instance = {
        "model_name": model,
        "hardware": CARDS[server.card],
        "num_npus": server.ranks["tp"] * server.ranks["pp"],
        "tp_size": server.ranks["tp"],
        "pp_size": server.ranks["pp"],
        "pd_type": None,
        "npu_mem": {**memory, "mem_util": server.utilization},
    }
    if not server.spreads_experts:
        instance["ep_size"] = 1
    node = {"num_instances": 1, "instances": [instance]}
    node["cpu_mem"] = {"mem_size": 1024, "mem_bw": 512, "mem_latency": 0}
    return {"num_nodes": 1, "link_bw": 450, "link_latency": 0, "nodes": [node]}
