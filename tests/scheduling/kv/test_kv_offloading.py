"""KV offloading in runs (`kv_offloading_size`): what it is worth, sizes by hand, and refusals; the
rules against vLLM are in tests/conformance/test_offloading.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

import llmsim
from llmsim.api.preparation.prepare import prepare
from llmsim.cli import run_main
from llmsim.cli.run.arguments import checked_options

ROOT = Path(__file__).resolve().parents[3]
CLUSTER = str(ROOT / "cluster_config" / "h100_cpu_prefix_pool.json")
ATTENDS_ON_HOST = str(ROOT / "cluster_config" / "cpu_attention_instance.json")
LATENTS = str(ROOT / "cluster_config" / "h200_deepseek_v32_tp8.json")
PAIR = str(ROOT / "cluster_config" / "h100_llama31_8b_pd.json")
PREFIXES = "synthetic:n=40,rate=20,input=fixed:20,output=fixed:5,prefixes=4:tokens=1024,seed=1"
SMALL = {"num_gpu_blocks_override": 150, "max_model_len": 2048, "engine_profile": "vllm-0.33"}


def run(dataset: str = PREFIXES, cluster: Any = CLUSTER, **options: Any) -> Any:
    return llmsim.run(cluster, dataset, check_every_step=True, **{**SMALL, **options})


def offloading(result: Any) -> dict[str, int]:
    assert set(result.summary["invariants"].values()) == {"ok"}
    found: dict[str, int] = result.summary["kv_offloading"]
    return found


def test_prefixes_come_back_from_host_memory() -> None:
    """The device holds two prompts; the pool all four prefixes of 64 blocks and 40 ends of them."""
    without, kept = run(), run(kv_offloading_size=4)
    counted = offloading(kept)
    assert "kv_offloading" not in without.summary
    assert counted["loaded_tokens"] > 5 * 1024
    assert counted["stored_tokens"] >= 4 * 1024
    assert counted["evicted_tokens"] == counted["refused_tokens"] == 0
    assert kept.summary["mean_ttft_ms"] < without.summary["mean_ttft_ms"]


def test_a_pool_of_one_prefix_evicts_and_refuses() -> None:
    """128 KiB a token: 1/8 GiB has 64 blocks of 16 tokens, one less than a prompt."""
    small = offloading(run(kv_offloading_size=0.125))
    assert small["stored_tokens"] == 0 < small["refused_tokens"]
    larger = offloading(run(kv_offloading_size=0.25))
    assert larger["stored_tokens"] > larger["evicted_tokens"] > 0


def test_a_full_pool_of_031_gives_up_other_chunks() -> None:
    """There, chunks of requests that run are as old as their stores."""
    load = PREFIXES.replace("prefixes=4", "prefixes=6")
    old, new = (
        offloading(run(load, kv_offloading_size=0.5, engine_profile=profile))
        for profile in ("vllm-0.31", "vllm-0.33")
    )
    assert old["evicted_tokens"] > 0 < new["evicted_tokens"]
    assert old != new


def test_a_full_pool_of_030_gives_up_other_chunks() -> None:
    """There, a request uses its chunks whenever it looks for KV."""
    load = PREFIXES.replace("prefixes=4", "prefixes=6")
    for policy in ("lru", "arc"):
        old, new = (
            offloading(
                run(
                    load,
                    kv_offloading_size=0.5,
                    kv_offloading_eviction_policy=policy,
                    engine_profile=profile,
                )
            )
            for profile in ("vllm-0.30", "vllm-0.31")
        )
        assert old["evicted_tokens"] > 0 < new["evicted_tokens"]
        assert old != new


def test_an_end_is_stored_from_026_on() -> None:
    """All but the last of 1,024 + 20 + 13 tokens fill 66 chunks. With asynchronous steps, those of
    the last chunk are known when the request has ended.
    """
    ends = {"dataset": PREFIXES.replace("output=fixed:5", "output=fixed:13")}
    early, late = (
        offloading(
            run(**ends, kv_offloading_size=4, kv_offloading_prompt_only=False, engine_profile=one)
        )
        for one in ("vllm-0.25", "vllm-0.26")
    )
    assert early["stored_tokens"] < late["stored_tokens"]


def test_ranks_store_the_same_latents_once_from_027_on() -> None:
    """Eight ranks have the latents of DeepSeek-V3.2; a pool holds eight times as many chunks."""
    chunks = []
    for profile in ("vllm-0.26", "vllm-0.27"):
        words = ["--cluster-config", LATENTS, "--dataset", PREFIXES, "--engine-profile", profile]
        prepared = prepare(checked_options([*words, "--kv-offloading-size", "8"]))
        (group,) = prepared.lowered.groups
        assert group.scheduler is not None
        chunks.append(group.scheduler.offloading.num_chunks)
    assert chunks[1] // 8 == chunks[0]


def test_026_ends_where_a_waiting_client_gives_up(capsys: pytest.CaptureFixture[str]) -> None:
    load = PREFIXES.replace("rate=20", "rate=2000")
    given = ["--cluster-config", CLUSTER, "--dataset", load, "--kv-offloading-size", "4"]
    given += ["--num-gpu-blocks-override", "150", "--max-model-len", "2048"]
    given += ["--request-timeout", "0.05", "--engine-profile"]
    assert run_main([*given, "vllm-0.26"]) == 3
    said = "vLLM 0.26 ends with an AssertionError of its OffloadingConnector where a client gives"
    assert said in capsys.readouterr().err
    assert run_main([*given, "vllm-0.27"]) == 0


def test_each_option_changes_what_is_stored() -> None:
    plain = offloading(run(kv_offloading_size=4))
    answers = offloading(
        run(
            PREFIXES.replace("output=fixed:5", "output=fixed:40"),
            kv_offloading_size=4,
            kv_offloading_prompt_only=False,
        )
    )
    twice = offloading(run(kv_offloading_size=4, kv_offloading_store_threshold=2))
    chunks = offloading(run(kv_offloading_size=4, kv_offloading_blocks_per_chunk=8))
    assert answers["stored_tokens"] > plain["stored_tokens"] > twice["stored_tokens"] > 0
    assert chunks["stored_tokens"] % 128 == 0 and chunks["loaded_tokens"] % 16 == 0
    arc, lru = (
        offloading(run(kv_offloading_size=0.25, kv_offloading_eviction_policy=policy))
        for policy in ("arc", "lru")
    )
    assert arc != lru


def test_steps_wait_for_loads_within_their_budget() -> None:
    """A token has 131,072 bytes, and nothing is loaded in fewer than 64 blocks of 16."""
    plain, less, enough = (
        run(kv_offloading_size=4, kv_offloading_sync_load_budget_bytes=131_072 * tokens)
        for tokens in (0, 1023, 1024)
    )
    assert plain.summary["mean_ttft_ms"] == less.summary["mean_ttft_ms"]
    assert enough.summary["mean_ttft_ms"] != plain.summary["mean_ttft_ms"]
    assert offloading(enough)["loaded_tokens"] > 5 * 1024


def test_the_pool_is_that_of_all_ranks_and_every_rank_moves_its_share(tmp_path: Path) -> None:
    """Two ranks keep half of each token: the pool has as many chunks, and every chunk is stored
    once.
    """
    cluster = json.loads(Path(CLUSTER).read_text(encoding="utf-8"))
    cluster["nodes"][0]["num_instances"] = 1
    (one,) = cluster["nodes"][0]["instances"] = cluster["nodes"][0]["instances"][:1]
    found = []
    for ranks in (1, 2):
        one["num_npus"] = one["tp_size"] = ranks
        path = tmp_path / f"{ranks}.json"
        path.write_text(json.dumps(cluster), encoding="utf-8")
        found.append(offloading(run(cluster=str(path), kv_offloading_size=4))["stored_tokens"])
        less = offloading(run(cluster=str(path), kv_offloading_size=0.125))
        assert less["stored_tokens"] == 0 < less["refused_tokens"]
    assert found[0] == found[1]


def test_copies_take_the_energy_of_host_memory_and_links() -> None:
    """A prompt of 320 tokens of 131,072 bytes at 6 and 4 pJ a bit; nothing takes longer."""
    power = str(ROOT / "cluster_config" / "single_node_power_instance.json")
    alone = "synthetic:n=1,rate=1,input=fixed:320,output=fixed:5,seed=1"
    without, kept = (
        run(alone, power, cost_source="roofline", **more)
        for more in ({}, {"kv_offloading_size": 1})
    )
    assert offloading(kept)["stored_tokens"] == 320
    before, after = (one.summary["energy"]["components_j"] for one in (without, kept))
    bits = 320 * 131072 * 8
    assert after["dram"] - before["dram"] == pytest.approx(bits * 6e-12, rel=1e-9)
    assert after["links"] - before["links"] == pytest.approx(bits * 4e-12, rel=1e-9)
    assert after["accelerators"] == before["accelerators"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["--engine-profile", "vllm-0.19"],
            "--kv-offloading-size is modelled by the rules of vllm-0.24, vllm-0.25, vllm-0.26, "
            "vllm-0.27, vllm-0.28, vllm-0.29, vllm-0.30, vllm-0.31, vllm-0.32, vllm-0.33 alone, "
            "and not of vllm-0.19; choose such an engine_profile, or keep KV in host memory by "
            "prefix_storage",
        ),
        (["--prefix-storage", "CPU"], "kv_offloading_size and --prefix-storage both keep KV"),
        (
            ["--kv-offloading-size", "1000"],
            "is 2000 GiB in all, more than its cpu_mem leaves (512 GiB)",
        ),
        (["--kv-offloading-size", "0.001"], "a chunk of 16 tokens takes 2097152 B; raise it"),
        (["--no-enable-prefix-caching"], "does not go with this enable_prefix_caching"),
        (["--kv-load-failure-rate", "0.1"], "does not go with this kv_load_failure_rate"),
        (["--scheduler", "sarathi"], "is an option of the scheduler vllm_v1, not of sarathi"),
        (["--scheduling-policy", "h2q_br"], "together with scheduling_policy h2q_br does not run"),
        (["--cluster-config", PAIR], "together with a role of disaggregation (pd_type) does not"),
        (["--cluster-config", ATTENDS_ON_HOST], "its KV cache is in the node's memory"),
    ],
)
def test_what_does_not_go_with_it_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--cluster-config", CLUSTER, "--engine-profile", "vllm-0.33", "--dataset", PREFIXES]
    given += ["--kv-offloading-size", "4", *arguments]
    assert run_main(given) in (2, 3)
    assert said in capsys.readouterr().err


def test_its_options_have_an_effect_only_with_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cluster-config", CLUSTER, "--engine-profile", "vllm-0.33", "--dataset", PREFIXES]
    assert run_main([*given, "--kv-offloading-store-threshold", "2"]) == 2
    assert "has an effect only with kv_offloading_size" in capsys.readouterr().err


def test_the_details_say_what_was_loaded_and_stored(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--cluster-config", CLUSTER, "--engine-profile", "vllm-0.33", "--dataset", PREFIXES]
    given += ["--kv-offloading-size", "4"]
    assert run_main([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["kv_offloading"]
    assert run_main([*given, "-v"]) == 0
    [line] = [one for one in capsys.readouterr().out.splitlines() if "KV offloading" in one]
    assert f"{found['loaded_tokens']} tokens loaded, {found['stored_tokens']} stored" in line


def test_a_report_has_what_was_loaded_beside_a_run_without_it(tmp_path: Path) -> None:
    without, kept = run(), run(kv_offloading_size=4)
    llmsim.report({"off": without, "on": kept}, tmp_path / "both.html")
    llmsim.report({"off": without}, tmp_path / "one.html")
    both, one = ((tmp_path / name).read_text("utf-8") for name in ("both.html", "one.html"))
    row = both[both.index("Tokens of KV loaded from host") :].partition("</tr>")[0]
    assert f"{offloading(kept)['loaded_tokens']:,}" in row
    assert "loaded from host" not in one and "Switches of layouts" not in both
