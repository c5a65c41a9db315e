"""Who wins, where each value came from, how units convert, and what is refused until a later
version.
"""

from fractions import Fraction
from typing import Any

import pytest
from cluster_examples import full, instance, parsed, small, with_instance
from hypothesis import given
from hypothesis import strategies as st

from llmsim.config import Deployment, EngineArgs, EngineOverrides, cluster_schema, resolve
from llmsim.config.engine.options import EngineOptions
from llmsim.config.errors import InputError, NotYetError
from llmsim.config.units import gb_per_s_to_bytes_per_s, gib_to_bytes, ns_to_ps


def deploy(document: Any, **overrides: Any) -> Deployment:
    return resolve(parsed(document), EngineOverrides(**overrides))


def engine(document: Any, **overrides: Any) -> EngineArgs:
    return deploy(document, **overrides).groups[0].engine


LAYERED: list[tuple[str, list[Any]]] = [
    ("max_num_seqs", [16, 32, 64]),
    ("max_num_batched_tokens", [1024, 1536, 4096]),
    ("long_prefill_token_threshold", [10, 20, 30]),
    ("watermark", [0.1, 0.2, 0.3]),
    ("block_size", [32, 64, 128]),
    ("gpu_memory_utilization", [0.5, 0.6, 0.7]),
    ("num_gpu_blocks_override", [100, 200, 300]),
    ("max_model_len", [1000, 2000, 3000]),
    ("dtype", ["fp8", "bf16", "fp16"]),
    ("kv_cache_dtype", ["fp8", "bf16", "fp16"]),
    ("cuda_graph_sizes", [(1, 2), (1, 4), (1, 8)]),
]


@pytest.mark.parametrize(
    ("name", "values"), LAYERED, ids=lambda value: value if isinstance(value, str) else ""
)
@pytest.mark.parametrize("mask", range(8))
def test_instance_then_command_line_then_cluster_then_profile(
    name: str, values: list[Any], mask: int
) -> None:
    in_instance, on_command_line, in_cluster = (bool(mask & bit) for bit in (4, 2, 1))
    document = small()
    if in_instance:
        instance(document)[name] = values[0]
    if in_cluster:
        document["engine"] = {name: values[2]}
    args = engine(document, **({name: values[1]} if on_command_line else {}))
    default = getattr(engine(small()), name)
    expected = (
        values[0]
        if in_instance
        else values[1]
        if on_command_line
        else values[2]
        if in_cluster
        else default
    )
    assert getattr(args, name) == expected
    origin = args.origin[name]
    if in_instance or (in_cluster and not on_command_line):
        assert origin == "cluster file"
    elif on_command_line:
        assert origin == "command line"
    else:
        assert args.is_default(name)


@pytest.mark.parametrize(
    "name",
    ["enable_chunked_prefill", "enable_prefix_caching", "reserve_full_isl", "async_scheduling"],
)
def test_switches_can_be_turned_off(name: str) -> None:
    assert getattr(engine(small()), name) is True
    assert getattr(engine(with_instance(**{name: False})), name) is False
    assert getattr(engine(small(), **{name: False}), name) is False
    assert getattr(engine(with_instance(**{name: True}), **{name: False}), name) is True


def test_every_value_has_an_origin() -> None:
    args = engine(small())
    part_of_another = {"host_ranks_ps"}  # of host_gap_ps, which has an origin
    named = set(EngineArgs.__struct_fields__) - {"origin"} - part_of_another
    assert set(args.origin) == named
    assert args.origin["max_num_seqs"] == "engine profile vllm-0.24 (H100)"
    assert args.origin["block_size"] == "engine profile vllm-0.24"
    assert args.origin["max_model_len"] == "model"


def test_overrides_and_file_share_their_options() -> None:
    given = dict.fromkeys(EngineOptions.model_fields, 1)
    assert EngineOverrides(**given).given == given
    assert EngineOverrides(**dict.fromkeys(given)).given == {}
    assert set(cluster_schema()["$defs"]["EngineOptions"]["properties"]) == set(
        EngineOptions.model_fields
    )


