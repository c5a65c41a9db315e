"""Published runs that are no rows of the table: they gave constants, or test them."""

from dataclasses import replace

from measured.commands import COMMANDS, REQUESTS_PER_SEAT, SHORTEST_SHARE
from measured.points import Point

GPUSTACK = "gpustack performance lab, docs/performance-lab/{}.md"
LAMBDA = "LambdaLabsML/vllm-benchmark, results/prompt_10/1xH100-80GB-SXM/{}.json"
EXPERTS_CUT = "TP, experts cut (ep_size 1)"
SHORT_CONTEXT = ("--max-model-len", "32768")
O20 = "openai/gpt-oss-20b"
SINKS = "SINKS_SHARE of llmsim/costs/sources/silicon/attention/grid.py"
LLAMA_LENGTHS = (
    (13, 25, 27, 10, 329, 29, 399, 328, 4, 205),
    (120, 429, 233, 194, 101, 741, 9, 3, 6, 31),
)
"""Input and output tokens of each request, as the result file lists them."""

PLAIN = Point(
    name="", source="", engine="vLLM", version="0.11.0", model="", hardware="", devices=1,
    layout="TP", requests=0, input_tokens=0, output_tokens=0, concurrency=0, options=(), grade="A",
    real={}, endpoint="chat",
)  # fmt: skip


def beside_points() -> list[Point]:
    """Every one of them; lengths, loads and means as published."""
    return [
        *(*_sources(), *_a100(), *_others(), *_graphs(), *_kimi(), *_changes()),
        *(*_two_ranks(), *_pieces(), *_doubtful(), *_once()),
    ]


def _sources() -> list[Point]:
    """Runs that gave constants."""
    return [
        _run(
            "glm46_h200_c4", "glm-4.x/h200", "zai-org/GLM-4.5", "H200", (100, 229.92, 217.94),
            (211.38, 70.16, 18.11), devices=8, layout=EXPERTS_CUT, concurrency=4, sampled=True,
            gives="host.ranks_ns of the profile vllm-0.11",
        ),
        _run(
            "q8_h100_sgl_c4", "qwen3-8b/h100-latency", "Qwen/Qwen3-8B", "H100",
            (100, 232.6, 220.61), (525.59, 27.70, 7.19), concurrency=4, sampled=True,
            engine="SGLang", version="0.5.3", gives="frontend of the profile sglang-0.5",
        ),
        replace(
            PLAIN, name="lambda_llama8b_h100_10", version="0.6.0", requests=10, grade="B",
            source=LAMBDA.format("Meta-Llama-3-8B-Instruct_tp1_len2048"), hardware="H100",
            model="meta-llama/Meta-Llama-3-8B", options=("--max-model-len", "2048"),
            lengths=tuple(zip(*LLAMA_LENGTHS, strict=True)), real={"ttft": 0.062426},
            endpoint="completions", gives="frontend of the profile vllm-0.6",
        ),
    ]  # fmt: skip


def _a100() -> list[Point]:
    """One A100 SXM: they test the mixed step, the clock, and experts with weights of 4 bits."""
    q14, q32, o120 = "Qwen/Qwen3-14B", "Qwen/Qwen3-32B", "openai/gpt-oss-120b"
    rows = (
        ("q14_a100_2k", "qwen3-14b/a100", q14, (500, 1996, 100), (284.64, 86908.3, 301.73)),
        ("q14_a100_32k", "qwen3-14b/a100", q14, (100, 32000, 99), (13.65, 359648.0, 445.58)),
        ("q32_a100_4k", "qwen3-32b/a100", q32, (500, 3996, 200), (87.48, 566579.7, 96.19)),
        ("o120_a100_4k", "gpt-oss-120b/a100", o120, (500, 3998, 135), (249.67, 133561.1, 112.18)),
        ("o120_a100_2k", "gpt-oss-120b/a100", o120, (500, 1998, 98), (395.21, 61328.0, 131.94)),
    )
    return [
        _run(*row[:3], "A100", *row[3:], options=SHORT_CONTEXT if row[2] == o120 else ())
        for row in rows
    ]


