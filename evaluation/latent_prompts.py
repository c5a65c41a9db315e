"""First tokens of a long prompt and of a short turn behind it, by engine: DeepSeek-V3 on H200.

usage: python evaluation/latent_prompts.py

Prompts run on the cached latents or expand them, as the engine's release decides; the other columns
have every prompt expand them (`--disable-term latent_prompts`).
"""

import json
import tempfile
from pathlib import Path

import llmsim
from llmsim.cli.arguments import OneSentenceParser

ENGINES = ("vllm-0.11", "vllm-0.24", "sglang-0.5.7", "sglang-0.5.22", "sglang-0.5.23")
CACHED_TOKENS, TURN_TOKENS = 60_000, 256
PAUSE_NS = 20 * 10**9
PS_PER_MS = 10**9


def session() -> str:
    """A trace of one session, whose second call repeats the prompt and answer of the first."""
    prompt = list(range(CACHED_TOKENS))
    turn = [CACHED_TOKENS + token for token in range(1, TURN_TOKENS + 1)]
    calls = [
        {"input_toks": len(ids), "output_toks": 1, "input_tok_ids": ids, "output_tok_ids": [0]}
        for ids in (prompt, [*prompt, 0, *turn])
    ]
    calls[0]["tool_duration_ns"] = PAUSE_NS
    return json.dumps({"session_id": "one", "arrival_time_ns": 0, "sub_requests": calls}) + "\n"


def ttft_ms(trace: Path, engine: str, disabled: tuple[str, ...]) -> list[float]:
    """Of the prompt and of the turn."""
    cluster = llmsim.Cluster.build("deepseek-ai/DeepSeek-V3", "H200", tp=8)
    result = llmsim.run(cluster, str(trace), engine_profile=engine, disable_term=list(disabled))
    return [float(ps) / PS_PER_MS for ps in result.requests["ttft_ps"]]


def main() -> None:
    """Prints a row for each engine."""
    OneSentenceParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "session.jsonl"
        trace.write_text(session(), encoding="utf-8")
        for engine in ENGINES:
            with_rule = ttft_ms(trace, engine, ())
            expanded = ttft_ms(trace, engine, ("latent_prompts",))
            cells = [f"{ms:,.1f}" for pair in zip(with_rule, expanded, strict=True) for ms in pair]
            print(f"| {engine} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
