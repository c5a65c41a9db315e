"""Options that no instance takes are said in a note of the run, and refused where they vary."""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.config import Cluster, parse_cluster
from llmsim.config.cluster_file.json_positions import field_path
from llmsim.config.errors import InputError
from llmsim.config.overridden import field_of, hands_over, overridden, own_values

INSTANCE = {"model_name": "Qwen/Qwen3-0.6B", "hardware": "H100"}
LOAD = "synthetic:n=2,rate=10,input=50,output=4"
ROOFLINE = {"cost_source": "roofline"}


def written(folder: Path, *instances: dict[str, Any], **more: Any) -> Path:
    fields = {
        "link_bw": 450,
        "link_latency": 1000,
        "nodes": [{"instances": [INSTANCE | one for one in instances]}],
        **more,
    }
    path = folder / "c.json"
    path.write_text(json.dumps(fields, indent=1), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("instance", "option", "said"),
    [
        ({"max_num_seqs": 16}, {"max_num_seqs": 256}, "--max-num-seqs 256 | max_num_seqs is 16"),
        (
            {"npu_mem": {"mem_util": 0.5}},
            {"gpu_memory_utilization": 0.8},
            "--gpu-memory-utilization 0.8 | npu_mem.mem_util is 0.5",
        ),
        (
            {"npu_memory_utilization": 0.5},
            {"gpu_memory_utilization": 0.8},
            "--gpu-memory-utilization 0.8 | npu_memory_utilization is 0.5",
        ),
        (
            {"enable_prefix_caching": True},
            {"enable_prefix_caching": False},
            "--no-enable-prefix-caching | enable_prefix_caching is true",
        ),
        (
            {"engine_profile": "vllm-0.24"},
            {"engine_profile": "vllm-0.10"},
            '--engine-profile vllm-0.10 | engine_profile is "vllm-0.24"',
        ),
        (
            {"enable_local_offloading": False},
            {"enable_local_offloading": True},
            "--enable-local-offloading | enable_local_offloading is false",
        ),
    ],
)
def test_an_option_that_every_instance_overrides_is_a_note(
    instance: dict[str, Any], option: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path, instance, instance)
    asked, own = said.split(" | ")
    line = 1 + path.read_text().splitlines().index(
        next(
            line
            for line in path.read_text().splitlines()
            if own.partition(" is ")[0].split(".")[-1] in line
        )
    )
    notes = llmsim.run(path, LOAD, **option, **ROOFLINE).summary["notes"]
    assert (
        f"{asked} changes nothing: every instance has a value of its own, and {path}:{line}: "
        f"nodes[0].instances[0].{own}"
    ) in notes


@pytest.mark.parametrize("instances", [({"max_num_seqs": 16}, {}), ({"max_num_seqs": 256},) * 2])
def test_an_option_that_some_instance_takes_is_no_note(
    instances: tuple[dict[str, Any], ...], tmp_path: Path
) -> None:
    path = written(tmp_path, *instances)
    notes = llmsim.run(path, LOAD, max_num_seqs=256, **ROOFLINE).summary["notes"]
    assert not any("max_num_seqs" in note or "--max-num-seqs" in note for note in notes)


def test_the_options_of_the_cluster_are_below_the_command_line(tmp_path: Path) -> None:
    path = written(tmp_path, {}, engine={"max_num_seqs": 16})
    assert not own_values(parse_cluster(path.read_text()), "max_num_seqs")


def test_instances_of_all_layouts_count() -> None:
    own = INSTANCE | {"max_num_seqs": 16}
    layouts: dict[str, Any] = {"day": [own, own], "night": [INSTANCE, INSTANCE]}
    fields: dict[str, Any] = {"link_bw": 450, "link_latency": 1000, "layouts": layouts}
    assert not own_values(parse_cluster(json.dumps(fields)), "max_num_seqs")
    layouts["night"] = [own | {"pd_type": "prefill"}, own | {"pd_type": "decode"}]
    cluster = parse_cluster(json.dumps(fields))
    paths = [field_path(one.place) for one in own_values(cluster, "max_num_seqs")]
    assert paths[0] == "layouts.day[0].max_num_seqs" and hands_over(cluster)
    assert paths[-1] == "layouts.night[1].max_num_seqs" and len(paths) == 4


def test_many_instances_take_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line takes a search of the whole text, so only the one that is said is looked for."""
    fields = llmsim.Cluster.build("Qwen/Qwen3-0.6B", "H100", instances=200).fields()
    for node in fields["nodes"]:
        node["instances"] = [one | {"max_num_seqs": 16} for one in node["instances"]]
    looked_for: list[object] = []
    position = Cluster.position

    def counted(self: Cluster, location: Any) -> str:
        looked_for.append(location)
        return position(self, location)

    monkeypatch.setattr(Cluster, "position", counted)
    cluster = llmsim.Cluster.of(fields).parsed()
    assert [one.asked for one in overridden(cluster, {"max_num_seqs": 5})] == [5]
    assert len(own_values(cluster, "max_num_seqs")) == 200 and not looked_for


@pytest.mark.parametrize("name", ["max_num_seqs", "decode_routing_policy"])
def test_a_sweep_over_an_option_that_no_instance_takes_is_refused(
    name: str, tmp_path: Path
) -> None:
    values = {"max_num_seqs": [16, 32], "decode_routing_policy": ["RR", "LOAD"]}[name]
    path = written(tmp_path, {"max_num_seqs": 16})
    with pytest.raises(InputError, match=f"^vary names {name}, which changes nothing: ") as caught:
        llmsim.sweep(path, LOAD, {name: values}, **ROOFLINE)
    assert caught.value.field == name
    takes = {"nodes": [{"instances": [INSTANCE]}], "link_bw": 450, "link_latency": 1000}
    if name == "max_num_seqs":
        table = llmsim.sweep(None, LOAD, {"cluster": [path, takes], name: values}, **ROOFLINE)
        assert len(table) == 4


@pytest.mark.parametrize(
    ("option", "field"),
    [
        ("--max-batch", "max_num_seqs"),
        ("--no-enable-prefix-caching", "enable_prefix_caching"),
        ("--npu-memory-utilization", "gpu_memory_utilization"),
        ("--decode-routing-policy", "decode_routing_policy"),
    ],
)
def test_options_of_the_command_line_have_fields(option: str, field: str) -> None:
    assert field_of(option) == field
