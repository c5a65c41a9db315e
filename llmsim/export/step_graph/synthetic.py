"""One transformer iteration as Chakra traces: what every rank of a TP x DP x PP layout computes and
exchanges.

Rank = tp_rank + tp (dp_rank + dp pp_stage). Kernels last as the data sheet says
(costs/sources/roofline); their operations and bytes are there too, so that `roofline-enabled` runs
price them anew. A rank's nodes of one micro-batch are a chain; micro-batches meet only on the
device and in the groups.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from llmsim.config.errors import InputError
from llmsim.costs.sources.roofline import (
    ATTENTION_LAUNCH_US,
    LAUNCH_US,
    MEMORY_EFFICIENCY,
    attention_flops_per_s,
    gemm_flops_per_s,
)
from llmsim.export.chakra import COLLECTIVES, NodeType, TraceNode, Value
from llmsim.model import (
    Attention,
    Collective,
    Dtypes,
    Hardware,
    Layout,
    ModelConfig,
    Moe,
    Operator,
    StateSpace,
    dtype_bytes,
    operators,
)
from llmsim.model.parallel.transforms import STAGE_TENSORS, split_layers
from llmsim.power.traffic import weight_bytes

PS_PER_US = 1_000_000
MAX_COUNT = 1 << 24
"""Tokens, sequences and ranks: what a mistyped number exceeds."""
MAX_RANKS = 1 << 16
"""A file is written for each."""


@dataclass(frozen=True)
class Parallel:
    """Numbers of ranks. `ep` ranks share the experts: within a TP group, or TP groups of
    neighbouring replicas.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1

    @property
    def world(self) -> int:
        """All ranks."""
        return self.tp * self.pp * self.dp

    @property
    def exchanges_tokens(self) -> bool:
        """Experts lie on other replicas, so that tokens travel to them."""
        return self.ep > self.tp


@dataclass(frozen=True)
class Step:
    """What one replica runs: new tokens in all its sequences, and the tokens before
    them in each.
    """

    tokens: int
    sequences: int
    context: int
    micro_batches: int = 1


