"""What a plan cannot do better than, found without a run: memory, and the data sheet's speed."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from llmsim.config.errors import InfeasibleError, LlmsimError, WiderSplit
from llmsim.costs.hardware_limits import PeakRates, peak_rates_of
from llmsim.lowering import LoweringOptions
from llmsim.lowering.group import StaticView, static_view
from llmsim.lowering.remedies import wider_split
from llmsim.model import Operator, load_model
from llmsim.sizing.load import RATE, Load
from llmsim.sizing.measure import is_servable
from llmsim.sizing.plan import Option, Plan, Pool, Shape
from llmsim.sizing.targets import Targets

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from llmsim.config import Deployment

MEMORY, SPLIT, LENGTH = "does not fit the memory", "cannot be split so", "KV of a request"
TPOT, TTFT, COMPUTE = "TPOT below the speed of light", "TTFT below the speed of light", "compute"
SPREAD = "little to gain over nodes"
REASONS = {
    MEMORY: "the weights and one KV block do not fit the memory",
    SPLIT: "the layout does not split the model",
    LENGTH: "the longest request does not fit the KV cache",
    TPOT: "reading the weights of a step takes longer than the TPOT target",
    TTFT: "computing the prompts takes longer than the TTFT target at the data sheet's peak",
    COMPUTE: "the load needs more than the data sheet's peak of all devices",
    SPREAD: "a node holds the model with room for KV, so that instances over nodes gain little",
}
"""Why a plan is pruned before any run."""
DEVICES = "more than --max-devices"
LEAST_GAIN = 1.25
"""Instances over nodes are tried at once where they may serve so many times as much a device."""
US_PER_MS, US_PER_S = 1e3, 1e6


@dataclass
class Pruned:
    """How many plans were left out without a run, by reason."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, str] = field(default_factory=dict)
    nearest: dict[str, float] = field(default_factory=dict)

    def add(self, reason: str, plan: Plan, sentence: str = "", excess: float = math.inf) -> None:
        """Counts a plan; of each reason the first one that exceeds its bound by least is kept as
        an example.
        """
        self.counts[reason] += 1
        if reason not in self.examples or excess < self.nearest[reason]:
            self.nearest[reason] = excess
            self.examples[reason] = f"{plan.device} {plan.label}: {sentence}".rstrip(": ")


def fitting_splits(
    model: str, devices: Sequence[str], most_stages: int, server: tuple[Option, ...] = ()
) -> dict[str, WiderSplit]:
    """The smallest instance that holds the model, by device; devices on which none does are left
    out.
    """
    found, options = {}, LoweringOptions()
    for device in devices:
        deployment = Plan(model, device, (Pool(Shape(), 1),), server=server).deployment()
        split = wider_split(
            deployment.groups[0],
            lambda group, of=deployment: static_view(group, of, options),  # type: ignore[misc]
            most_stages,
        )
        if split is not None:
            found[device] = split
    return found


@dataclass(frozen=True)
class Speed:
    """Least times of one instance of a pool, from bytes and flops over the data sheet's peaks."""

    step_us: float
    """A step with one token: every weight of every stage is read once."""
    token_us: float
    """One more token of a batch, on the slowest stage."""

    def prompt_us(self, tokens: "NDArray[Any]") -> "NDArray[Any]":
        """Least time to the first token of prompts; stages may work on chunks at once."""
        longest: NDArray[Any] = np.maximum(self.step_us, tokens * self.token_us)
        return longest


def views_of(
    deployment: "Deployment", pool: Pool, first: int, options: LoweringOptions
) -> list[StaticView]:
    """An instance, or an attention and an FFN instance that run every layer together; raises
    InputError and InfeasibleError.
    """
    indices = [first, first + pool.shape.engines] if pool.shape.ffn else [first]
    return [static_view(deployment.groups[index], deployment, options) for index in indices]


def speed(views: Sequence[StaticView], shape: Shape) -> Speed | None:
    """The least times of an instance; None where the device has no data sheet.

    A token passes through all of its views, which may work on different tokens at once, as may the
    engines of its attention and its FFN instances.
    """
    stages = []
    for view in views:
        rates = peak_rates_of(view.request)
        if rates is None:
            return None
        activation = view.request.dtypes.activation
        # An FFN view has the rows of one of its columns; other columns have others.
        at_once = shape.engines if view is views[0] else view.request.layout.dp * shape.ffns
        stages += [_stage(rates, stage, activation, at_once) for stage in view.stages]
    return Speed(sum(step for step, _ in stages), max(token for _, token in stages))


def _stage(
    rates: PeakRates, stage: Sequence[Operator], activation: str, at_once: int
) -> tuple[float, float]:
    """Least time of a step with one token, and of each further token, of one stage that works on
    `at_once` tokens at a time.
    """
    one, step, token = np.array([1.0]), 0.0, 0.0
    for op in stage:
        step += op.repeat * float(rates.operator_us(op, one, activation)[0])
        if op.feature == "tokens":
            units = np.array([float(op.units_of(MANY))])
            token += op.repeat * float(rates.operator_us(op, units, activation)[0]) / MANY
    return step, token / at_once


MANY = 1_000_000
"""Tokens at which the weights' share of a token's least time has vanished."""


def fits(plan: Plan, options: LoweringOptions) -> bool:
    """Whether the model can be split as a plan says, and fits the memory of each of its pools."""
    deployment = plan.deployment()
    try:
        for pool, at in zip(plan.pools, first_groups(plan), strict=True):
            views_of(deployment, pool, at, options)
    except LlmsimError:
        return False
    return True


