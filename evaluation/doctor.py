"""Withholds one option from ten simulated logs and prints which option the log doctor names."""

import sys
from pathlib import Path

from llmsim.api.cluster import Cluster
from llmsim.api.preparation.prepare import trial
from llmsim.api.trials import Trial
from llmsim.cli.arguments import OneSentenceParser
from llmsim.cli.run.arguments import checked_options
from llmsim.validation.logs.recording import recording_of

CLUSTER = Path(__file__).resolve().parents[1] / "cluster_config" / "h100_llama31_8b.json"
LONG = "synthetic:n=150,rate=20,input=lognormal:600,output=lognormal:150,seed=5"
PROMPTS = "synthetic:n=150,rate=12,input=lognormal:3000,output=lognormal:60,seed=5"
LIGHT = "synthetic:n=150,rate=4,input=lognormal:200,output=lognormal:100,seed=5"
SHARED = (
    "synthetic:n=150,rate=12,input=lognormal:300,output=lognormal:60,"
    "prefixes=4:tokens=2000:share=0.9,seed=5"
)
WIDE = "synthetic:n=200,rate=60,input=lognormal:300,output=lognormal:200,seed=3"
FEW = "synthetic:n=80,rate=10,input=lognormal:200,output=lognormal:150,seed=5"
FEWER = ("--max-num-seqs", "256")
WHOLE = ("--max-num-batched-tokens", "8192", "--max-model-len", "8192")
CASES: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("max_num_seqs", LONG, ("--max-num-seqs", "24"), ()),
    ("max_num_seqs", WIDE, ("--max-num-seqs", "64"), ()),
    ("max_num_seqs", FEW, ("--max-num-seqs", "8"), ()),
    ("max_num_batched_tokens", PROMPTS, ("--max-num-batched-tokens", "512"), FEWER),
    ("max_num_batched_tokens", PROMPTS, ("--max-num-batched-tokens", "2048"), ()),
    ("num_gpu_blocks_override", LONG, ("--num-gpu-blocks-override", "900"), ()),
    ("enable_prefix_caching", SHARED, ("--no-enable-prefix-caching",), ()),
    ("enable_chunked_prefill", PROMPTS, ("--no-enable-chunked-prefill",), WHOLE),
    ("async_scheduling", LIGHT, ("--no-async-scheduling",), ()),
    ("enforce_eager", LIGHT, ("--enforce-eager",), ()),
)  # fmt: skip
"""The option that is withheld, the trace, what the server was told, and what both are told."""


def named(trace: str, hidden: tuple[str, ...], known: tuple[str, ...]) -> str:
    """What the doctor says of the log of a server with `hidden` options."""
    common = ("--cluster-config", str(CLUSTER), "--dataset", trace, "--cost-source", "roofline")
    log = recording_of(trial(checked_options([*common, *known, *hidden])))
    described = Trial(Cluster.load(CLUSTER), trace, checked_options([*common, *known]))
    found = described.diagnosis(log, skip_seconds=0.0)
    return "nothing" if found is None else f"{found.suspect.option} {found.suspect.value}"


def main() -> int:
    OneSentenceParser(description=__doc__).parse_args()
    right = 0
    print("| withheld | named |\n| --- | --- |")
    for option, trace, hidden, known in CASES:
        said = named(trace, hidden, known)
        right += said.split()[0] == option
        print(f"| {' '.join(hidden)} | {said} |")
    print(f"\n{right} of {len(CASES)} named")
    return 0


if __name__ == "__main__":
    sys.exit(main())
