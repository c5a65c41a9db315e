"""Compares steps priced from the silicon database with the estimator inside aiconfigurator-core, on
the same tables.

usage: python evaluation/estimator.py [--model NAME] [--card NAME] [--markdown FILE]

Decodes of equal lengths and single prompts, so that neither side's terms for unequal batches take
part. Two columns: the steps as they are priced in a run, and the same with the differences that are
known and named taken away:

- kernels that only move data: the estimator charges 3 us plus the bytes at 0.8 of the memory's
  rate, for two norms and an activation per layer; ours work in the last-level cache
  (llmsim/costs/sources/silicon/memory_bound.py). The column takes its formula.
- kernels that the estimator does not count: writing the KV cache, choosing experts, rotation, norms
  of queries and keys, the gather of the logits, the sampler, the last norm. The column leaves them
  out.
- to its measured prompt attention the estimator adds 13.2 us per layer, three times as much where
  queries and keys have norms, on every card and at every length (its prediction less its own
  table). The column adds them.
- matrices of shapes that were not run (the MLPs of both Llamas) are interpolated by either side in
  its own way. The column takes the estimator's.
"""

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsim.cli.arguments import OneSentenceParser
from llmsim.costs import CompiledCosts, CostRequest, compile_costs
from llmsim.costs.experts.routing import parse_expert_routing
from llmsim.costs.explain import decode_us, prefill_us
from llmsim.costs.sources.silicon.database import find_database
from llmsim.model import Layout, load_hardware, load_model, operators, resolve_dtypes

MODELS = {
    "meta-llama/Llama-3.1-8B": ("meta-llama/Meta-Llama-3.1-8B", 1),
    "meta-llama/Llama-3.1-70B": ("meta-llama/Meta-Llama-3.1-70B", 4),
    "Qwen/Qwen3-30B-A3B": ("Qwen/Qwen3-30B-A3B", 1),
}
"""Ours -> (the estimator's name, tensor-parallel devices)."""
CARDS = ("H100", "H200", "A100", "B200")
DECODES = ((1, 1024), (32, 1024), (128, 2048))
"""(sequences, cached tokens of each)."""
PROMPTS = (512, 2048, 8192)
UNCOUNTED = (
    "kv_write",
    "expert_choice",
    "rotary_emb",
    "qk_norm",
    "logits_gather",
    "sampler",
    "final_layernorm",
)
FORMULA = ("layernorm", "act_fn", "embedding")
LAUNCH_MS, EFFICIENCY = 3e-3, 0.8
PROMPT_ADDITION_MS = 13.2e-3
THEIR_NAMES = {
    "qkv_proj": "qkv_gemm",
    "o_proj": "proj_gemm",
    "gate_up_proj": "gate_ffn1_gemm",
    "down_proj": "ffn2_gemm",
    "lm_head": "logits_gemm",
}
LIMIT_PERCENT = 5.0


@dataclass(frozen=True)
class Step:
    """One comparison, ms."""

    model: str
    card: str
    what: str
    estimator_ms: float
    ours_ms: float
    alike_ms: float
    """Ours without the named differences."""
    uncounted_ms: float
    """Of ours, the kernels that the estimator does not count."""

    @property
    def percent(self) -> float:
        """Ours against the estimator's."""
        return 100 * (self.ours_ms / self.estimator_ms - 1)

    @property
    def counted_percent(self) -> float:
        """Ours against the estimator's, of the kernels that both count."""
        return 100 * ((self.ours_ms - self.uncounted_ms) / self.estimator_ms - 1)

    @property
    def alike_percent(self) -> float:
        """The same without the named differences."""
        return 100 * (self.alike_ms / self.estimator_ms - 1)


def compare(model: str, card: str) -> Iterator[Step]:
    """The steps of one model on one card."""
    from aiconfigurator_core.sdk import EngineHandle

    theirs, tp = MODELS[model]
    request = cost_request(model, card, tp)
    costs = compile_costs(request)
    assert request.hardware is not None and request.hardware.silicon_system is not None
    experts = {"moe_tp_size": tp, "moe_ep_size": 1} if request.model.num_experts else {}
    with contextlib.redirect_stderr(io.StringIO()):
        handle = EngineHandle.compile(
            theirs, request.hardware.silicon_system, "vllm", tp_size=tp, **experts
        )
    for sequences, context in DECODES:
        _, rows = handle.run_static_per_op(batch_size=sequences, isl=context, osl=2)
        attention_ms = decode_us(costs.attention, sequences, context) / 1e3
        yield _step(
            request,
            costs,
            f"decode {sequences} x {context}",
            rows,
            sequences,
            sequences,
            attention_ms,
        )
    for tokens in PROMPTS:
        rows, _ = handle.run_static_per_op(batch_size=1, isl=tokens, osl=2)
        attention_ms = prefill_us(costs.attention, tokens, 0) / 1e3
        yield _step(request, costs, f"prompt of {tokens}", rows, tokens, 1, attention_ms)