def _others() -> list[Point]:
    """Hopper."""
    found = [
        _run(
            "o120_h100_2k", "gpt-oss-120b/h100", "openai/gpt-oss-120b", "H100", (500, 1998, 98),
            (675.11, 36234.8, 41.35), version="0.10.2", options=SHORT_CONTEXT,
        )
    ]  # fmt: skip
    eight = (
        ("r1_h200_32k", "deepseek-r1/h200", "deepseek-ai/DeepSeek-V3", (100, 32000, 100),
         (48.33, 101352.0, 365.79)),
        ("glm46_h200_32k", "glm-4.x/h200", "zai-org/GLM-4.5", (100, 32000, 94),
         (44.16, 105089.8, 479.17)),
    )  # fmt: skip
    return found + [
        _run(*row[:3], "H200", *row[3:], devices=8, layout=EXPERTS_CUT) for row in eight
    ]


def _graphs() -> list[Point]:
    """Ten requests at once with and without CUDA graphs around attention, by vLLM's pull request
    25444 of September 2025: requests per second of Qwen3-Coder-30B-A3B-Instruct-FP8, whose shapes
    are those of Qwen3-30B-A3B.
    """
    rows = (
        ("piecewise", "PIECEWISE", (), 4.07),
        ("piecewise_async", "PIECEWISE", ("--async-scheduling",), 4.29),
        ("full", "FULL_AND_PIECEWISE", (), 5.98),
        ("full_async", "FULL_AND_PIECEWISE", ("--async-scheduling",), 6.20),
    )
    requests, inputs, outputs = 10, 1024, 128
    return [
        replace(
            PLAIN, name=f"q30_h100_{name}", source="vllm-project/vllm pull request 25444",
            model="Qwen/Qwen3-30B-A3B-FP8", hardware="H100", requests=requests,
            input_tokens=inputs, output_tokens=outputs, endpoint="completions", grade="B",
            options=("--cudagraph-mode", mode, *more), real={"throughput": per_s * outputs},
        )
        for name, mode, more, per_s in rows
    ]  # fmt: skip


def _kimi() -> list[Point]:
    """Data-parallel ranks on Blackwell at other loads than the points: TPOT alone is published."""
    rows = (("kimi_b200", "B200", 8, 1024, 143.230), ("kimi_b300", "B300", 4, 256, 69.027))
    return [
        replace(
            PLAIN, name=f"{name}_c{concurrency}", version="", era="2026-08", hardware=hardware,
            source="ai-dynamo/aisimulate, benchmarks/evidence/accuracy/replay-evidence.md",
            model="moonshotai/Kimi-K2.5 (NVFP4)", devices=ranks, layout=f"DP{ranks} EP{ranks}",
            requests=REQUESTS_PER_SEAT * concurrency, input_tokens=8192, output_tokens=1024,
            concurrency=concurrency, spread=SHORTEST_SHARE, endpoint="completions", grade="B",
            options=COMMANDS[name].server_options(concurrency),
            real={"tpot": tpot_ms / 1e3},
        )
        for name, hardware, ranks, concurrency, tpot_ms in rows
    ]  # fmt: skip


def _two_ranks() -> list[Point]:
    """gpt-oss-120b on H100 with other layouts and prompts than the points: they test Marlin's times
    of MXFP4 experts, which were chosen by the kernels' names, and launches of piecewise graphs.
    """
    page, o120 = "gpt-oss-120b/h100", "openai/gpt-oss-120b"
    rows = (
        ("4k", (500, 3998, 136), (1135.29, 29487.34, 164.73)),
        ("2k", (500, 1998, 98), (1595.22, 15291.77, 139.32)),
        ("32k", (100, 32000, 100), (100.70, 48826.05, 220.32)),
        ("c4", (100, 229.46, 216.91), (645.55, 37.51, 5.75)),
    )
    found = [
        _run(
            f"o120_h100_tp2_{name}", page, o120, "H100", load, real, devices=2, version="0.10.2",
            options=("--async-scheduling",), concurrency=4 if name == "c4" else 0,
            sampled=name == "c4",
        )
        for name, load, real in rows
    ]  # fmt: skip
    one_rank = _run(
        "o120_h100_32k", page, o120, "H100", (100, 32000, 99), (49.65, 99444.04, 23.99),
        version="0.10.2", options=SHORT_CONTEXT,
    )  # fmt: skip
    return [*found, one_rank]


