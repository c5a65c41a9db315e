"""The published H100 means of the ISPASS 2026 artifact as points."""

from measured.points import Point

LLAMA, MIXTRAL = "meta-llama/Llama-3.1-70B", "mistralai/Mixtral-8x7B-v0.1"
SOURCE = "ISPASS 2026 artifact of LLMServingSim 2.0"
OPTIONS = (
    "--no-enable-prefix-caching",
    "--request-routing-policy",
    "RR",
    "--max-num-batched-tokens",
    "8192",
)
VERSION = "0.11.1"
"""The version that the artifact's server logs of its A6000 runs name (raw_data of figures 6, 7)."""
CUT = "TP, experts cut"
"""How `vllm serve -tp 4` lays a model out: the artifact does not say that experts are spread."""


def artifact_points() -> list[Point]:
    """300 ShareGPT requests at 10/s on instances of four H100."""
    trace = "artifact/dataset/sharegpt_req300_rate10_{}.jsonl"
    rows = (
        ("h100_sd", LLAMA, (None,), (1833.89, 61.5, 26.72), "llama"),
        ("h100_md", LLAMA, (None, None), (1858.47, 50.33, 22.665), "llama"),
        ("h100_pdd", LLAMA, ("prefill", "decode"), (1800.95, 128.91, 28.12), "llama"),
        ("h100_sm", MIXTRAL, (None,), (2134.34, 37.94, 20.53), "phi"),
    )
    return [
        Point(
            name=name, source=SOURCE, engine="vLLM", version=VERSION, model=model, hardware="H100",
            devices=4, layout=CUT, requests=300, input_tokens=0, output_tokens=0, concurrency=0,
            options=OPTIONS, grade="B", pd_types=roles, trace=trace.format(tokenizer),
            real={"throughput": real[0], "ttft": real[1] / 1e3, "tpot": real[2] / 1e3},
        )
        for name, model, roles, real, tokenizer in rows
    ]  # fmt: skip
