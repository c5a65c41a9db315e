"""The file of a search: ranges, paths into the cluster file, copies of instances, and what is
refused in a sentence.
"""

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config import parse_cluster
from llmsim.config.errors import InputError
from llmsim.results.pareto import pareto_front
from llmsim.search.apply import load_base, run_of
from llmsim.search.space import Space, load_space

Json = dict[str, Any]
OF_MODEL = {"model": "Qwen/Qwen3-0.6B", "hardware": "H100", "vary": {}}
INSTANCE = {"model_name": "meta-llama/Llama-3.2-1B", "hardware": "H100"}


def cluster(*instances: Json, **more: Any) -> Json:
    nodes = [
        {"num_instances": max(len(instances), 1), "instances": list(instances) or [dict(INSTANCE)]}
    ]
    return {"num_nodes": 1, "link_bw": [450, 450, 50], "link_latency": 1000, "nodes": nodes, **more}


def space(folder: Path, base: Json | None = None, **fields: Any) -> Space:
    (folder / "c.json").write_text(json.dumps(base or cluster()), encoding="utf-8")
    given_ = {
        "cluster": "c.json",
        "dataset": "synthetic:n=4",
        "vary": {"replicas": [1]},
        "minimise": ["devices"],
    }
    path = folder / "s.yaml"
    path.write_text(yaml.safe_dump(given_ | fields, sort_keys=False), encoding="utf-8")
    return load_space(path)


def values(folder: Path, given_: Any) -> tuple[Any, ...]:
    return space(folder, vary={"replicas": given_}).dimensions[0].values


def test_ranges_hold_both_ends(tmp_path: Path) -> None:
    assert values(tmp_path, {"from": 1, "to": 4}) == (1, 2, 3, 4)
    assert values(tmp_path, {"from": 1, "to": 10, "step": 4}) == (1, 5, 9)
    assert values(tmp_path, {"from": 1, "to": 64, "factor": 4}) == (1, 4, 16, 64)
    assert values(tmp_path, {"from": 0.1, "to": 0.5, "step": 0.1}) == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert values(tmp_path, [2, 1, 2, "a", True, 1]) == (2, 1, "a", True)
    made = space(tmp_path, vary={"engine.watermark": {"from": 0.1, "to": 0.5}, "replicas": [1, 2]})
    assert made.size is None and (made.dimensions[0].low, made.dimensions[0].high) == (0.1, 0.5)