def _pieces() -> list[Point]:
    """Decodes of a model so small that piecewise graphs wait for the host: TPOT by vLLM's issue
    47089 of June 2026. It states neither the lengths, which hardly matter here, nor the endpoint.
    The host bounds them alone, so that they are of grade C: they say nothing of other systems.
    """
    rows = ((1, 3.66, 1.53), (16, 3.80, 1.61), (128, 4.79, 2.49))
    modes = ("PIECEWISE", "FULL_AND_PIECEWISE")
    return [
        replace(
            PLAIN, name=f"q06_b200_{mode.split('_')[0].lower()}_c{concurrency}", version="0.23.0",
            source="vllm-project/vllm issue 47089", model="Qwen/Qwen3-0.6B", hardware="B200",
            requests=20 * concurrency, input_tokens=128, output_tokens=256, endpoint="",
            concurrency=concurrency, options=("--cudagraph-mode", mode), grade="C",
            real={"tpot": tpot_ms / 1e3},
        )
        for concurrency, *both in rows
        for mode, tpot_ms in zip(modes, both, strict=True)
    ]  # fmt: skip


CHANGE = "{} pull request {}"
NEXT_80B = "Qwen/Qwen3-Next-80B-A3B-Instruct"


def _changes() -> list[Point]:
    """Runs that pull requests of vLLM and SGLang published: random tokens, fixed lengths.

    Of runs before and after tuned tiles it is the one that has the state of the named release.
    """
    vllm, sglang = "vllm-project/vllm", "sgl-project/sglang"
    plain = replace(PLAIN, endpoint="completions", grade="B", layout=EXPERTS_CUT)
    next_80b = [
        replace(
            plain, name=f"qnext_h200_sgl_tp{ranks}", source=CHANGE.format(sglang, 10404),
            engine="SGLang", version="0.5.3", model=NEXT_80B, hardware="H200", devices=ranks,
            requests=100, input_tokens=1000, output_tokens=2000, concurrency=8,
            real={"throughput": throughput},
        )
        for ranks, throughput in ((2, 937.94), (4, 1137.94), (8, 1239.43))
    ]  # fmt: skip
    return [
        replace(
            plain, name="q30_h100_c10", source=CHANGE.format(vllm, 23151), version="0.10.1",
            model="Qwen/Qwen3-30B-A3B", hardware="H100", requests=100, input_tokens=2042,
            output_tokens=1016, concurrency=10,
            real={"throughput": 739.79, "ttft": 0.26722, "tpot": 0.01318},
        ),
        *next_80b,
        replace(
            plain, name="glm45air_b200_c180", source=CHANGE.format(vllm, 23695), version="0.10.1",
            model="zai-org/GLM-4.5-Air-FP8", hardware="B200", devices=2, requests=360,
            input_tokens=3500, output_tokens=1500, concurrency=180, rate_per_s=10.0,
            options=("--dtype", "fp8"),
            real={"throughput": 2971.24, "ttft": 3.7461, "tpot": 0.05454},
        ),
        replace(
            plain, name="q235fp8_b200_30k", source=CHANGE.format(vllm, 43232), version="",
            era="2026-06", model="Qwen/Qwen3-235B-A22B-Instruct-2507-FP8", hardware="B200",
            devices=4, requests=128, input_tokens=30_000, output_tokens=1000, concurrency=64,
            options=(
                *("--kv-cache-dtype", "fp8", "--max-model-len", "32768"),
                *("--gpu-memory-utilization", "0.85"),
            ),
            real={"throughput": 847.07, "ttft": 15.72591},
        ),
        replace(
            plain, name="dsv31_h200_c16", source=CHANGE.format(vllm, 28992), version="0.11.2",
            model="deepseek-ai/DeepSeek-V3.1", hardware="H200", devices=8, requests=160,
            input_tokens=2, output_tokens=100, concurrency=16, real={"throughput": 684.35},
        ),
        replace(
            plain, name="q32vl_l40s_share", source=CHANGE.format(vllm, 29217), version="0.11.2",
            model="Qwen/Qwen3-VL-32B-Instruct-FP8", hardware="L40S", layout="TP", requests=1000,
            input_tokens=217.393, output_tokens=189.963, sampled=True,
            options=("--max-model-len", "24000", "--no-enable-prefix-caching"),
            real={"throughput": 621.91, "ttft": 124.9867},
        ),
    ]  # fmt: skip


