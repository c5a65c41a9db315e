"""Rows of fp8 matrices contain the kernel that scales their input; compiled servers run it behind
attention only.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import llmsim
from llmsim.costs import CostRequest, compile_costs
from llmsim.costs.sources.silicon.input_scaling import input_scaling
from llmsim.model import Dtypes, Gemm, ModelConfig, load_model
from llmsim.model.families.presets import config_path
from tests.costs.builders import LLAMA, database, needs_database, request

pytestmark = needs_database
FUSED = ("qkv_proj", "gate_up_proj", "down_proj")
CARDS = ("H100", "H200", "B200", "L40S")
TOKENS = np.array([1, 16, 256, 2048])


def asked(hardware: str, **changes: object) -> CostRequest:
    dtypes = Dtypes(weight="fp8")
    return request(hardware=hardware, dtypes=dtypes, source="silicon", **changes)


def times_us(found: CostRequest) -> dict[str, np.ndarray]:
    """Of each operator at the token counts above."""
    return {
        each.name: each.ps[TOKENS] / 1e6
        for each in compile_costs(found).ops
        if each.feature == "tokens"
    }


def kernel_us(hardware: str, k: int, *, fixed: bool = False) -> np.ndarray:
    """The kernel's time for inputs of k columns, of its own two tables."""
    tables = database(hardware).tables("gemm")
    scaling = input_scaling(database(hardware), tables[0], "fp8")
    assert scaling is not None
    op = next(each for each in asked(hardware).operators if each.name == "down_proj")
    assert isinstance(op, Gemm)
    wide = replace(op, gemm_k=k)
    return scaling.absent_us(wide, TOKENS.astype(np.float64), fused=not fixed, fixed=fixed)


@pytest.mark.parametrize("hardware", CARDS)
def test_a_compiled_server_scales_alone_only_behind_attention(hardware: str) -> None:
    rows = times_us(asked(hardware))
    compiled = times_us(asked(hardware, compiles_scaling=True))
    depth = {"qkv_proj": 4096, "gate_up_proj": 4096, "down_proj": 14336}
    for name in FUSED:
        saved = rows[name] - compiled[name]
        least = np.minimum(kernel_us(hardware, depth[name]), rows[name])
        # What would be faster than light is raised to it, so less may be saved than the kernel.
        assert (saved <= least + 1e-3).all() and (saved > 0).any()
        assert saved[-1] == pytest.approx(least[-1], rel=1e-6)
    for name in rows.keys() - set(FUSED):
        assert (rows[name] == compiled[name]).all(), name
    off = times_us(asked(hardware, compiles_scaling=True, fused_scaling=False))
    assert all((rows[name] == off[name]).all() for name in rows)


def test_shortest_calls_are_a_launch_and_a_reduction() -> None:
    """2.0 us to convert and 0.6 to find a scale: the H200's tables for a token of 4,096 columns."""
    whole, finding = kernel_us("H200", 4096), kernel_us("H200", 4096, fixed=True)
    assert whole[0] == pytest.approx(2.6, abs=0.2)
    assert finding[0] == pytest.approx(0.62, abs=0.2)
    assert (np.diff(whole) > 0).all()


def test_fixed_scales_are_not_searched_for(tmp_path: Path) -> None:
    def model(**quantization: object) -> ModelConfig:
        fields = json.loads(config_path(LLAMA).read_text("utf-8"))
        path = tmp_path / "config.json"
        path.write_text(json.dumps(fields | {"quantization_config": quantization}))
        return load_model(str(path))

    inputs = {"num_bits": 8, "type": "float"}
    group = {"weights": inputs, "input_activations": {**inputs, "dynamic": False}}
    for fixed in (
        model(quant_method="fp8", activation_scheme="static"),
        model(quant_method="modelopt", quant_algo="FP8"),
        model(quant_method="compressed-tensors", config_groups={"group_0": group}),
    ):
        assert fixed.fixed_input_scales
        rows = times_us(asked("H200"))
        eager = times_us(asked("H200", model=fixed))
        compiled = times_us(asked("H200", model=fixed, compiles_scaling=True))
        for name in (*FUSED, "o_proj"):
            assert (eager[name] < rows[name]).any(), name
        assert compiled["o_proj"] == pytest.approx(eager["o_proj"])
        assert (compiled["qkv_proj"] < eager["qkv_proj"]).any()
    assert not model(quant_method="fp8", activation_scheme="dynamic").fixed_input_scales
    assert not model(quant_method="fp8", weight_block_size=[128, 128]).fixed_input_scales


def test_rows_of_others_and_of_wide_weights_keep_their_times() -> None:
    base = database("H200")
    for table in base.tables("gemm"):
        contained = table.framework == "vllm"
        assert (input_scaling(base, table, "fp8") is not None) == contained
        assert input_scaling(base, table, "bfloat16") is None
    wide = request(hardware="H200", source="silicon")
    assert all(
        (one == other).all()
        for one, other in zip(
            times_us(wide).values(),
            times_us(replace(wide, compiles_scaling=True)).values(),
            strict=True,
        )
    )


@pytest.mark.parametrize(
    ("engine", "less"),
    [
        ({"engine_profile": "vllm-0.24"}, True),
        ({"engine_profile": "vllm-0.10"}, True),
        ({"engine_profile": "vllm-0.24", "enforce_eager": True}, False),
        ({"engine_profile": "vllm-0.8"}, False),
        ({"engine_profile": "sglang-0.5"}, False),
    ],
)
def test_engines_that_compile_their_models(engine: dict[str, object], less: bool) -> None:
    fields = llmsim.Cluster.build(LLAMA, "H200").fields() | {"engine": {**engine, "dtype": "fp8"}}
    load = "synthetic:n=2,rate=10,input=fixed:100,output=fixed:5"
    found = llmsim.run(fields, load).summary["sources"]["operators"]
    assert any("less the scaling" in each["source"] for each in found) == less
    off = llmsim.run(fields, load, disable_term="fused_scaling").summary["sources"]["operators"]
    assert not any("less the scaling" in each["source"] for each in off)
    assert all(
        each["provenance"]["measured"] == 0
        for each in found
        if "less the scaling" in each["source"]
    )