def test_names_of_one_option() -> None:
    document = small()
    instance(document)["npu_mem"]["mem_util"] = 0.8
    assert engine(document, gpu_memory_utilization=0.5).gpu_memory_utilization == 0.8
    assert engine(with_instance(npu_memory_utilization=0.7)).gpu_memory_utilization == 0.7
    assert engine(small(), npu_memory_utilization=0.6).gpu_memory_utilization == 0.6
    assert engine(with_instance(scheduler_reserve_full_isl=False)).reserve_full_isl is False
    instance(document)["gpu_memory_utilization"] = 0.8
    assert engine(document).gpu_memory_utilization == 0.8
    instance(document)["gpu_memory_utilization"] = 0.7
    with pytest.raises(
        InputError, match=r"npu_mem\.mem_util is 0\.8 but gpu_memory_utilization, the same option"
    ):
        engine(document)
    with pytest.raises(
        InputError, match=r"--npu-memory-utilization is 0\.6 but gpu_memory_utilization"
    ):
        engine(small(), gpu_memory_utilization=0.5, npu_memory_utilization=0.6)


@pytest.mark.parametrize(
    ("spelt", "short"),
    [
        ("bfloat16", "bf16"),
        ("float16", "fp16"),
        ("half", "fp16"),
        ("float32", "fp32"),
        ("int8", "int8"),
        ("auto", None),
    ],
)
def test_dtypes_become_short_names(spelt: str, short: str | None) -> None:
    assert engine(with_instance(dtype=spelt)).dtype == short
    assert engine(small(), dtype=spelt).dtype == short
    assert engine(with_instance(kv_cache_dtype=spelt)).kv_cache_dtype == (short or "auto")


def test_command_line_values_are_checked_like_the_file() -> None:
    cases = {
        "max_num_seqs": (-1, True, 1.5, "8", 10**30),
        "max_num_batched_tokens": (-1, 1 << 40),
        "block_size": (0, -16),
        "gpu_memory_utilization": (0, 1.01, float("nan"), "0.9"),
        "watermark": (1.0, -0.1),
        "max_model_len": (0,),
        "num_gpu_blocks_override": (0,),
        "dtype": ("bf17", 3),
        "cuda_graph_sizes": ((), (0,), (1, -2)),
        "engine_profile": ("vlm-0.1", ""),
    }
    for name, values in cases.items():
        for value in values:
            with pytest.raises(InputError) as caught:
                engine(small(), **{name: value})
            message = str(caught.value)
            assert message.startswith(f"--{name.replace('_', '-')}")
            assert "expected" in message or "known: sglang-0.5, sglang-0.5.10, " in message


def test_batch_limits_follow_vllm() -> None:
    assert engine(small(), max_num_batched_tokens=512).max_num_seqs == 512
    assert engine(small(), max_num_seqs=0).max_num_seqs == 8192
    with pytest.raises(
        InputError, match="--max-num-seqs is 600, more than max_num_batched_tokens, which is 512"
    ):
        engine(small(), max_num_batched_tokens=512, max_num_seqs=600)
    with pytest.raises(
        InputError,
        match=r"c\.json:\d+: nodes\[0\]\.instances\[0\]\.max_num_seqs is 9000, more than",
    ):
        engine(with_instance(max_num_seqs=9000))


def test_units_of_the_deployment() -> None:
    document = small()
    instance(document)["npu_mem"] = {"mem_size": 79.1, "mem_bw": 3352.3, "mem_latency": 1.5}
    document["link_bw"] = [450, 62.5]
    deployment = deploy(document)
    memory = deployment.groups[0].memory
    assert memory.capacity_bytes == round(Fraction("79.1") * 2**30)
    assert memory.bandwidth_bytes_per_s == 3_352_300_000_000
    assert memory.latency_ps == 1_500
    assert deployment.link.bandwidth_bytes_per_s == (450 * 10**9, 62_500_000_000)
    assert deployment.link.latency_ps == (1_000_000, 1_000_000)
    assert deployment.nodes[0].host_memory is not None
    assert deployment.nodes[0].host_memory.capacity_bytes == 512 * 2**30
    assert engine(small()).api_latency_ps == 1_500_000_000
    assert engine(small(), api_latency_ns=0.5, host_gap_ns=2).host_gap_ps == 2_000


@given(st.decimals(min_value="0.001", max_value="1000000", places=3))
def test_conversions_keep_the_decimal_of_the_file(value: Any) -> None:
    exact = Fraction(str(value))
    number = float(value)
    assert gb_per_s_to_bytes_per_s(number) == exact * 10**9
    assert ns_to_ps(number) == exact * 1000
    assert abs(gib_to_bytes(number) - exact * 2**30) <= Fraction(1, 2)