def _doubtful() -> list[Point]:
    """Dense models on an H100 that is no H100 SXM by the pages' own figures.

    Qwen3-32B has room for one sequence of 32,000 tokens: its prompt takes 8.2 s, and each further
    token 43.3 ms, in which 64 GB of weights and 8 GB of KV are read. Qwen3-14B takes 581 ms for
    8,192 tokens of short prompts, and 43.5 ms for a token of seven long sequences, 65 GB. The lab's
    Qwen3-8B is read from another H100 at 67 % of the data sheet's bandwidth.
    """
    doubts = {
        "14": "its H100 computes at 42 % and reads at 45 % of the data sheet's rates",
        "32": "its H100 computes at 38 % and reads at 50 % of the data sheet's rates",
    }
    rows = (
        ("14", "4k", (500, 3996, 200), (438.56, 112716.9, 132.45)),
        ("14", "2k", (500, 1996, 100), (505.51, 50716.1, 206.51)),
        ("14", "32k", (100, 32000, 99), (25.48, 191024.4, 277.44)),
        ("32", "4k", (500, 3996, 200), (102.21, 482284.2, 66.61)),
        ("32", "2k", (500, 1996, 100), (152.42, 163909.4, 86.62)),
        ("32", "32k", (100, 32000, 77), (6.64, 585981.2, 43.42)),
    )
    return [
        _run(
            f"q{size}_h100_{name}", f"qwen3-{size}b/h100", f"Qwen/Qwen3-{size}B", "H100", load,
            real, grade="C", doubt=doubts[size],
        )
        for size, name, load, real in rows
    ]  # fmt: skip


def _once() -> list[Point]:
    """Runs of the same lab that were simulated once; they showed that attention with sinks and
    SGLang's rows of several expert-parallel ranks were wrong. The longest prompts of gpt-oss-20b on
    an A100 gave the first one's rate.
    """
    q235, air, o20 = "Qwen/Qwen3-235B-A22B-Instruct-2507", "zai-org/GLM-4.5-Air", O20
    a100, h100 = ("A100", "a100"), ("H100", "h100")
    rows = (
        ("o20", "gpt-oss-20b", o20, *a100, 1, "4k", (500, 3998, 107), (415.64, 62947.1, 123.35)),
        ("o20", "gpt-oss-20b", o20, *a100, 1, "2k", (500, 1998, 94), (813.35, 31669.6, 100.32)),
        ("o20", "gpt-oss-20b", o20, *a100, 1, "32k", (100, 32000, 95), (21.62, 219739.8, 268.03)),
        ("o20", "gpt-oss-20b", o20, *h100, 1, "4k", (500, 3998, 105), (847.43, 31245.1, 184.26)),
        ("o20", "gpt-oss-20b", o20, *h100, 1, "2k", (500, 1998, 94), (1443.44, 16515.9, 149.76)),
        ("o20", "gpt-oss-20b", o20, *h100, 1, "32k", (100, 32000, 94), (86.62, 53687.7, 239.44)),
        ("glm45air", "glm-4.5-air", air, *a100, 4, "4k", (500, 4000, 199),
         (330.75, 142573.3, 267.38)),
        ("glm45air", "glm-4.5-air", air, *a100, 4, "2k", (500, 1999, 100),
         (411.83, 60300.0, 204.31)),
        ("glm45air", "glm-4.5-air", air, *a100, 4, "32k", (100, 32000, 100),
         (20.02, 248013.3, 305.47)),
        ("q235", "qwen3-235b-a22b", q235, *a100, 8, "4k", (500, 3996, 183),
         (357.26, 122190.6, 205.64)),
        ("q235", "qwen3-235b-a22b", q235, *a100, 8, "2k", (500, 1996, 99),
         (442.54, 54722.5, 190.79)),
        ("q235", "qwen3-235b-a22b", q235, *a100, 8, "32k", (100, 32000, 82),
         (17.0, 240229.1, 298.86)),
        ("q235", "qwen3-235b-a22b", q235, *h100, 8, "2k", (500, 1996, 99),
         (1127.26, 21313.8, 101.08)),
        ("q235", "qwen3-235b-a22b", q235, *h100, 8, "32k", (100, 32000, 82),
         (57.85, 70409.6, 132.1)),
    )  # fmt: skip
    found = [
        _run(
            f"{name}_{card}_{load_name}", f"{page}/{card}", model, hardware, load, real,
            devices=ranks, layout=EXPERTS_CUT,
            gives=SINKS if (name, card, load_name) == ("o20", "a100", "32k") else "",
        )
        for name, page, model, hardware, card, ranks, load_name, load, real in rows
    ]  # fmt: skip
    return [*found, *_once_otherwise(q235, air)]


