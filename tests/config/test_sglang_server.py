"""Defaults of SGLang's server against those that SGLang itself resolves
(`record_sglang_server.py`): every case of the recorded release, and of an installed one.
"""

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from llmsim.config.engine.args import EngineArgs, Given, resolve_engine
from llmsim.config.engine.profile import load_profile
from llmsim.config.engine.sglang.defaults import Server, with_server_defaults
from llmsim.config.engine.speculative import SpeculativeConfig
from llmsim.config.errors import InfeasibleError

HERE = Path(__file__).resolve().parent
RELEASE = "sglang-0.5.23"
GIB = 1 << 30
ARCHITECTURES = {"dense": ("LlamaForCausalLM",), "latent": ("DeepseekV3ForCausalLM",)}
NGRAM_TOKENS = 11
"""Tokens that SGLang drafts by n-grams where nobody says how many."""
WORDS = {
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
}
Case = dict[str, Any]


def recorded() -> list[Case]:
    """The cases of the release."""
    text = (HERE / "recordings" / f"{RELEASE}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def ours(case: Case) -> EngineArgs:
    """The options of a rank, as a cluster file would say them."""
    options, ranks = case["options"], ranks_of(case)
    given = {word: options[name] // ranks for name, word in WORDS.items() if name in options}
    if options.get("disable_cuda_graph"):
        given["enforce_eager"] = True
    drafts = drafts_of(options)
    if drafts is not None:
        given["speculative_config"] = drafts
    memory_bytes = case["memory_gib"] * GIB
    layers = [Given("command line", None, given, lambda name: name)]
    args = resolve_engine(layers, load_profile(RELEASE), "gpu", memory_bytes)
    server = Server(
        "gpu",
        memory_bytes,
        devices=options.get("tp_size", 1),
        stages=options.get("pp_size", 1),
        attention_ranks=ranks,
        pd_type=options.get("disaggregation_mode"),
        architectures=ARCHITECTURES[case["model"]],
        latent=case["model"] == "latent",
    )
    return with_server_defaults(args, server)


def drafts_of(options: Mapping[str, Any]) -> SpeculativeConfig | None:
    """The drafts of a case."""
    algorithm = options.get("speculative_algorithm")
    if algorithm is None:
        return None
    method = "ngram" if algorithm == "NGRAM" else "eagle"
    tokens = options.get("speculative_num_steps", NGRAM_TOKENS)
    return SpeculativeConfig(method=method, num_speculative_tokens=tokens, acceptance_rate=0.7)


def ranks_of(case: Case) -> int:
    """Ranks of data-parallel attention."""
    return int(case["options"].get("dp_size", 1))


def extent(sizes: tuple[int, ...], each: int = 1) -> list[int]:
    """As the recording has it."""
    return [sizes[-1] // each, len(sizes)] if sizes else []


def check(case: Case) -> None:
    """Every default is SGLang's; where it leaves no memory, we say so when we look."""
    found, options = case["found"], case["options"]
    if found["mem_fraction_static"] <= 0:
        with pytest.raises(InfeasibleError, match="SGLang sets aside"):
            ours(case)
        return
    args = ours(case)
    assert args.gpu_memory_utilization == found["mem_fraction_static"]
    assert args.max_num_batched_tokens == found["chunked_prefill_size"]
    assert extent(args.prefill_graph_sizes) == found["prompts"]
    most = found["max_running_requests"]
    if most is not None:
        assert args.max_num_seqs == most // ranks_of(case)
    if options.get("disaggregation_mode") == "prefill":
        return  # it decodes nothing
    query = 1 if args.speculation is None else args.speculation.verified
    decodes = extent(args.cuda_graph_sizes, query)
    if found["decodes"] and found["decodes"][0] > args.max_num_seqs:
        assert decodes[0] == args.max_num_seqs  # what SGLang captures is cut to its pool later
    else:
        assert decodes == found["decodes"]


@pytest.mark.parametrize("model", sorted(ARCHITECTURES))
def test_defaults_of_the_recorded_release(model: str) -> None:
    cases = [case for case in recorded() if case["model"] == model]
    assert len(cases) > 90
    for case in cases:
        check(case)


@pytest.mark.skipif(
    "LLMSIM_SGLANG_PYTHON" not in os.environ,
    reason="LLMSIM_SGLANG_PYTHON names no interpreter with SGLang",
)
def test_the_installed_release_resolves_what_is_recorded() -> None:
    words = [os.environ["LLMSIM_SGLANG_PYTHON"], str(HERE / "record_sglang_server.py")]
    run = subprocess.run(words, capture_output=True, text=True, check=True, timeout=300)
    assert [json.loads(line) for line in run.stdout.splitlines()] == recorded()