class IterationGraph:
    """The traces of one iteration. Raises InputError when the layout splits neither the model nor
    the ranks.
    """

    def __init__(
        self, model: ModelConfig, hardware: Hardware, dtypes: Dtypes, parallel: Parallel, step: Step
    ) -> None:
        _check(model, parallel, step)
        self._model, self._hardware, self._dtypes = model, hardware, dtypes
        self._parallel, self._step = parallel, step
        self._layout = Layout(parallel.tp, min(parallel.tp, parallel.ep))
        self._tokens = step.tokens // step.micro_batches
        self._sequences = max(1, step.sequences // step.micro_batches)
        self._layer_operators = cache(self._operators_of_layer)
        whole = operators(model, self._layout, dtypes)
        self._ends = {
            part: [op for op in whole if op.part == part] for part in ("prologue", "head")
        }

    def groups(self) -> dict[int, list[int]]:
        """Communication groups by number: TP groups, then EP groups where tokens are exchanged."""
        tp, span = self._parallel.tp, self._parallel.ep
        found = (
            [list(range(first, first + tp)) for first in range(0, self._parallel.world, tp)]
            if tp > 1
            else []
        )
        if self._parallel.exchanges_tokens:
            found += [
                list(range(first, first + span)) for first in range(0, self._parallel.world, span)
            ]
        return dict(enumerate(found, start=1))

    def trace(self, rank: int) -> Iterator[TraceNode]:
        """The nodes of one rank, in the order of their ids."""
        return _RankTrace(self, rank).nodes()

    def stage_of(self, rank: int) -> int:
        """The pipeline stage that a rank belongs to."""
        return rank // (self._parallel.tp * self._parallel.dp)

    def layers_of(self, stage: int) -> range:
        """Layers of a stage; what does not come out even goes to the stages before the last."""
        layers = split_layers(self._model.num_layers, self._parallel.pp, self._model.sublayers)
        first = sum(layers[:stage])
        return range(first, first + layers[stage])

    def operators_of(self, layer: int) -> Sequence[Operator]:
        """What one layer executes, in order."""
        return self._layer_operators(self._model.layers_between(layer, layer + 1))

    def _operators_of_layer(self, one: ModelConfig) -> tuple[Operator, ...]:
        return tuple(op for op in operators(one, self._layout, self._dtypes) if op.part == "layer")


class _RankTrace:
    """Builds one rank's nodes."""

    def __init__(self, graph: IterationGraph, rank: int) -> None:
        self._graph, self._rank = graph, rank
        parallel = graph._parallel
        self._tp_group = rank // parallel.tp + 1
        self._ep_group = (
            (parallel.world // parallel.tp if parallel.tp > 1 else 0) + rank // parallel.ep + 1
        )
        self._stage = graph.stage_of(rank)
        self._next_id = 0
        self._last: list[int] = []

    def nodes(self) -> Iterator[TraceNode]:
        graph, stage = self._graph, self._stage
        for micro_batch in range(graph._step.micro_batches):
            self._last = []
            if stage > 0:
                yield from self._receive(micro_batch)
            else:
                yield from self._run(graph._ends["prologue"], "")
            for layer in graph.layers_of(stage):
                yield from self._run(graph.operators_of(layer), f"layers.{layer}.")
            if stage + 1 < graph._parallel.pp:
                yield self._message("COMM_SEND", "comm_dst", 1, micro_batch)
            else:
                yield from self._run(graph._ends["head"], "")

    def _node(self, name: str, kind: NodeType, **attributes: Value) -> TraceNode:
        node = TraceNode(
            self._next_id, name, kind, 0, self._last, [], {"is_cpu_op": False, **attributes}
        )
        self._next_id += 1
        self._last = [node.id]
        return node

    def _run(self, ops: Sequence[Operator], prefix: str) -> Iterator[TraceNode]:
        graph = self._graph
        exchanged = False
        for op in ops:
            units = graph._sequences if op.feature == "sequences" else graph._tokens
            if isinstance(op, Collective) and exchanged:
                # The experts' outputs have come back to the ranks that own the tokens; all need
                # them.
                exchanged = False
                share = -(-units * op.collective_bytes_per_token // graph._parallel.tp)
                yield self._collective(
                    prefix + "tokens_gather", "ALL_GATHER", share, self._tp_group
                )
            elif isinstance(op, Collective):
                whole = units * op.collective_bytes_per_token
                gather = op.collective == "all_gather"
                size = -(-whole // graph._parallel.tp) if gather else whole
                yield self._collective(
                    prefix + op.name, op.collective.upper(), size, self._tp_group
                )
            elif isinstance(op, Moe) and graph._parallel.exchanges_tokens:
                size = self._exchanged_bytes(op)
                yield self._collective(prefix + "dispatch", "ALL_TO_ALL", size, self._ep_group)
                yield self._compute(op, units, prefix)
                yield self._collective(prefix + "combine", "ALL_TO_ALL", size, self._ep_group)
                exchanged = graph._parallel.tp > 1
            else:
                yield self._compute(op, units, prefix)

    def _exchanged_bytes(self, op: Moe) -> int:
        """Each rank sends its share of the replica's tokens to the experts that they chose, hidden
        state by choice.
        """
        graph = self._graph
        elements = graph._tokens * op.topk * op.hidden
        return -(-elements * _activation_bytes(graph) // graph._parallel.tp)

    def _collective(self, name: str, kind: str, size: int, group: int) -> TraceNode:
        number = COLLECTIVES.index(kind)
        return self._node(
            name, "COMM_COLL", comm_type=number, comm_size=max(1, size), pg_name=str(group)
        )

    def _message(self, kind: NodeType, end: str, step: int, micro_batch: int) -> TraceNode:
        graph = self._graph
        peer = self._rank + step * graph._parallel.tp * graph._parallel.dp
        size = STAGE_TENSORS * graph._tokens * graph._model.hidden_size * _activation_bytes(graph)
        attributes: dict[str, Value] = {
            end: peer,
            "comm_size": -(-size // graph._parallel.tp),
            "comm_tag": micro_batch,
        }
        return self._node("activations", kind, **attributes)

    def _receive(self, micro_batch: int) -> Iterator[TraceNode]:
        """A stage's ranks hand on a share each, as vLLM does; their peers gather."""
        received = self._message("COMM_RECV", "comm_src", -1, micro_batch)
        yield received
        if self._graph._parallel.tp > 1:
            size = received.attributes["comm_size"]
            assert isinstance(size, int)
            yield self._collective("activations_gather", "ALL_GATHER", size, self._tp_group)

    def _compute(self, op: Operator, units: int, prefix: str) -> TraceNode:
        moved, flops, us = _kernel(op, units, self._graph)
        node = self._node(
            prefix + op.name,
            "COMP",
            num_ops=flops,
            tensor_size=moved,
            duration_ps=round(us * PS_PER_US),
        )
        node.duration_micros = max(1, round(us))
        return node


def _activation_bytes(graph: IterationGraph) -> int:
    return int(dtype_bytes(graph._dtypes.activation))


def _kernel(op: Operator, units: int, graph: IterationGraph) -> tuple[int, int, float]:
    """Bytes, operations and microseconds of one execution; attention: every sequence has the same
    share of tokens.
    """
    step, parallel = graph._step, graph._parallel
    new = -(-graph._tokens // graph._sequences)
    moved = units * (op.read_bytes_per_token + op.write_bytes_per_token)
    moved += _weights_read(op, units, parallel)
    flops = units * op.flops_per_token
    match op:
        case Attention():
            before = step.context + new
            seen = min(before, op.window) if op.window else before
            moved += graph._sequences * seen * op.kv_bytes_per_context_token
            pairs = max(1, 2 * seen - new + 1) * new // 2 * graph._sequences
            if op.beside is not None:
                near = graph._sequences * min(before, op.beside.window)
                moved += near * op.beside.kv_bytes_per_token
                flops += near * new * op.beside.flops_per_token
            per_pair = op.decode_flops_per_context_token or op.flops_per_context_token
            flops += pairs * (op.flops_per_context_token if new > 1 else per_pair)
        case StateSpace():
            moved += graph._sequences * op.state_bytes_per_sequence
    attends = isinstance(op, Attention | StateSpace)
    dtype = op.weight_dtype or graph._dtypes.activation
    peak, reached = graph._hardware.flops.get(dtype), graph._hardware.matrix_flops.get(dtype, 0)
    rate_of = attention_flops_per_s if attends else gemm_flops_per_s
    memory_s = moved / (MEMORY_EFFICIENCY * graph._hardware.memory_bandwidth_bytes_per_s)
    compute_s = flops / rate_of(peak, reached) if peak else 0.0
    return (
        moved,
        flops,
        max(memory_s, compute_s) * 1e6 + (ATTENTION_LAUNCH_US if attends else LAUNCH_US),
    )


def _weights_read(op: Operator, units: int, parallel: Parallel) -> int:
    """Bytes of weights that the tokens touch: of an embedding none but their rows, of experts the
    expected share.
    """
    if not isinstance(op, Moe) or not parallel.exchanges_tokens:
        return round(float(weight_bytes(op, np.array([units]))[0]))
    replicas = (
        parallel.ep // parallel.tp
    )  # whose tokens meet at the experts, of which each rank has its part
    return round(float(weight_bytes(op, np.array([units * replicas]))[0]) / replicas)


def _check(model: ModelConfig, parallel: Parallel, step: Step) -> None:
    numbers = {"tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp, "ep": parallel.ep}
    numbers |= {
        "tokens": step.tokens,
        "sequences": step.sequences,
        "micro-batches": step.micro_batches,
    }
    for name, value in numbers.items():
        if not 1 <= value <= MAX_COUNT:
            raise InputError(f"{name} is {value}; 1 to {MAX_COUNT} was expected")
    if not 0 <= step.context <= MAX_COUNT:
        raise InputError(f"context is {step.context}; 0 to {MAX_COUNT} was expected")
    if parallel.world > MAX_RANKS:
        raise InputError(
            f"tp x pp x dp is {parallel.world}; {MAX_RANKS} ranks at most were expected"
        )
    if parallel.pp > model.num_layers:
        raise InputError(
            f"pp is {parallel.pp}; {model.name} has {model.num_layers} layers for so many stages"
        )
    if step.tokens % step.micro_batches or step.tokens < step.sequences:
        raise InputError(
            f"{step.tokens} tokens in {step.sequences} sequences and {step.micro_batches} "
            "micro-batches do not come out even; a multiple of the micro-batches and one token "
            "per sequence at least were expected"
        )
    if parallel.exchanges_tokens:
        if model.num_moe_layers == 0 or model.num_experts % parallel.ep:
            raise InputError(
                f"ep is {parallel.ep}; {model.name} has {model.num_experts} experts, which it "
                "must divide"
            )
        if parallel.ep % parallel.tp or parallel.tp * parallel.dp % parallel.ep:
            raise InputError(
                f"ep is {parallel.ep}; a divisor of tp {parallel.tp}, or a multiple of it that "
                f"divides tp x dp = {parallel.tp * parallel.dp}, was expected"
            )
