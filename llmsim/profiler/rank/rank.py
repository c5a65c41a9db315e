"""One tensor-parallel rank of a model on one device: the work behind every row of a bundle."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from llmsim.config.errors import InputError
from llmsim.model import Attention as AttentionOperator
from llmsim.model import (
    Collective,
    Dtypes,
    Gemm,
    Layout,
    ModelConfig,
    Moe,
    Operator,
    StateSpace,
    layout_problem,
    operators,
    short_dtype,
)
from llmsim.profiler.attention.attention import Attention, Shape, shapes_of, usable_kernels
from llmsim.profiler.attention.mla import LatentShape
from llmsim.profiler.bundle.plan import attention_table, layers_of
from llmsim.profiler.device.activation_memory import dummy_run
from llmsim.profiler.device.device import DeviceInfo, torch_dtype
from llmsim.profiler.kernels.fused_layers import FusedLayers
from llmsim.profiler.kernels.quantised import scheme_of
from llmsim.profiler.kernels.quantised_linears import NARROW
from llmsim.profiler.kernels.work import Work
from llmsim.profiler.moe.experts import Experts, usable_kernel
from llmsim.profiler.rank.dense import Kernels, Style, unknown_operators
from llmsim.profiler.state_space.linear_attention import LinearLayer

Parts = tuple[Work, Work | None, int]
"""One execution, what happens once a step (or None), and over how many executions that is spread.
"""


def measured_operators(model: ModelConfig, layout: Layout, dtypes: Dtypes) -> list[Operator]:
    """The operators of one rank that take rows: all but collectives."""
    return [op for op in operators(model, layout, dtypes) if not isinstance(op, Collective)]


def sharded(model: ModelConfig, tp: int) -> Layout:
    """One of `tp` ranks: its experts cut like the rest or, where that breaks their quantisation
    blocks, spread whole.

    Neither changes a row, since experts are measured whole; all else is the same for both.
    """
    spread = Layout(tp, tp)
    cut_breaks = bool(model.num_experts and layout_problem(model, Layout(tp, 1)))
    return spread if cut_breaks and not layout_problem(model, spread) else Layout(tp, 1)


def refuse_unknown(model: ModelConfig, ops: Sequence[Operator]) -> None:
    """Raises InputError where some operator cannot be measured."""
    unknown = unknown_operators(ops)
    if unknown:
        raise InputError(
            f"{model.name}: the operators {', '.join(unknown)} cannot be measured by this version; "
            "take their times from another source (--cost-source auto beside this bundle)"
        )


def refuse_packed(model: ModelConfig, ops: Sequence[Operator], attention: str) -> None:
    """Raises InputError where the packed kernel is asked for and layers have a window, since its
    mask is dense, or latent attention, whose cache transformers' batching lays out for heads of one
    width.
    """
    if attention == "packed" and model.latent is not None:
        raise InputError(
            f'{model.name}: --attention is "packed", and transformers does not batch latent '
            "attention; take auto, "
            "flash, flashmla, triton or sdpa"
        )
    if attention == "packed" and any(op.window for op in ops if isinstance(op, AttentionOperator)):
        raise InputError(
            f'{model.name}: --attention is "packed", whose dense mask costs as much with a '
            "window as without, so its "
            "rows do not price layers with a window; take auto, flash, triton or sdpa"
        )


def expert_form(model: ModelConfig, op: Operator) -> dict[str, Any]:
    """Activation and storage of a model's experts: with biases as gpt-oss has them, without a gate
    as Nemotron.
    """
    activation = (
        "swigluoai"
        if model.expert_bias and model.mlp_gated
        else "silu"
        if model.mlp_gated
        else "relu2"
    )
    return {
        "activation": activation,
        "scheme": scheme_of(model, op.weight_dtype) if op.weight_dtype in NARROW else None,
    }


class Rank:
    """Sharded shapes with dummy weights; makes one row's work at a time, so that memory stays
    small.
    """

    def __init__(
        self,
        torch: Any,
        device: Any,
        model: ModelConfig,
        layout: Layout,
        dtypes: Dtypes,
        info: DeviceInfo,
        style: Style,
        attention: str,
        max_decodes: int = 256,
    ) -> None:
        """`max_decodes`: sequences of the largest step."""
        self.tp = layout.tp
        self._torch = torch
        self._device = device
        self._dtype = torch_dtype(torch, dtypes.activation)
        self._order = measured_operators(model, layout, dtypes)
        self._ops = {op.name: op for op in self._order}
        self._neighbours: dict[int, list[Work]] = {}
        bytes_of_model = sum(op.weight_bytes * op.repeat for op in self._ops.values())
        refuse_unknown(model, self._order)
        self.reasons: dict[str, str] = {}
        self.kernels: dict[str, str] = {}
        linear = self._linear_layer(model, dtypes)
        fused = FusedLayers(torch, device, self._dtype) if style == "fused" else None
        self.reasons |= {
            f"layers {name}": why
            for name, why in (fused.reasons if fused is not None else {}).items()
        }
        self._kernels = Kernels(
            torch, device, self._dtype, model, layout, style=style, cache_bytes=info.cache_bytes,
            model_bytes=bytes_of_model, max_decodes=max_decodes, linear=linear, fused=fused,
            ops=self._order,
        )  # fmt: skip
        self.kernels |= self._kernels.quantised.kernels
        self.reasons |= self._kernels.quantised.reasons
        self._choose_attention(shapes_of(model, self._order), attention, info)
        self._choose_experts(model, dtypes)
        self._experts: Experts | None = None

    def _choose_attention(self, shapes: dict[str, Shape], attention: str, info: DeviceInfo) -> None:
        """Finds a kernel for each shape of attention; raises InputError where none works."""
        self.attention_kernels = {
            name: self._choose(name, shape, attention) for name, shape in shapes.items()
        }
        self._layers_of = {
            name: sum(op.repeat for op in self._order if attention_table(op) == name)
            for name in shapes
        }
        self._attentions = {
            name: Attention(
                self._torch,
                self._device,
                self._dtype,
                shape,
                self.attention_kernels[name],
                layers=self._layers_of[name],
                cache_bytes=info.cache_bytes,
                layer_share=self._layers_of[name],
                product=self._expansion(shape),
            )
            for name, shape in shapes.items()
        }

    def _choose_experts(self, model: ModelConfig, dtypes: Dtypes) -> None:
        """Finds a kernel for the experts of a model; raises InputError where none works."""
        whole = measured_operators(model, Layout(1, 1), dtypes)  # readers divide by the ranks
        self.expert_op = next((op for op in whole if isinstance(op, Moe)), None)
        self.expert_kernel = ""
        if self.expert_op is not None:
            self._expert_form = expert_form(model, self.expert_op)
            form = self._expert_form
            self.expert_kernel, reasons = usable_kernel(
                self._torch, self._device, self._dtype, self.expert_op, **form
            )
            self.reasons |= {f"experts {name}": why for name, why in reasons.items()}
            if not self.expert_kernel:
                raise InputError(
                    f"no kernel of the experts works here: {'; '.join(reasons.values())}"
                )

    def layers(self, feature: str) -> list[str]:
        """Names of the operators that see tokens or sequences."""
        return layers_of(self._order, feature)

    @property
    def measured(self) -> list[Operator]:
        """The operators that take rows."""
        return self._order

    def executions(self, feature: str) -> dict[str, int]:
        """How often a step runs each of `layers(feature)`."""
        names = self.layers(feature)
        found = dict.fromkeys(names, 0)
        for op in self._order:
            if op.name in found:
                found[op.name] += op.repeat
        return found

    def program(self, tokens: int) -> list[tuple[str, Work]]:
        """A step's operators in order, layer after layer (up to 8 of them), with a short attention
        in each.
        """
        works = {
            name: self._kernels.work(self._ops[name], tokens) for name in self.layers("tokens")
        }
        attentions = {
            name: self.attention_work([(1, 63)] * min(tokens, 8), name)[0]
            for name in self._attentions
        }
        repeat = self._layers_of["attention"]
        layer: list[tuple[str, Work]] = []
        for op in self._order:
            if isinstance(op, AttentionOperator):  # of several kinds, one layer has one
                layer += (
                    [("", attentions.pop(name))]
                    if (name := attention_table(op)) in attentions
                    else []
                )
            elif op.part == "layer" and op.name in works:
                layer.append((op.name, works[op.name]))
        around = [
            [(op.name, works[op.name])] if op.name in works else []
            for op in self._order
            if op.part != "layer"
        ]
        ends = [pair for pairs in around for pair in pairs]
        return [*ends[:1], *(layer * min(repeat, 8)), *ends[1:]]

    def neighbours(self, tokens: int) -> Work:
        """What runs between two calls of one operator in a model: the rest of a layer at this token
        count.
        """
        if tokens not in self._neighbours:
            self._neighbours = {tokens: [work for name, work in self.program(tokens) if name][1:12]}
        works = self._neighbours[tokens]

        def run() -> None:
            for work in works:
                work()

        return run

    def work(self, table: str, key: tuple[object, ...]) -> Parts:
        """The work of one row of a table."""
        if table in ("dense", "per_sequence"):
            return self._kernels.work(self._ops[str(key[0])], int(str(key[1]))), None, 1
        sizes = [int(str(part)) for part in key]
        if table == "moe":
            assert self.expert_op is not None
            if self._experts is None:
                made = (self._torch, self._device, self._dtype, self.expert_op, self.expert_kernel)
                self._experts = Experts(*made, **self._expert_form)
            return self._experts.work(*sizes), None, 1
        chunk, before, n, kv = sizes
        return self.attention_work([*([(chunk, before)] if chunk else []), *[(1, kv)] * n], table)

    def attention_work(self, batch: Sequence[tuple[int, int]], table: str = "attention") -> Parts:
        """One attention call, of the rows of a table, over (new, cached) tokens of
        each sequence.
        """
        work, once = self._attentions[table].work(batch)
        return work, once, self._layers_of[table]

    def memory(self, tokens: int, sequences: int) -> dict[str, object]:
        """Peak of a dummy run of the largest step: one layer and the head."""
        layer = [self._kernels.work(self._ops[name], tokens) for name in self.layers("tokens")]
        head = [
            self._kernels.work(self._ops[name], min(sequences, tokens))
            for name in self.layers("sequences")
        ]

        def run() -> None:
            for work in (*layer, *head):
                kept = work()
                del kept

        return dummy_run(self._torch, self._device, run)

    def free(self) -> None:
        """Gives memory back after a row that did not fit."""
        self._experts = None
        gc.collect()
        if self._device.type == "cuda":
            self._torch.cuda.empty_cache()

    def _linear_layer(self, model: ModelConfig, dtypes: Dtypes) -> LinearLayer | None:
        """The kernels of layers that keep a state, where the model has them."""
        if model.linear is None or not any(isinstance(op, StateSpace) for op in self._order):
            return None
        state_dtype = torch_dtype(
            self._torch, short_dtype(model.linear.state_dtype or dtypes.activation)
        )
        layer = LinearLayer(
            self._torch, self._device, self._dtype, model.linear.on_rank(self.tp), state_dtype
        )
        self.kernels |= layer.kernels
        self.reasons |= layer.reasons
        return layer

    def _expansion(self, shape: Shape) -> Callable[[], Any] | None:
        """Makes the quantised layer that expands latents, where prompts do that and it is
        quantised.
        """
        op = self._ops.get("kv_b_proj")
        if not isinstance(op, Gemm) or type(shape) is not LatentShape:
            return None
        if op.name not in self._kernels.quantised:
            return None
        return lambda: self._kernels.quantised.layer(op, op.gemm_n)[0]

    def _choose(self, table: str, shape: Shape, wanted: str) -> str:
        """The kernel for the rows of a table; `wanted` is of attention itself."""
        good, reasons = usable_kernels(self._torch, self._device, self._dtype, shape)
        self.reasons |= {f"{table} {name}": why for name, why in reasons.items()}
        if wanted == "auto" or table != "attention":
            if not good:
                raise InputError(f"no {table} kernel works here: {'; '.join(reasons.values())}")
            return good[0]
        if wanted not in good:
            why = reasons.get(
                wanted, f"for this model it may be auto, {', '.join([*good, *reasons])}"
            )
            raise InputError(f'--attention is "{wanted}": {why}')
        return wanted
