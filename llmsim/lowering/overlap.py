"""What SGLang derives from a group's role and layout: whether its scheduler forms steps while the
one before runs, how large they are, what admission counts on, and what its server's defaults
depend on.
"""

from types import MappingProxyType

from msgspec.structs import replace

from llmsim.config import Group, load_profile
from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.defaults import synchronous_origin
from llmsim.config.engine.schedulers import SGLANG
from llmsim.config.engine.sglang.defaults import Server
from llmsim.config.errors import NotYetError
from llmsim.config.units import ns_to_ps
from llmsim.model import ModelConfig

_OVERLAP = "sglang_overlap"
_CONSERVATIVENESS = "sglang_conservativeness"
_RECV_INTERVAL = "sglang_recv_interval"
_KEPT_BY_RANKS = (3, 10)
"""The share of SGLang's `schedule_conservativeness` that DP attention leaves."""


def as_in_sglang(group: Group, members: int, *, tiers: bool) -> Group:
    """The group as SGLang would run it, where it has SGLang's scheduler; `members` is how many
    groups run in lock-step with it.
    """
    if group.engine.scheduler != SGLANG:
        return group
    _check_receiving(group, members, tiers=tiers)
    if members > 1:
        whole = dict(group.engine.scheduler_parameters)[_CONSERVATIVENESS]
        kept, of = _KEPT_BY_RANKS
        group = _with_parameter(group, _CONSERVATIVENESS, whole * kept // of)
    return _with_overlap(_without_default_cache(group), tiers=tiers)


def server_of(
    group: Group, model: ModelConfig, members: int, architectures: tuple[str, ...]
) -> Server:
    """What the defaults of SGLang's server depend on; its tp_size counts the devices of all
    `members` of data-parallel attention.
    """
    return Server(
        hardware=group.hardware,
        memory_bytes=group.memory.capacity_bytes,
        devices=group.num_devices // group.pp * members,
        stages=group.pp,
        attention_ranks=members,
        pd_type=group.pd_type,
        architectures=architectures,
        latent=model.latent is not None,
    )


def _check_receiving(group: Group, members: int, *, tiers: bool) -> None:
    """Raises NotYetError where requests are received every few steps of a group whose loop is
    another one: of ranks with data-parallel attention, with a role, or of the outline.
    """
    if dict(group.engine.scheduler_parameters)[_RECV_INTERVAL] == 1:
        return
    if members > 1 or group.pd_type is not None or _is_outlined(group.engine, tiers=tiers):
        raise NotYetError(
            "sglang_scheduler_recv_interval does not run together with data-parallel ranks, "
            "pd_type, KV tiers, skip_prefill or another scheduling_policy than fcfs; remove one of "
            "them"
        )


def _is_outlined(engine: EngineArgs, *, tiers: bool) -> bool:
    """Whether the outline of SGLang's scheduler runs any such group, whatever its role."""
    return tiers or engine.skip_prefill or engine.scheduling_policy != "fcfs"


def _with_parameter(group: Group, name: str, value: int) -> Group:
    parameters = dict(group.engine.scheduler_parameters) | {name: value}
    return replace(
        group, engine=replace(group.engine, scheduler_parameters=tuple(parameters.items()))
    )


def _without_default_cache(group: Group) -> Group:
    """SGLang's decode servers have a prefix cache only where they are told so."""
    engine = group.engine
    if group.pd_type != "decode" or not engine.is_default("enable_prefix_caching"):
        return group
    said = {"enable_prefix_caching": "off in SGLang's decode servers"}
    origin = MappingProxyType(dict(engine.origin) | said)
    return replace(group, engine=replace(engine, enable_prefix_caching=False, origin=origin))


def _with_overlap(group: Group, *, tiers: bool) -> Group:
    """The group without overlapped steps where SGLang has none, which is with pipeline stages, and
    where its scheduler is the outline of SGLang's: with KV tiers, decodes alone, or another order
    of the queue.
    """
    if not _is_outlined(group.engine, tiers=tiers) and group.pp == 1:
        return group
    if group.engine.speculation is not None:
        raise NotYetError(
            "speculative_config with the scheduler sglang does not run together with pp_size, KV "
            "tiers, skip_prefill or another scheduling_policy than fcfs; remove one of them"
        )
    return without_overlap(group)


def without_overlap(group: Group) -> Group:
    """The group whose steps wait for the outputs of those before."""
    return _with_parameter(group, _OVERLAP, 0)


def with_host_gap(group: Group, *, tiers: bool) -> Group:
    """The group with the profile's gap between steps where SGLang's devices wait for the host:
    without overlap, unless other micro-batches of pipeline stages run meanwhile. A gap that was
    given stays, and the outline stands for a server that overlaps.
    """
    engine = group.engine
    if engine.scheduler != SGLANG or not engine.is_default("host_gap_ps"):
        return group
    if overlaps(group) or group.pp > 1 or _is_outlined(group.engine, tiers=tiers):
        return group
    profile = load_profile(engine.engine_profile)
    origin = MappingProxyType(dict(engine.origin) | {"host_gap_ps": synchronous_origin(profile)})
    gap_ps = ns_to_ps(profile.host_gap_ns)
    return replace(group, engine=replace(engine, host_gap_ps=gap_ps, origin=origin))


def overlaps(group: Group) -> bool:
    """Whether two steps of SGLang's scheduler may be in flight."""
    parameters = dict(group.engine.scheduler_parameters)
    return group.engine.scheduler == SGLANG and parameters[_OVERLAP] == 1


def most_tokens(engine: EngineArgs) -> int:
    """The most tokens of one step: SGLang's budget limits prompts, and not verifications."""
    if engine.scheduler != SGLANG or engine.speculation is None:
        return engine.max_num_batched_tokens
    widest = max(engine.speculation.verified, engine.speculation.branches)
    return max(engine.max_num_batched_tokens, engine.max_num_seqs * widest)
