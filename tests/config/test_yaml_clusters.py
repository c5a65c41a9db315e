"""Cluster files in YAML say what the same JSON says, and errors name their lines."""

import json
from pathlib import Path

import pytest
import yaml

from llmsim.config import load_cluster
from llmsim.config.cluster_file.yaml_text import read_yaml
from llmsim.config.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = sorted((ROOT / "cluster_config").glob("*.json"))


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_a_bundled_cluster_is_the_same_in_yaml(path: Path, tmp_path: Path) -> None:
    data = json.loads(path.read_text())
    for style in (False, True):
        (tmp_path / "cluster.yaml").write_text(yaml.safe_dump(data, default_flow_style=style))
        written = load_cluster(tmp_path / "cluster.yaml")
        assert written.plain() == data
        assert written.model_dump() == load_cluster(path).model_dump()


def test_scalars_are_those_of_yaml_1_2() -> None:
    text = "a: 1e9\nb: on\nc: 12:30\nd: '5'\ne: ~\nf: 0.5\ng: -3\nh: 010\ni: yes\nj: 2.5E-3\nk:\n"
    data, lines = read_yaml(text, "f.yaml")
    assert data == {
        "a": 1e9, "b": "on", "c": "12:30", "d": "5", "e": None, "f": 0.5, "g": -3, "h": 10.0,
        "i": "yes", "j": 0.0025, "k": None,
    }  # fmt: skip
    assert lines["c",] == 3


def test_json_under_a_yaml_name_is_json(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yml"
    path.write_text(CLUSTERS[0].read_text())
    assert load_cluster(path).plain() == json.loads(path.read_text())


SMALL = """link_bw: 450
link_latency: 1000
nodes:
  - instances:
      - model_name: meta-llama/Llama-3.1-8B
        hardware: H100
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SMALL + "        tp_sise: 2\n", r":7: .*tp_sise.*tp_size"),
        (SMALL + "        tp_size: two\n", r":7: nodes\[0\].instances\[0\].tp_size"),
        (SMALL + "link_bw: 3\n", r":7: link_bw is given twice \(first on line 1\)"),
        (SMALL + "x: [1\n", r"not valid YAML"),
        (SMALL + "\tx: 1\n", r"not valid YAML"),
        (SMALL.replace("450", "&a 450"), r":1: anchors and aliases are not read"),
        (SMALL.replace("450", "!!float 450"), r":1: the tag"),
        (SMALL.replace("450", ".inf"), r":1: link_bw is .inf; expected a finite number"),
        (SMALL.replace("450", "1e999"), r":1: link_bw is 1e999; expected a finite number"),
        (SMALL.replace("450", "9" * 500), r"a number of 500 digits"),
        ("? [a, b]\n: 1\n", r":1: a key is a list or an object"),
        ("a: " + "[" * 100 + "]" * 100, r"nested too deeply"),
        ("- 1\n", r"object"),
        ('a: "\\ud800"\n', r"half of a character|not valid YAML"),
        ("a: 1\n--- \nb: 2\n", r"not valid YAML"),
    ],
)
def test_a_mistake_is_one_sentence_with_its_line(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=said) as error:
        load_cluster(path)
    assert str(error.value).startswith(str(path)) and "\n" not in str(error.value)
