"""What sets a deployment apart from every published server that its error interval is learnt from.

Those servers run vLLM or SGLang with tensor-parallel instances or data-parallel ranks in lock-step,
over which experts may be spread, and prefill and decode may be apart
(docs/explanation/published.md).
"""

from collections.abc import Iterable, Iterator, Sequence

from llmsim.config.engine.schedulers import VLLM
from llmsim.lowering.parallel_layout import LoweredLockstep
from llmsim.lowering.types import LoweredGroup, LoweringOptions

ENGINES = ("vllm", "sglang")
"""Engines of the published servers, as their profiles' names begin."""
SCHEDULERS = (VLLM, "sglang")


def unlike_published(
    groups: Iterable[LoweredGroup],
    lockstep: Sequence[LoweredLockstep],
    options: LoweringOptions,
) -> tuple[str, ...]:
    """Each feature that no published server has; empty: the interval is theirs."""
    kinds = {(group.layout, group.engine.engine_profile): group for group in groups}
    found = [name for group in kinds.values() for name in _of_group(group)]
    found += _of_run(options)
    if any(one.afd is not None for one in lockstep):
        found.append("attention and FFN apart")
    return tuple(dict.fromkeys(found))


def _of_group(group: LoweredGroup) -> Iterator[str]:
    if group.layout.pp > 1:
        yield "pipeline stages"
    if group.layout.prefill_context > 1 or group.layout.decode_context > 1:
        yield "context parallelism"
    if group.offload is not None:
        yield "offloading"
    if group.draft is not None:
        yield "speculative decoding"
    engine = group.engine.engine_profile
    if not engine.startswith(ENGINES) or group.engine.scheduler not in SCHEDULERS:
        yield f"the scheduler {group.engine.scheduler} of {engine}"


def _of_run(options: LoweringOptions) -> Iterator[str]:
    if options.calibration is not None:
        yield "constants of a calibration"
    if options.disabled_terms:
        yield f"the removed term {options.disabled_terms[0]}"
    if options.tiers:
        yield "KV tiers"
    if options.network != LoweringOptions().network:
        yield f"the network backend {options.network}"
