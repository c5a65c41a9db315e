"""The fidelity terms that can be switched off one by one, to see what each is worth."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from llmsim.config import EngineArgs
from llmsim.config.engine.args import COMMAND_LINE
from llmsim.config.errors import InputError, nearest
from llmsim.costs import CompiledCosts
from llmsim.costs.source import AttentionCost, MixedAttention, SplitAttention


class Term(Struct, frozen=True):
    """One physical effect: what it is, what its absence means, and where its constant
    comes from.
    """

    meaning: str
    without: str
    constant: str


TERMS: Mapping[str, Term] = MappingProxyType(
    {
        "async_lag": Term(
            "two batches in flight: an arrival during step j runs in step j + 2",
            "the scheduler waits for every step's result before it forms the next batch",
            "the engine profile's async_scheduling",
        ),
        "decode_skew": Term(
            "decode rows of unequal length cost kappa x (longest - mean) more per layer",
            "a batch costs as much as one of equal lengths with the same mean",
            (
                "kappa from the bundle's skew.csv, or the card's streaming rate of one thread "
                "block (data sheet)"
            ),
        ),
        "mixed_step": Term(
            (
                "decode rows beside a prefill run in the mixed kernel and lose the packing of "
                "query heads"
            ),
            "a mixed step costs its prefill alone plus its decodes alone",
            "the bundle's mixed-batch grid, or the card's measured L2 bandwidth (data sheet)",
        ),
        "graph_padding": Term(
            "steps are padded to the next captured CUDA-graph size",
            "every step computes exactly its tokens",
            "the engine profile's capture sizes",
        ),
        "pim_power": Term(
            (
                "memory that computes draws its part's idle power in place of DIMMs, and its peak "
                "power while it computes"
            ),
            "it draws what DIMMs of that size draw",
            "the part file's idle_power and peak_power",
        ),
        "prefix_cache": Term(
            "equal prefixes share KV blocks",
            "every prompt is computed in full",
            "the engine profile's enable_prefix_caching and block size",
        ),
        "api_latency": Term(
            "time between a request's arrival and the engine's queue",
            "the engine sees a request the moment it arrives",
            "the engine profile's api_latency_ns, from the stamps of recorded runs",
        ),
        "frontend": Term(
            "work of the API server's processes on requests, prompts and chunks of answers",
            "clients and engine exchange prompts and tokens in no time",
            "the engine profile's frontend, by endpoint; off unless an endpoint is given",
        ),
        "host_gap": Term(
            "idle time of the device between two steps",
            "a step starts when the one before ends",
            (
                "the engine profile's host.step_ns for synchronous scheduling; else 0 unless given "
                "or calibrated"
            ),
        ),
        "host_sequence": Term(
            "what the host takes for each sequence of a step: idle time of the device between two "
            "steps, or with asynchronous scheduling time before its launches",
            "the host takes as long for many sequences as for one",
            "the engine profile's host.sequence_ns for synchronous scheduling, and its "
            "launch.prepare_sequence_ns for asynchronous scheduling",
        ),
        "host_ranks": Term(
            "idle time of the device between two steps while processes of several devices talk",
            "an instance of several devices takes as long between steps as one of one device",
            "the engine profile's host.ranks_ns for synchronous scheduling",
        ),
        "kv_reads": Term(
            "hosts of a decode instance post reads of KV before they launch a step",
            "reads of KV are posted in no time",
            "the engine profile's kv_reads, from vLLM's own log lines of transfers",
        ),
        "kv_write": Term(
            (
                "the kernel that writes new keys and values to the cache, where a cost source has "
                "none in its attention"
            ),
            "attention writes the cache for nothing",
            (
                "the silicon database's streaming kernel at equal bytes; a bundle's attention "
                "contains it"
            ),
        ),
        "expert_choice": Term(
            "softmax and top-k of the router's logits, where a cost source has none in its experts",
            "every token knows its experts",
            "the silicon database's streaming kernel at equal bytes; a bundle's experts contain it",
        ),
        "prompts_together": Term(
            "the prompts of a step run in one call, and share its launch and what one leaves idle",
            "each prompt takes as long as in a call of its own",
            "the silicon database's rows of several prompts; elsewhere the launch of a call",
        ),
        "latent_prompts": Term(
            "short prompts of latent attention, or prompts behind few cached tokens, run on the "
            "cached latents, as the engine's version decides",
            "all prompts make keys and values of what is cached",
            "the engine profile's latent_prompts; the silicon database's rows of that kernel, else "
            "the data sheet",
        ),
        "context_expansion": Term(
            "other prompts of latent attention first make keys and values of all that is cached",
            "they find keys and values in the cache",
            "the cost source's own times of that matrix and of streaming kernels",
        ),
        "cold_kv": Term(
            (
                "decodes read KV that is not in the last-level cache, where a cost source was "
                "measured with warm KV"
            ),
            "a decode costs what the database's repeated call did, which the cache had served",
            "the database's own rows beyond the cache, and the card's decode_cold_ns (data sheet)",
        ),
        "sustained_clock": Term(
            "steps run at the clock of the power limit, where a cost source timed bursts",
            "matrices run for any time as fast as the database's short calls did",
            "the card's tdp_w, idle_w, energies and power_window_ms (data sheet)",
        ),
        "card_streaming": Term(
            "streaming kernels of every engine take what vLLM's take on the card at equal bytes",
            "each engine's own table comes first, whose kernels also compute scales",
            "the silicon database's table of vLLM (scale_matrix), else the data sheet",
        ),
        "fused_scaling": Term(
            "a compiled model converts inputs to fp8 inside of the norm or activation before",
            "every matrix has a kernel of its own that converts its input, as its rows were timed",
            "the silicon database's tables of that kernel (scale_matrix, computescale)",
        ),
        "touched_experts": Term(
            "tokens choose experts at random, and a step reads the weights of those they touch",
            "the tokens of a step take all experts in turn, as measured rows had it",
            "expectation over random choices, at the rates that the rows themselves reach",
        ),
        "padded_experts": Term(
            "experts multiply whole tiles of rows, of which random choices fill more",
            "experts multiply as many rows as tokens chose them",
            "tile sizes of vLLM's tuned kernels, expectation over random choices",
        ),
        "fullest_rank": Term(
            "experts on several ranks take as long as the rank with most of a random router's load",
            "every rank has the expected load",
            "expectation over random choices, drawn once, at the rates of the cost source",
        ),
        "sink_attention": Term(
            "vLLM runs prompts of models with attention sinks on Triton's kernel, where "
            "FlashAttention 3 is missing",
            "they run on FlashAttention 2",
            "one published run of gpt-oss-20b on an A100",
        ),
        "default_tiles": Term(
            "experts without a tuned file run with the default tiles of the engine's release",
            "they run with those of the release that was measured",
            "the silicon database's rows of SGLang, whose default tiles vLLM had up to 0.16",
        ),
        "weight_only_experts": Term(
            "experts with weights of 4 bits that a card cannot multiply take a weight-only kernel",
            "such experts take the data sheet's peaks",
            "the silicon database's rows of that kernel with int4 weights (Marlin)",
        ),
        "second_stream": Term(
            "shared experts run beside the others on a stream of their own while batches are small",
            "shared experts run behind the others",
            "the engine profile's second_stream_tokens, and the bandwidth of the data sheet",
        ),
        "launches": Term(
            "a step waits for its host, which prepares it and launches its kernels",
            "the host takes no time for a step",
            "the engine profile's launch section",
        ),
        "kernel_gap": Term(
            "idle time between two kernels, where a cost source states one",
            "kernels follow each other without a gap",
            "the cost source; 0 in this version",
        ),
    }
)
"""Name for `--disable-term` -> the term. How several prefills of a mixed-batch profile add up is
not among them: it is part of the shape of the attention price itself, and has no variant without.
"""

OPERATORS = ("kernel_gap", "kv_write", "expert_choice")
"""Terms that are an operator of that name."""
PROMPTS_TOGETHER = "prompts_together"
CONTEXT_EXPANSION = "context_expansion"
LATENT_PROMPTS = "latent_prompts"
COLD_KV = "cold_kv"
SUSTAINED_CLOCK = "sustained_clock"
CARD_STREAMING = "card_streaming"
FUSED_SCALING = "fused_scaling"
TOUCHED_EXPERTS = "touched_experts"
PADDED_EXPERTS = "padded_experts"
FULLEST_RANK = "fullest_rank"
DEFAULT_TILES = "default_tiles"
SINK_ATTENTION = "sink_attention"
WEIGHT_ONLY_EXPERTS = "weight_only_experts"
SECOND_STREAM = "second_stream"
HOST_RANKS = "host_ranks"


def check_terms(names: Sequence[str]) -> None:
    """Raises InputError for a name that is no term."""
    for name in names:
        if name not in TERMS:
            raise InputError(
                f'--disable-term "{name}" is no term{nearest(name, TERMS)}; it may be '
                f"{', '.join(TERMS)}"
            )


def engine_without(engine: EngineArgs, disabled: Sequence[str]) -> EngineArgs:
    """The engine's arguments with its terms switched off, as if the command line had said so."""
    changes: dict[str, object] = {}
    off: dict[str, dict[str, object]] = {
        "async_lag": {"async_scheduling": False, "prepare_ps": 0, "prepare_sequence_ps": 0},
        "graph_padding": {"cuda_graph_sizes": ()},
        "prefix_cache": {"enable_prefix_caching": False},
        "api_latency": {"api_latency_ps": 0},
        "frontend": {"endpoint": None},
        "host_gap": {"host_gap_ps": 0},
        "host_sequence": {"host_sequence_ps": 0, "prepare_sequence_ps": 0},
        "kv_reads": {"kv_read_ps": 0, "kv_descriptor_ps": 0},
        "launches": {
            "launch_ps": 0,
            "prepare_ps": 0,
            "prepare_sequence_ps": 0,
            "fused_moe_ps": 0,
        },
    }
    origin = dict(engine.origin)
    if HOST_RANKS in disabled:
        off[HOST_RANKS] = {"host_gap_ps": engine.host_gap_ps - engine.host_ranks_ps}
    for name in sorted(disabled, key=lambda name: name != HOST_RANKS):  # no gap has no part
        for field, value in off.get(name, {}).items():
            changes[field], origin[field] = value, COMMAND_LINE
    if not changes:
        return engine
    return replace(engine, **changes, origin=MappingProxyType(origin))


