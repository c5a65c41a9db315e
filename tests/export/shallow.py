"""Clusters whose models have few layers: what graphs say of each layer does not depend on more."""

import json
from pathlib import Path
from typing import Any

from llmsim.model.families.presets import config_path


def shallow(document: dict[str, Any], folder: Path, layers: int = 4) -> dict[str, Any]:
    """The cluster with every model cut to so many layers; its config.json lies in the folder."""
    for number, node in enumerate(document["nodes"]):
        for instance in node["instances"]:
            fields = json.loads(config_path(instance["model_name"]).read_text(encoding="utf-8"))
            path = folder / f"model_{number}" / "config.json"
            path.parent.mkdir(exist_ok=True)
            path.write_text(json.dumps({**fields, "num_hidden_layers": layers}), encoding="utf-8")
            instance["model_name"] = str(path)
    return document