@given(first=st.integers(-50, 50), count=st.integers(1, 40), step=st.integers(1, 9))
def test_a_range_in_steps_is_pythons(
    first: int, count: int, step: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("range")
    last = first + (count - 1) * step
    for end in (last, last + step - 1):
        assert values(folder, {"from": first, "to": end, "step": step}) == tuple(
            range(first, last + 1, step)
        )


def test_the_grid_has_every_combination_once(tmp_path: Path) -> None:
    made = space(
        tmp_path, vary={"replicas": [1, 2, 3], "engine.block_size": [16, 32], "--seed": [1, 2]}
    )
    points = list(made.grid())
    assert len(points) == made.size == 12 == len({json.dumps(point) for point in points})


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"vary": {}}, "vary is empty"),
        ({"vary": {"replicas": []}}, "vary.replicas has no values"),
        (
            {"vary": {"replicas": {"from": 3, "to": 1}}},
            "vary.replicas is from 3 to 1; from must not be above to",
        ),
        (
            {"vary": {"replicas": {"from": 1, "to": 8, "step": 1, "factor": 2}}},
            "has a step and a factor",
        ),
        ({"vary": {"replicas": {"from": 0, "to": 8, "factor": 2}}}, "from above 0 with a factor"),
        ({"vary": {"replicas": {"from": 0, "to": 10**9}}}, "more than 100000 values"),
        ({"vary": {"replicas": 3}}, "vary.replicas is 3; give a list of values, such as [16, 64]"),
        ({"vary": {"replicas": [1], "--seed": "a"}}, 'vary.--seed is "a"; give a list of values'),
        ({"vary": {"replicas": {"from": "a", "to": 3}}}, 'vary.replicas.from is "a"; give a numb'),
        (
            {"vary": {"replicas": {"form": 1}}},
            'unknown field vary.replicas.form (did you mean "from"',
        ),
        ({"vary": ["replicas"]}, 'vary is ["replicas"]; give a mapping from fields and options'),
        ({"minimise": "devices"}, 'minimise is "devices"; give a list of figures'),
        ({"require": {"devices": 3}}, "require.devices is 3; give a bound, such as {at_most: 500}"),
        ({"halving": {"requests": [1, "b"]}}, 'halving.requests[1] is "b"; give a list of whole'),
        ({"halving": {}}, "halving.requests is missing; give a list of whole numbers"),
        ({"dataset": 3}, "dataset is 3; give a trace file, or a generator"),
        ({"description": 3}, "description is 3; give a text"),
        ({"load": {"rate": 3, "until": "vidur"}}, "load.rate is 3; give two rates"),
        ({"cluster": "", **OF_MODEL, "gpus": 0}, "gpus is 0; it must be from 1 to 65536"),
        ({"cluster": "", **OF_MODEL, "gpus": [2, 0]}, "gpus[1] is 0; it must be from 1 to 65536"),
        (
            {"cluster": "", **OF_MODEL, "gpus": "two"},
            'gpus is "two"; give a whole number or a list',
        ),
        ({"cluster": "", **OF_MODEL}, "it names model and hardware; give either cluster, or model"),
        ({"minimise": [], "maximise": []}, "nothing to minimise or maximise"),
        ({"maximise": ["devices"]}, "devices is to be minimised and maximised"),
        ({"require": {"devices": {}}}, "require.devices says nothing"),
        ({"options": {"--run-dir": "x"}}, "--run-dir cannot be given here"),
        ({"options": {"seed": 1}}, "seed cannot be given here"),
        ({"devices_per_node": 0}, "devices_per_node is 0"),
        ({"vary": {"replicas": {"from": 1, "to": 10**400}}}, "neither beyond 1e+15"),
        (
            {"vary": {"replicas": {"from": float("nan"), "to": 3.0}}},
            "holds something that JSON has not",
        ),
        (
            {"vary": {"description": [datetime.date(2024, 1, 1)]}},
            "vary.description holds something that JSON has not",
        ),
        ({"vary": {"replicas": [float("inf")]}}, "vary.replicas holds something that JSON has not"),
        (
            {"options": {"--dtype": datetime.date(2024, 1, 1)}},
            "--dtype holds something that JSON has not",
        ),
        ({"minimixe": ["x"]}, 'unknown field minimixe (did you mean "minimise"?)'),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(fields: Json, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        space(tmp_path, **fields)
    assert (
        said in str(caught.value)
        and "s.yaml" in str(caught.value)
        and "\n" not in str(caught.value)
    )


@pytest.mark.parametrize(
    ("vary", "option"),
    [
        ({"--max-num-seqs": [16, 64]}, "--max-num-seqs"),
        ({"--max-batch": [16, 64], "replicas": [1, 2]}, "--max-batch"),
        ({"--decode-routing-policy": ["RR", "LOAD"]}, "--decode-routing-policy"),
    ],
)
def test_options_that_no_instance_takes_cannot_vary(
    vary: Json, option: str, tmp_path: Path
) -> None:
    own = cluster(INSTANCE | {"max_num_seqs": 16})
    with pytest.raises(
        InputError, match=f"s.yaml: vary names {option}, which changes noth"
    ) as caught:
        load_base(space(tmp_path, own, vary=vary))
    assert caught.value.field == f"vary.{option}"
    taken = {"nodes[0].instances[0].max_num_seqs": [None, 8], **vary}
    if "decode" not in option:
        load_base(space(tmp_path, own, vary=taken))
        del taken["nodes[0].instances[0].max_num_seqs"]
        load_base(space(tmp_path, vary=taken))


@pytest.mark.parametrize(
    ("own", "varied", "value", "set_"),
    [
        ({"tp_size": 1}, "tensor_parallel_size", 2, {"tp_size": 2}),
        ({"tensor_parallel_size": 1}, "tp_size", 2, {"tensor_parallel_size": 2}),
        ({}, "tensor_parallel_size", 2, {"tensor_parallel_size": 2}),
        ({"pp_size": 1}, "pipeline_parallel_size", 2, {"pp_size": 2}),
        ({"npu_mem": {"mem_util": 0.8}}, "gpu_memory_utilization", 0.5, {"mem_util": 0.5}),
        ({"gpu_memory_utilization": 0.8}, "npu_mem.mem_util", 0.5, {"gpu_memory_utilization": 0.5}),
        ({"npu_memory_utilization": 0.8}, "gpu_memory_utilization", 0.5, {"npu_mem": None}),
        ({}, "model", "Qwen/Qwen3-0.6B", {"model_name": "Qwen/Qwen3-0.6B"}),
    ],
)
def test_all_names_of_a_field_vary_it(
    own: Json, varied: str, value: Any, set_: Json, tmp_path: Path
) -> None:
    base = load_base(
        space(tmp_path, cluster(INSTANCE | own), vary={f"nodes[*].instances[*].{varied}": [value]})
    )
    point = next(iter(base.space.grid()))
    made = json.loads(run_of(base, point).cluster)["nodes"][0]["instances"][0]
    inside = {**made, **(made.get("npu_mem") or {})}
    assert {name: inside.get(name) for name in set_} == set_
    values = [inside[name] for name in ("npu_memory_utilization", "mem_util") if name in inside]
    assert values in ([], [0.5])
    assert sum(name in made for name in ("tp_size", "tensor_parallel_size")) <= 1


def test_two_names_of_a_field_cannot_both_vary(tmp_path: Path) -> None:
    names = ("nodes[*].instances[0].tensor_parallel_size", "nodes[0].instances[*].tp_size")
    with pytest.raises(InputError, match="which sets the same"):
        load_base(space(tmp_path, vary={name: [1, 2] for name in names}))


@pytest.mark.parametrize("text", ["{", "a: [", "- 1\n- 2\n", "", "\x00"])
def test_files_that_are_no_search(text: str, tmp_path: Path) -> None:
    for name in ("s.yaml", "s.json", "absent.yaml"):
        path = tmp_path / name
        if name != "absent.yaml":
            path.write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_space(path)
        assert str(path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        (
            "s.yaml",
            "a: 1\nb: [1,\nc: 2\n",
            "s.yaml:4:1: not valid YAML (expected ',' or ']', but got",
        ),
        ("s.yaml", "a: 1\nb: [1,\nc: 2\n", " from line 2)"),
        ("s.yaml", "a: {b: 1\n", "s.yaml:2:1: not valid YAML"),
        ("s.json", '{"a": 1,\n "b": }', "s.json:2:7: not valid JSON (Expecting value)"),
    ],
)
def test_a_broken_file_names_the_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_space(path)
    assert said in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nodes[1].instances[0].tp_size", "does not have"),
        ("nodes[0].instances[0].tp_size[2]", "does not have"),
        ("link_bw.x", "does not have"),
        ("nodes[a].x", "write a path such as"),
        ("copies of nodes[0].instances[4]", "does not have"),
        ("copies of something", "copies of nodes[0].instances[0]"),
        ("nodes[*].instances[0].tp_sise", 'is not a known key (did you mean "tp_size"?)'),
        ("engine.blok_size", 'is not a known key (did you mean "block_size"?)'),
    ],
)
def test_names_that_the_cluster_file_does_not_have(name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"s\.yaml: vary names") as caught:
        load_base(space(tmp_path, vary={name: [1, 2]}))
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("first", "later"),
    [
        ("nodes[0].instances[0].tp_size", "nodes[*].instances[*].tp_size"),
        ("nodes[0].instances[0].tp_size", "nodes[0].instances"),
        ("engine.block_size", "engine"),
    ],
)
def test_a_path_that_would_have_no_effect_is_refused(
    first: str, later: str, tmp_path: Path
) -> None:
    whole = {"nodes[0].instances": [INSTANCE], "engine": {"block_size": 16}}
    vary = {first: [16], later: [whole.get(later, 16)]}
    with pytest.raises(InputError, match=r"after it, .*sets the same"):
        load_base(space(tmp_path, vary=vary))
    if later in whole:
        load_base(space(tmp_path, vary=dict(reversed(vary.items()))))
    load_base(space(tmp_path, vary={first: [16], "nodes[0].instances[0].pp_size": [1]}))