def _once_otherwise(q235: str, air: str) -> list[Point]:
    """Runs of the same pages with other options, engines and clients. Of Qwen3.5 the page's TPOT
    and tokens per second are not those of vLLM's client, and are left out.
    """
    narrow = (
        ("4k", (500, 3996, 182), (717.6, 60513.1, 89.52)),
        ("2k", (500, 1996, 99), (894.84, 26861.0, 125.93)),
        ("32k", (100, 32000, 83), (39.66, 103754.5, 194.6)),
    )
    spread = (
        ("4k", (500, 4000, 199), (431.09, 109316.4, 124.68)),
        ("2k", (500, 1999, 100), (521.66, 45224.8, 165.34)),
        ("32k", (100, 32000, 99), (24.58, 200446.6, 276.41)),
    )
    found = [
        _run(
            f"q235fp8_h100_{name}", "qwen3-235b-a22b/h100", f"{q235}-FP8", "H100", load, real,
            devices=4, layout=EXPERTS_CUT, options=("--max-num-batched-tokens", "16384"),
        )
        for name, load, real in narrow
    ] + [
        _run(
            f"glm45air_a100_sgl_{name}", "glm-4.5-air/a100", air, "A100", load, real, devices=4,
            layout="TP4 EP4", engine="SGLang", version="0.5.4",
        )
        for name, load, real in spread
    ]  # fmt: skip
    qwen35 = replace(
        PLAIN, source=GPUSTACK.format("qwen3.5-35b-a3b/h200"), version="0.17.1", grade="B",
        model="Qwen/Qwen3.5-35B-A3B", hardware="H200", endpoint="", options=SHORT_CONTEXT,
    )  # fmt: skip
    return [
        *found,
        replace(
            qwen35, name="q35_h200_1k", requests=1000, input_tokens=1034, output_tokens=128,
            concurrency=512, real={"throughput": 128_000 / 40.37, "ttft": 5.80982},
        ),
        replace(
            qwen35, name="q35_h200_32k", requests=100, input_tokens=32010, output_tokens=100,
            real={"throughput": 10_000 / 73.72, "ttft": 31.97913},
        ),
    ]  # fmt: skip


def _run(
    name: str,
    page: str,
    model: str,
    hardware: str,
    load: tuple[int, float, float],
    real: tuple[float, float, float],
    **more: object,
) -> Point:
    """A run of gpustack's pages: (requests, input, output tokens), (tokens/s, TTFT ms, TPOT ms)."""
    requests, inputs, outputs = load
    throughput, ttft_ms, tpot_ms = real
    return replace(
        PLAIN, name=name, source=GPUSTACK.format(page), model=model, hardware=hardware,
        requests=requests, input_tokens=inputs, output_tokens=outputs,
        real={"throughput": throughput, "ttft": ttft_ms / 1e3, "tpot": tpot_ms / 1e3},
        **more,  # type: ignore[arg-type]
    )  # fmt: skip