def costs_without(costs: CompiledCosts, disabled: Sequence[str]) -> CompiledCosts:
    """The tables without the terms that live in them."""
    first, *more = (_attention_without(attention, disabled) for attention in costs.attentions)
    ops = tuple(op for op in costs.ops if op.name not in OPERATORS or op.name not in disabled)
    return replace(costs, attention=first, more_attention=tuple(more), ops=ops)


def _attention_without(attention: AttentionCost, disabled: Sequence[str]) -> AttentionCost:
    if "decode_skew" in disabled:
        attention = replace(
            attention, skew_ps_per_token_q20=0, skew_source="none: --disable-term decode_skew"
        )
    return _without_mixed_step(attention) if "mixed_step" in disabled else attention


def _without_mixed_step(attention: AttentionCost) -> AttentionCost:
    """Prefill alone plus decodes alone: plane n = 0 plus plane chunk = 0 of a mixed grid, or no
    minimum of a split one.

    The planes are zero where they meet, so that pure steps keep their cost.
    """
    if isinstance(attention, MixedAttention):
        grid, ps, marks = attention.grid, attention.grid.ps, attention.grid.provenance
        worst = np.maximum(marks[:, :, :1, :1], marks[:1, :1, :, :])
        return replace(
            attention, grid=replace(grid, ps=ps[:, :, :1, :1] + ps[:1, :1, :, :], provenance=worst)
        )
    assert isinstance(attention, SplitAttention), "attention has one of two shapes"
    return replace(attention, grid=replace(attention.grid, mixed_decode_ps_per_kv_token_q20=0))


def term_notes(disabled: Sequence[str]) -> tuple[str, ...]:
    """One sentence for each term that is off."""
    return tuple(
        f"the fidelity term {name} is switched off: {TERMS[name].without}" for name in disabled
    )
