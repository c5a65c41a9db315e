"""CUDA graphs of a group: which batches replay one, what they are padded to, and what launching
costs the host.
"""

from collections.abc import Sequence

from llmsim import _native
from llmsim.config import EngineArgs
from llmsim.config.engine.profile import multiples
from llmsim.core import ENCODER_FEATURES, Int32
from llmsim.costs import CostRequest
from llmsim.lowering.program import padded_counts
from llmsim.model import (
    AdapterCopy,
    Attention,
    Elementwise,
    Gemm,
    LoraKernel,
    Moe,
    Operator,
    StateSpace,
)

ATTENTION_KERNELS = 2
"""Kernels that vLLM 0.24 launches for attention: one writes the cache, one attends."""
MOE_KERNELS = 7
"""Kernels that vLLM 0.24 launches for experts (layers/fused_moe/fused_moe.py): top-k, two that sort
tokens by expert, the two matrix products, the activation between them, and the sum over experts.
"""
SCALED_EXPERT_INPUTS = 2
"""Kernels that scale the inputs of both products of experts."""
FULL_DECODES = ("FULL", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def mixed_sizes(engine: EngineArgs) -> tuple[int, ...]:
    """Sizes that any batch is padded to, or steps with prompts where those have sizes of their own;
    FULL_DECODE_ONLY has none.
    """
    if engine.cudagraph_mode == "FULL_DECODE_ONLY":
        return ()
    return engine.prefill_graph_sizes or engine.cuda_graph_sizes


def decode_sizes(engine: EngineArgs) -> tuple[int, ...]:
    """Sizes of the full graphs of uniform decodes (vLLM 0.24:
    CudagraphDispatcher.initialize_cudagraph_keys; Model Runner V2: CudaGraphManager).
    """
    if engine.cudagraph_mode not in FULL_DECODES:
        return ()
    if engine.cudagraph_mode == "FULL":
        return engine.cuda_graph_sizes
    query = query_tokens(engine)
    whole = multiples(engine.cuda_graph_sizes, query)
    return tuple(size for size in whole if query <= size <= engine.max_num_seqs * query)


def query_tokens(engine: EngineArgs) -> int:
    """Tokens of one decode: one, and the drafts that it verifies."""
    return 1 if engine.speculation is None else engine.speculation.verified


def graph_rules(
    engine: EngineArgs,
    stages: Sequence[Sequence[Operator]],
    request: CostRequest,
    multiple: int = 1,
    *,
    prepares: bool = False,
    posts_reads: bool = False,
) -> "_native.GraphRules":
    """The rules for the core.

    A step that replays no graph cannot be faster than the host launches its operators' kernels;
    with piecewise graphs it launches, for every layer, a graph, attention, and the write of the
    cache. Each stage has a host of its own, which launches a step, and prepares it before if
    `prepares`. Where graphs are on but have no sizes, a disabled fidelity term has taken the
    padding away, and nothing is bound by launches.
    """
    rules = _native.GraphRules()
    rules.query = query_tokens(engine)
    rules.largest_mixed = max(mixed_sizes(engine), default=0)
    rules.mixed = (
        _native.GraphMode.FULL if engine.cudagraph_mode == "FULL" else _native.GraphMode.PIECEWISE
    )
    rules.largest_decode = max(decode_sizes(engine), default=0)
    rules.mixed_takes_decodes = not engine.prefill_graph_sizes
    if not set(decode_sizes(engine)) <= set(mixed_sizes(engine)) or engine.prefill_graph_sizes:
        sizes = padded_counts(decode_sizes(engine), request.max_tokens, multiple)
        rules.padded_decode = sizes.tolist()
    if engine.cudagraph_mode == "NONE" or engine.cuda_graph_sizes:
        scaled = scaled_dtypes(request)
        rules.host_ps = [host_ps(engine, operators, scaled) for operators in stages]
        if prepares:
            rules.prepare_ps = engine.prepare_ps
            rules.prepare_sequence_ps = engine.prepare_sequence_ps
    rules.posts_reads = posts_reads and (engine.kv_read_ps > 0 or engine.kv_descriptor_ps > 0)
    return rules


def scaled_dtypes(request: CostRequest) -> frozenset[str]:
    """Types of weights whose inputs a kernel of its own scales, unless a compiler makes that part
    of the operator before.
    """
    if request.compiles_scaling:
        return frozenset()
    formats = (request.model.main_format, *dict(request.model.part_formats).values())
    return frozenset(stored.dtype for stored in formats if stored.narrow_inputs)


def host_ps(
    engine: EngineArgs, stage: Sequence[Operator], scaled: frozenset[str] = frozenset()
) -> list[int]:
    """What the host takes to launch a stage, as `launches` counts it.

    Experts are chosen, sorted and launched by Python code, of which a captured graph has only the
    kernels: without one each layer of them adds `fused_moe_ps`.
    """
    without, piecewise, full = (engine.launch_ps * count for count in launches(stage, scaled))
    return [without + engine.fused_moe_ps * layers_of_experts(stage), piecewise, full]


def layers_of_experts(stage: Sequence[Operator]) -> int:
    """Layers of the stage that have experts."""
    return sum(op.repeat for op in stage if isinstance(op, Moe))


def launches(
    stage: Sequence[Operator], scaled: frozenset[str] = frozenset()
) -> tuple[int, int, int]:
    """How often the host launches something for a stage: without graphs, with piecewise graphs, and
    with a full one.
    """
    kernels = sum(op.repeat * kernels_of(op, scaled) for op in stage)
    layers = sum(op.repeat for op in stage if isinstance(op, Attention | StateSpace))
    return kernels, 3 * layers + 1, 1


def kernels_of(op: Operator, scaled: frozenset[str] = frozenset()) -> int:
    """Kernels that one call of the operator launches; none of an encoder, which few steps run.

    Products with weights of the types `scaled` have their inputs scaled by kernels in front.
    """
    if op.feature in ENCODER_FEATURES:
        return 0
    match op:
        case Attention():
            return ATTENTION_KERNELS
        case Moe():
            return MOE_KERNELS + SCALED_EXPERT_INPUTS * (op.weight_dtype in scaled)
        case Gemm():
            return 1 + (op.weight_dtype in scaled)
        case Elementwise() | LoraKernel():
            return op.kernels
        case AdapterCopy():
            return 0
        case _:
            return 1


def padded_mixed(engine: EngineArgs, max_tokens: int, multiple: int = 1) -> Int32:
    """For each token count 0..max_tokens, what a step with prompts runs at; shape (max_tokens +
    1,).
    """
    return padded_counts(mixed_sizes(engine), max_tokens, multiple)