def test_devices_that_share_the_memory_of_one_are_refused(tmp_path: Path) -> None:
    for key, value in (("npu_mem", {"mem_size": 80, "mem_bw": 3350}), ("price_per_device_hour", 2)):
        vary = {"nodes[*].instances[*].hardware": ["H100", "L40S"]}
        with pytest.raises(InputError, match=f"gives {key}.*the same for all of them"):
            load_base(space(tmp_path, cluster({**INSTANCE, key: value}), vary=vary))
        vary[f"nodes[*].instances[*].{key}"] = [value]
        load_base(space(tmp_path, cluster({**INSTANCE, key: value}), vary=vary))


def made(
    folder: Path, point: Json, base: Json | None = None, **fields: Any
) -> tuple[Json, int, tuple[str, ...]]:
    run = run_of(
        load_base(
            space(folder, base, vary={name: [value] for name, value in point.items()}, **fields)
        ),
        point,
    )
    return json.loads(run.cluster), run.devices, run.words


def test_fields_are_set_where_the_path_says(tmp_path: Path) -> None:
    base = cluster(INSTANCE, {**INSTANCE, "tp_size": 2})
    point = {
        "nodes[*].instances[*].tp_size": 4,
        "nodes[0].instances[1].pp_size": 2,
        "engine.block_size": 32,
        "link_bw[*]": 9,
    }
    document, devices, _ = made(tmp_path, point, base)
    assert [one["tp_size"] for one in document["nodes"][0]["instances"]] == [4, 4]
    assert (
        devices == 4 + 8
        and document["engine"] == {"block_size": 32}
        and document["link_bw"] == [9, 9, 9]
    )