def _step(
    request: CostRequest,
    costs: CompiledCosts,
    what: str,
    rows: Sequence[tuple[str, float, float, str]],
    tokens: int,
    sequences: int,
    attention_ms: float,
) -> Step:
    database = find_database(request)
    assert database is not None
    rate = EFFICIENCY * database.constant("mem_bw", 0.0)
    shapes = {op.name: op for op in request.operators}
    theirs = {name.partition("_")[2]: ms for name, ms, *_ in rows}
    ours = alike = attention_ms * costs.attention.repeat
    uncounted = 0.0
    if what.startswith("prompt"):
        alike += PROMPT_ADDITION_MS * (3 if request.model.qk_norm else 1) * costs.attention.repeat
    for op in costs.ops:
        count = tokens if op.feature == "tokens" else sequences
        own_ms = op.ps[count] * op.repeat / 1e9
        ours += own_ms
        uncounted += own_ms * (op.name in UNCOUNTED)
        if op.name in FORMULA:
            shape = shapes[op.name]
            moved = count * (shape.read_bytes_per_token + shape.write_bytes_per_token)
            own_ms = op.repeat * (moved / rate * 1e3 + LAUNCH_MS)
        if "interpolated" in op.source:
            own_ms = theirs[THEIR_NAMES[op.name]]
        alike += own_ms * (op.name not in UNCOUNTED)
    estimator_ms = sum(row[1] for row in rows)
    times_ms = (estimator_ms, float(ours), float(alike), float(uncounted))
    return Step(request.model.name, request.hardware_name, what, *times_ms)


def cost_request(name: str, card: str, tp: int) -> CostRequest:
    """A deployment of the silicon database alone."""
    model, layout = load_model(name), Layout(tp)
    dtypes = resolve_dtypes(model)
    return CostRequest(
        model=model,
        layout=layout,
        dtypes=dtypes,
        hardware_name=card,
        hardware=load_hardware(card),
        group_memory_bandwidth_bytes_per_s=0,
        operators=operators(model, layout, dtypes),
        max_tokens=8192,
        max_seqs=256,
        max_model_len=32768,
        cuda_graph_sizes=(512,),
        source="silicon",
        collectives="measured",
        expert_routing=parse_expert_routing("POWER_LAW"),
    )


def markdown(steps: Sequence[Step]) -> str:
    """The table of docs/explanation/estimator.md."""
    lines = [
        (
            "| model | card | step | estimator ms | ours ms | difference | without the named "
            "differences |"
        )
    ]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: |")
    for step in steps:
        cells = (
            f"{step.estimator_ms:.2f} | {step.ours_ms:.2f} | {step.percent:+.1f} % | "
            f"{step.alike_percent:+.1f} %"
        )
        lines.append(f"| {step.model.split('/')[1]} | {step.card} | {step.what} | {cells} |")
    worst, alike = (
        max(abs(step.percent) for step in steps),
        max(abs(step.alike_percent) for step in steps),
    )
    within = sum(abs(step.percent) <= LIMIT_PERCENT for step in steps)
    lines.append("")
    lines.append(
        f"{within} of {len(steps)} steps are within {LIMIT_PERCENT:g} % as they are (largest "
        f"{worst:.1f} %); without the named differences all are within {alike:.1f} %."
    )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line."""
    parser = OneSentenceParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(MODELS), action="append")
    parser.add_argument("--card", choices=CARDS, action="append")
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    models, cards = options.model or list(MODELS), options.card or list(CARDS)
    steps = [step for model in models for card in cards for step in compare(model, card)]
    text = markdown(steps)
    if options.markdown is not None:
        options.markdown.write_text(text + "\n")
    sys.stdout.write(text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
