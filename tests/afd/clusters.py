"""Cluster files with attention and FFN instances."""

import json
from pathlib import Path
from typing import Any

LINKS = {"link_bw": [450, 450, 50], "link_latency": [1000, 1000, 3000]}


def cluster(*instances: dict[str, Any], **keys: Any) -> dict[str, Any]:
    """All instances on one node."""
    return {**LINKS, "nodes": [{"instances": list(instances)}], **keys}


def attention(model: str, tp: int = 1, dp: int = 1, **keys: Any) -> dict[str, Any]:
    """An instance that runs the attention of every layer."""
    sizes = {"attn_tp_size": tp, "attn_dp_size": dp}
    named = {"model_name": model, "hardware": "H100", "pd_type": "attention", "afd_group": "one"}
    return {**named, **sizes, **keys}


def ffn(model: str, tp: int = 1, ep: int = 1, **keys: Any) -> dict[str, Any]:
    """An instance that runs the FFN of every layer."""
    sizes = {"ffn_tp_size": tp, "ffn_ep_size": ep}
    named = {"model_name": model, "hardware": "H100", "pd_type": "ffn", "afd_group": "one"}
    return {**named, **sizes, **keys}


def written(folder: Path, fields: dict[str, Any], name: str = "c.json") -> Path:
    """The cluster file."""
    path = folder / name
    path.write_text(json.dumps(fields))
    return path