@given(
    count=st.integers(1, 40), tp=st.sampled_from([1, 2, 4, 8]), per_node=st.sampled_from([8, 16, 9])
)
def test_replicas_fill_nodes(
    count: int, tp: int, per_node: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    point = {"replicas": count, "nodes[0].instances[0].tp_size": tp}
    document, devices, _ = made(
        tmp_path_factory.mktemp("replicas"), point, devices_per_node=per_node
    )
    sizes = [len(node["instances"]) for node in document["nodes"]]
    assert devices == count * tp and sum(sizes) == count and max(sizes) * tp <= per_node
    assert set(sizes[:-1]) <= {per_node // tp}
    parse_cluster(json.dumps(document))


def test_copies_of_instances_of_two_roles(tmp_path: Path) -> None:
    base = cluster({**INSTANCE, "pd_type": "prefill"}, {**INSTANCE, "pd_type": "decode"})
    point = {"copies of nodes[0].instances[0]": 2, "copies of nodes[0].instances[1]": 3}
    document, devices, _ = made(tmp_path, point, base)
    assert [one["pd_type"] for one in document["nodes"][0]["instances"]] == ["prefill"] * 2 + [
        "decode"
    ] * 3
    assert devices == 5
    with pytest.raises(InputError, match="has several instances; write"):
        made(tmp_path, {"replicas": 2}, base)


def test_options_and_files_beside_the_cluster_file(tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text(
        '{"input_toks": 3, "output_toks": 2, "arrival_time_ns": 0}\n', encoding="utf-8"
    )
    (tmp_path / "mine.json").write_text("{}", encoding="utf-8")
    options = {"--goodput": ["ttft:9", "tpot:9"], "--exact": True, "--json-not": None, "--seed": 3}
    point = {"--seed": 5, "--max-num-seqs": 7, "nodes[0].instances[0].hardware": "mine.json"}
    document, _, words = made(tmp_path, point, dataset="t.jsonl", options=options)
    dataset = f"--dataset={tmp_path / 't.jsonl'}"
    assert words == (
        dataset,
        "--goodput=ttft:9",
        "--goodput=tpot:9",
        "--exact",
        "--seed=5",
        "--max-num-seqs=7",
    )
    assert document["nodes"][0]["instances"][0]["hardware"] == str(
        (tmp_path / "mine.json").resolve()
    )


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(0, 5)), max_size=25))
def test_nothing_beats_the_front_and_the_front_beats_the_rest(
    rows: list[tuple[int, int, int]],
) -> None:
    def beats(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
        return a != b and all(x <= y for x, y in zip(a, b, strict=True))

    front = pareto_front(rows)
    for i, row in enumerate(rows):
        beaten = [j for j in front if beats(rows[j], row)]
        assert (i in front) == (not beaten)