def test_the_largest_numbers_fit_64_bits() -> None:
    document = small() | {"link_bw": 10**6, "link_latency": 10**12}
    instance(document)["npu_mem"] = {"mem_size": 1 << 20, "mem_bw": 10**6, "mem_latency": 10**12}
    deployment = deploy(document)
    memory = deployment.groups[0].memory
    numbers = (
        memory.capacity_bytes,
        memory.bandwidth_bytes_per_s,
        memory.latency_ps,
        *deployment.link.latency_ps,
    )
    assert all(0 < number < 2**53 for number in numbers)


def test_groups_are_numbered_through_the_nodes() -> None:
    document = small()
    document["nodes"].append(
        {
            "instances": [
                {**instance(document), "num_npus": 2},
                {**instance(document), "hardware": "A6000"},
            ]
        }
    )
    document["num_nodes"] = 2
    deployment = deploy(document)
    assert [(group.index, group.node, group.field_path) for group in deployment.groups] == [
        (0, 0, "nodes[0].instances[0]"),
        (1, 1, "nodes[1].instances[0]"),
        (2, 1, "nodes[1].instances[1]"),
    ]
    assert [node.groups for node in deployment.nodes] == [(0,), (1, 2)]
    assert deployment.nodes[1].host_memory is None


NOT_YET: list[tuple[str, dict[str, Any]]] = [
    ("placement.layers.lm_head.kv_loc", {"placement": {"layers": {"lm_head": {"kv_loc": "cpu"}}}}),
    ("max_num_batched_tokens", {"max_num_batched_tokens": 0}),
]


@pytest.mark.parametrize(
    ("field", "keys"), NOT_YET, ids=lambda value: value if isinstance(value, str) else ""
)
def test_what_a_later_version_runs_is_refused_by_name(field: str, keys: dict[str, Any]) -> None:
    cluster = parsed(with_instance(**keys))
    with pytest.raises(NotYetError) as caught:
        resolve(cluster, EngineOverrides())
    message = str(caught.value)
    assert f": nodes[0].instances[0].{field} " in message
    assert "does not run in this version" in message or "runs in this version" in message
    assert caught.value.exit_code == 2


def test_stages_are_refused_to_schedulers_of_one_batch() -> None:
    words = r"2 pipeline stages do not go with the scheduler static .*: static batching forms no"
    with pytest.raises(InputError, match=words):
        deploy(with_instance(pp_size=2, tp_size=1, num_npus=2, npu_num=None, scheduler="static"))
    deploy(with_instance(pp_size=2, tp_size=1, num_npus=2, npu_num=None, scheduler="mlfq"))


def test_offloading_is_the_instances_unless_only_the_command_line_says_it() -> None:
    document, source = small(), full()
    document["cxl_mem"] = source["cxl_mem"]
    document["nodes"][0]["cpu_mem"]["pim_config"] = "DDR4_8GB_3200_pim"
    deployment = resolve(parsed(document), EngineOverrides(), frozenset({"enable_attn_offloading"}))
    pool = deployment.pool
    assert pool is not None and pool.devices == 4
    assert (pool.whole.capacity_bytes, pool.device.capacity_bytes) == (1024 << 30, 256 << 30)
    assert (pool.whole.bandwidth_bytes_per_s, pool.device.bandwidth_bytes_per_s) == (
        240 * 10**9,
        60 * 10**9,
    )
    assert deployment.nodes[0].pim == "DDR4_8GB_3200_pim"
    assert (
        deployment.groups[0].offloading.attention
        and not deployment.groups[0].offloading.local_reads
    )
    instance(document)["enable_attn_offloading"] = False
    off = resolve(parsed(document), EngineOverrides(), frozenset({"enable_attn_offloading"}))
    assert not off.groups[0].offloading.attention


def test_harmless_wishes_run() -> None:
    everything_local = {"weights": "npu", "kv_loc": "npu", "kv_evict_loc": "npu"}
    deploy(
        with_instance(
            placement={
                "default": everything_local,
                "blocks": [{"blocks": "0-3", **everything_local}],
            }
        )
    )
    deploy(with_instance(enable_block_copy=True, enable_attn_offloading=False, pd_type=None))
    document = small()
    del instance(document)["pd_type"], document["nodes"][0]["cpu_mem"]
    deploy(document)


def test_a_deployment_is_frozen() -> None:
    deployment = deploy(small())
    with pytest.raises(AttributeError):
        deployment.groups[0].engine.max_num_seqs = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        deployment.groups[0].engine.origin["max_num_seqs"] = "me"  # type: ignore[index]
    with pytest.raises(ValueError, match="frozen"):
        parsed(small()).num_nodes = 2  # type: ignore[misc]