def gain_over_nodes(plan: Plan, options: LoweringOptions) -> float:
    """How many times as many tokens a device may generate in an instance over several nodes as in
    one of a whole node, were the network free; infinite where no node holds the model.

    A step reads the weights of a device and the KV of its sequences. Over n nodes a device reads an
    n-th of the weights, beside as much KV: where all KV is in use, steps of as many tokens are
    (W + K) / (W / n + K) times as fast.
    """
    shape = plan.pools[0].shape
    each = shape.devices // shape.nodes
    inside = Shape(each, ep=each if shape.ep > 1 else 1)
    alone = Plan(
        plan.model, plan.device, (Pool(inside, 1),), (), plan.devices_per_node, plan.server
    )
    try:
        ledger = views_of(alone.deployment(), alone.pools[0], 0, options)[0].ledger
    except LlmsimError:  # it does not fit, or is not split so
        return math.inf
    weights = -dict(ledger.lines)["weights"]
    return (weights + ledger.kv_bytes) / (weights / shape.nodes + ledger.kv_bytes)


class Reason(NamedTuple):
    """Why no run of a plan can meet the targets; an empty name where no reason is known."""

    name: str = ""
    sentence: str = ""
    excess: float = math.inf
    """What is needed over what there is; infinite where the two are no numbers."""


def pruned_reason(
    plan: Plan, load: Load, targets: Targets, requests: int, options: LoweringOptions
) -> Reason:
    """The reason for which no run of the plan can meet the targets, if one is known."""
    deployment = plan.deployment()
    inputs, outputs = load.lengths(requests)
    classes = load.classes_of(requests)
    servable = is_servable(plan.model, inputs)
    if not servable.any():
        return Reason(LENGTH, f"no prompt is shorter than {int(inputs.min())} tokens")
    inputs, outputs = inputs[servable], outputs[servable]
    classes = None if classes is None else classes[servable]
    context = load_model(plan.model).max_position_embeddings
    longest = int(np.minimum(inputs.astype(np.int64) + outputs, context).max())
    speeds: list[tuple[Pool, Speed]] = []
    for pool, at in zip(plan.pools, first_groups(plan), strict=True):
        try:
            views = views_of(deployment, pool, at, options)
        except InfeasibleError as error:
            return Reason(MEMORY, str(error))
        except LlmsimError as error:
            return Reason(SPLIT, str(error))
        kv_tokens = views[0].kv_tokens
        if kv_tokens < longest and pool.role != "prefill":
            sentence = f"{longest} tokens, the KV of {kv_tokens} fits"
            return Reason(LENGTH, sentence, longest / max(1, kv_tokens))
        if (found := speed(views, pool.shape)) is not None:
            speeds.append((pool, found))
    return _too_slow(load, targets, speeds, (inputs, outputs), classes)


def _too_slow(
    load: Load,
    targets: Targets,
    speeds: "Sequence[tuple[Pool, Speed]]",
    lengths: "tuple[NDArray[Any], NDArray[Any]]",
    classes: "NDArray[Any] | None",
) -> Reason:
    """Whether the data sheet's peaks rule the targets or the load out."""
    inputs, outputs = lengths
    cached = load.shares_prefixes()
    for pool, found in speeds:
        excess = found.step_us / US_PER_MS / targets.of("tpot")
        if pool.role != "prefill" and excess > 1:
            return Reason(TPOT, f"{found.step_us / US_PER_MS:.1f} ms at least", excess)
        if pool.role != "decode" and not cached:
            for name, limits in targets.by_class().items():
                prompts = inputs if classes is None or not name else inputs[classes == name]
                least = float(np.percentile(found.prompt_us(prompts), targets.percentile))
                excess = least / US_PER_MS / limits.get("ttft", math.inf)
                if excess > 1:
                    return Reason(TTFT, f"{least / US_PER_MS:,.1f} ms at least", excess)
        busy = load.level * _tokens(pool, inputs, outputs) * found.token_us / US_PER_S / pool.count
        if load.kind == RATE and busy > 1:
            return Reason(COMPUTE, f"{busy:.2f} of the peak", busy)
    return Reason()


def most_per_instance(plan: Plan, role: str, load: Load, options: LoweringOptions) -> float:
    """Requests per second that one instance of a role cannot exceed at the data sheet's peak.

    Infinite where no bound is known: for closed loops, for traces, and for unknown devices.
    """
    if load.kind != RATE:
        return math.inf
    deployment = plan.deployment()
    at = 1 if role == "decode" and len(plan.pools) > 1 else 0
    pool = plan.pools[at]
    found = speed(views_of(deployment, pool, first_groups(plan)[at], options), pool.shape)
    if found is None:
        return math.inf
    inputs, outputs = load.lengths(LENGTHS)
    servable = is_servable(plan.model, inputs)
    if not servable.any():
        return math.inf
    inputs, outputs = inputs[servable], outputs[servable]
    busy_us = _tokens(pool, inputs, outputs) * found.token_us
    return US_PER_S / busy_us if busy_us else math.inf


LENGTHS = 400
"""Requests whose lengths stand for the load in a bound."""


def _tokens(pool: Pool, inputs: "NDArray[Any]", outputs: "NDArray[Any]") -> float:
    """Tokens that a request makes the pool compute, on average."""
    prompt = 0.0 if pool.role == "decode" else float(inputs.mean())
    answer = 0.0 if pool.role == "prefill" else float(outputs.mean()) - 1
    return prompt + answer


def first_groups(plan: Plan) -> list[int]:
    """The index of the first group of each pool."""
    firsts, at = [], 0
    for pool in plan.pools:
        firsts.append(at)
        at += pool.count * pool.shape.groups
    return firsts
