"""Flops and bytes of a run equal closed forms of a transformer; utilisation is their share of the
data sheet.
"""

from pathlib import Path

import pytest
from msgspec.structs import asdict

import llmsim
from llmsim.api.preparation.prepare import prepare, trial
from llmsim.cli.run.arguments import checked_options
from llmsim.core import GroupInfo
from llmsim.model import load_hardware, parameter_count
from llmsim.results.devices.utilisation import by_device, group_usage, operator_work, utilisation
from llmsim.results.requests.metrics import makespan_ps

ROOT = Path(__file__).resolve().parents[2]


def run(cluster, dataset):
    """The lowered first group and the results of a run."""
    options = checked_options(
        ["--cluster-config", str(ROOT / "cluster_config" / cluster), "--dataset", dataset]
    )
    return prepare(options).lowered.groups[0], trial(options)


@pytest.mark.parametrize("chunks", [1, 3])
def test_flops_and_bytes_of_one_request(chunks):
    prompt, output = 8192 * (chunks - 1) + 700, 40
    group, results = run(
        "h100_llama31_8b.json", f"synthetic:n=1,rate=1,input={prompt},output={output}"
    )
    model, usage = group.model, group_usage(results, 0)
    tokens = prompt + output - 1
    assert usage.scheduled_tokens == tokens
    assert usage.attended_tokens == tokens * (tokens + 1) // 2
    steps = chunks + output - 1
    work = {(op.name, op.kind): operator_work(op, usage) for op in group.operators}
    gemms = sum(
        one.flops for (name, kind), one in work.items() if kind == "gemm" and name != "lm_head"
    )
    embedding = model.vocab_size * model.hidden_size
    norms = (2 * model.num_layers + 1) * model.hidden_size
    assert gemms == 2 * (parameter_count(model) - 2 * embedding - norms) * tokens
    head = work["lm_head", "gemm"]
    # A chunk that is not the last one of its prompt gives no token, but its last row goes through
    # the head.
    assert head.flops == 2 * embedding * steps
    assert head.executions == steps
    attention = work["attention", "attention"]
    width = model.num_attention_heads * model.head_dim
    assert attention.flops == 4 * model.num_layers * width * usage.attended_tokens
    read = sum(min(prompt, 8192 * (i + 1)) for i in range(chunks)) + sum(
        range(prompt + 1, prompt + output)
    )
    assert usage.kv_read_tokens == read
    weights = 2 * (parameter_count(model) - embedding) * steps
    reads = sum(one.read_bytes for one in work.values())
    kv = 2 * 2 * model.num_layers * model.num_key_value_heads * model.head_dim * read
    assert reads > weights + kv
    assert work["embedding", "embedding"].read_bytes < 2 * embedding


def test_a_decode_step_of_one_request_is_bound_by_memory():
    group, results = run("h100_llama31_8b.json", "synthetic:n=1,rate=1,input=16,output=500")
    usage = group_usage(results, 0)
    shares = utilisation(group.operators, usage, load_hardware("H100"), makespan_ps(results))
    assert 0.5 < shares.mbu_busy < 1
    assert shares.mfu_busy < 0.01


def test_four_ranks_do_a_quarter_each():
    group, results = run("h100_llama31_70b_tp4.json", "synthetic:n=4,rate=100,input=3000,output=2")
    usage = group_usage(results, 0)
    gemms = sum(
        operator_work(op, usage).flops
        for op in group.operators
        if op.kind == "gemm" and op.name != "lm_head"
    )
    embedding = group.model.vocab_size * group.model.hidden_size
    norms = (2 * group.model.num_layers + 1) * group.model.hidden_size
    assert (
        4 * gemms
        == 2 * (parameter_count(group.model) - 2 * embedding - norms) * usage.scheduled_tokens
    )


def test_pipeline_stages_share_the_work_of_one_device():
    """A stage reads and computes its own layers: over all devices that is what one would do."""
    done = {"mfu": [], "mbu": []}
    for stages in (1, 2, 4):
        cluster = llmsim.Cluster.build("meta-llama/Llama-3.1-8B", "H100", pp=stages)
        summary = llmsim.run(cluster, "synthetic:n=1,rate=1,input=16,output=300").summary
        (row,) = summary["utilisation"]
        for share, sums in done.items():
            assert row[f"{share}_busy"] < 1 / stages
            sums.append(row[share] * stages * summary["duration"])
    for one, two, four in done.values():
        assert [two, four] == pytest.approx([one, one], rel=1e-3)


def test_without_a_data_sheet_there_is_no_utilisation():
    group, results = run("h100_llama31_8b.json", "synthetic:n=1,rate=1,input=16,output=5")
    assert set(
        asdict(utilisation(group.operators, group_usage(results, 0), None, 10)).values()
    ) == {None}


def test_experts_are_read_as_far_as_tokens_touch_them():
    group, results = run("h100_qwen3_30b_a3b.json", "synthetic:n=1,rate=1,input=1,output=30")
    usage = group_usage(results, 0)
    moe = next(op for op in group.operators if op.kind == "moe")
    work = operator_work(moe, usage)
    padded = usage.by_tokens.nonzero()[0]
    assert padded.tolist() == [1]
    expected = work.executions * moe.weight_bytes * moe.topk / moe.experts_total
    activations = moe.read_bytes_per_token * work.executions
    assert work.read_bytes == pytest.approx(expected + activations, rel=1e-9)


def test_a_class_of_devices_counts_each_device_alike():
    def group(index, hardware, devices):
        return GroupInfo(index, "m", hardware, devices, devices, 10, 16, 8192, 8192)

    groups = [group(0, "A", 1), group(1, "A", 3), group(2, "B", 2), group(3, "C", 1)]
    rows = [
        {"group": 0, "busy": 1.0, "mfu": 0.4, "mbu": 0.8},
        {"group": 1, "busy": 0.5, "mfu": 0.1, "mbu": 0.2},
        {"group": 2, "busy": 0.0, "mfu": 0.0, "mbu": 0.0},
        {"group": 3, "busy": 0.3, "mfu": None, "mbu": None},
    ]
    a, b, c = by_device(rows, groups)
    assert (a["hardware"], a["devices"], a["busy"]) == ("A", 4, 0.625)
    assert (a["mfu"], a["mbu"]) == (0.175, 0.35)
    assert (a["mfu_busy"], a["mbu_busy"]) == (0.28, 0.56)
    assert (b["busy"], b["mfu_busy"]) == (0.0, None)
    assert (c["mfu"], c["mbu"], c["mbu_busy"]) == (None, None, None)
