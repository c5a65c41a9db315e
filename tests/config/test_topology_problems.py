"""What is said of a topology file that is none, and of cluster files where a topology is wanted."""

import json
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.errors import InputError
from llmsim.config.topology.file import load_topology, network_of, preset_names

RING = {"kind": "ring", "size": 8, "bandwidth_gb_per_s": 450}


def written(path: Path, content: Any) -> str:
    path.write_text(json.dumps(content))
    return str(path)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"dimensions": [RING | {"kind": "rnig"}]}, 'dimensions[0].kind is "rnig"; expected one'),
        ({"dimensions": [RING | {"size": 0}]}, "dimensions[0].size is 0; expected a whole number"),
        ({"dimension": [RING]}, 'dimension is not a known key (did you mean "dimensions"?)'),
        ({"devices": "x"}, 'devices is "x"; expected the number of devices, or a list of their'),
        ({"preset": "rails", "parameters": {}}, "parameters.devices_per_node is missing; expected"),
        ({"preset": "rails", "parameters": {"node": 3}}, "parameters.node is not a known key"),
        ([RING], "; expected an object with name, source, preset"),
    ],
)
def test_one_sentence_says_what_would_have_worked(
    content: Any, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        network_of(written(tmp_path / "network.json", content))
    assert sentence in str(caught.value) and "permitted" not in str(caught.value)


def test_a_cluster_file_stands_for_the_topology_that_it_names(tmp_path: Path) -> None:
    written(tmp_path / "ring.json", {"name": "eight", "dimensions": [RING]})
    cluster = {"nodes": [], "topology": "ring.json"}
    assert network_of(written(tmp_path / "cluster.json", cluster)).name == "eight"
    bundled = {"layouts": {}, "topology": "dgx_h100"}
    assert network_of(written(tmp_path / "bundled.json", bundled)).name == "DGX H100"
    yaml = tmp_path / "cluster.yaml"
    yaml.write_text("nodes: []\ntopology: dgx_h100\n")
    assert network_of(yaml).name == "DGX H100"


def test_a_cluster_file_without_a_topology_is_named_as_such(tmp_path: Path) -> None:
    path = written(tmp_path / "cluster.json", {"nodes": []})
    with pytest.raises(InputError, match="is a cluster file that names no topology") as caught:
        network_of(path)
    assert all(name in str(caught.value) for name in preset_names())
    with pytest.raises(InputError, match="is a cluster file; expected a topology"):
        load_topology(path)
