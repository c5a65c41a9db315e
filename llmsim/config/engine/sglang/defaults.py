"""What SGLang's server derives from its card, its layout and its model where nobody says it: the
share of the memory that weights and KV take, the largest graphs of decodes, and graphs of prompts.

Source: `_handle_gpu_memory_settings` and `_handle_piecewise_cuda_graph` of SGLang's server_args.py
(0.5.6 to 0.5.16), arg_groups/memory_hook.py and arg_groups/cuda_graph_hook.py (0.5.17 to 0.5.23).
"""

from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.profile import (
    MODES_OF_DECODES,
    EngineProfile,
    StaticMemory,
    load_profile,
)
from llmsim.config.errors import InfeasibleError
from llmsim.config.units import BYTES_PER_GIB

LARGE_GROUP = 4
"""Devices from which a group's decodes have the larger graphs."""
DEVICES_OF_A_SERVER = 8
MIB = 1 << 20
MIB_PER_GIB = 1 << 10


class Server(Struct, frozen=True):
    """What SGLang's defaults depend on besides the engine's options."""

    hardware: str
    memory_bytes: int
    devices: int = 1
    """Of one pipeline stage of the group."""
    stages: int = 1
    attention_ranks: int = 1
    """Ranks of data-parallel attention that run in lock-step."""
    pd_type: str | None = None
    architectures: tuple[str, ...] = ()
    """Names in the model's config.json."""
    latent: bool = False
    """The model has multi-head latent attention."""


def with_server_defaults(args: EngineArgs, server: Server) -> EngineArgs:
    """The options once the server is known; those that somebody gave stay as they are.

    An engine profile without rules for static memory and for graphs of prompts leaves all as it is.
    Raises InfeasibleError where the rule leaves no memory for weights.
    """
    profile = load_profile(args.engine_profile)
    args = replace(
        args,
        cuda_graph_sizes=_decode_sizes(args, profile, server),
        prefill_graph_sizes=_prefill_sizes(args, profile, server),
    )
    rule = profile.static_memory
    if rule is None or not args.is_default("gpu_memory_utilization"):
        return args
    memory_mib = server.memory_bytes / MIB
    reserved_mib = _reserved_mib(args, rule, server)
    share = (memory_mib - reserved_mib) / memory_mib
    if share <= 0:
        raise InfeasibleError(
            f"SGLang sets aside {reserved_mib / MIB_PER_GIB:.1f} GiB for chunks of "
            f"{args.max_num_batched_tokens:,} tokens and for graphs, and {server.hardware} has "
            f"{memory_mib / MIB_PER_GIB:.1f} GiB; lower max_num_batched_tokens, or state "
            "gpu_memory_utilization"
        )
    origin = {**args.origin, "gpu_memory_utilization": f"engine profile {profile.name}, its rule"}
    # `mem_fraction_static`, rounded as SGLang rounds it.
    return replace(args, gpu_memory_utilization=round(share, 3), origin=MappingProxyType(origin))


def _decode_sizes(args: EngineArgs, profile: EngineProfile, server: Server) -> tuple[int, ...]:
    """Sizes of the graphs of decodes, as far as the card and the group let them reach."""
    largest = profile.device_class(server.hardware, server.memory_bytes).decode_graphs
    if not largest or not args.is_default("cuda_graph_sizes"):
        return args.cuda_graph_sizes
    few, many = largest
    most = many if server.devices >= LARGE_GROUP else few
    return tuple(size for size in args.cuda_graph_sizes if size <= most)


def _prefill_sizes(args: EngineArgs, profile: EngineProfile, server: Server) -> tuple[int, ...]:
    """Sizes of the graphs that steps with prompts replay; none where SGLang captures none."""
    rule = profile.prefill_graphs
    if rule is None or args.cudagraph_mode != "FULL_AND_PIECEWISE" or server.stages > 1:
        return ()
    apart = server.pd_type is not None or server.attention_ranks > 1
    if (apart and rule.alone) or server.pd_type == "decode":
        return ()
    return rule.sizes(args.max_num_batched_tokens, server.architectures, latent=server.latent)


def _reserved_mib(args: EngineArgs, rule: StaticMemory, server: Server) -> float:
    """What the rule leaves out for steps and graphs."""
    prompt_tokens = max(args.max_num_batched_tokens, rule.least_prompt_tokens)
    servers = server.devices * server.stages / DEVICES_OF_A_SERVER
    reserved_mib = (
        rule.constant_mib
        + rule.mib_per_prompt_token * prompt_tokens
        + rule.mib_of_eight_devices * servers
        + _decodes_mib(args, rule, server.attention_ranks)
        + _prefill_graphs_mib(args, rule, latent=server.latent)
    )
    if server.memory_bytes > rule.floor_above_gib * BYTES_PER_GIB:
        reserved_mib = max(reserved_mib, rule.floor_mib)
    drafts = args.speculation is not None and args.speculation.method != "ngram"
    return reserved_mib + rule.drafts_mib if drafts else reserved_mib


def _decodes_mib(args: EngineArgs, rule: StaticMemory, ranks: int) -> float:
    """For the sequences of the largest graph of decodes, and again for each of several ranks."""
    if args.cudagraph_mode not in MODES_OF_DECODES:
        return 0.0
    decodes = max(args.cuda_graph_sizes, default=0)
    each_mib = rule.mib_per_decode
    if ranks > 1:
        each_mib += rule.mib_per_decode_of_a_rank * ranks
    if ranks > 1 and decodes > rule.many_decodes:
        each_mib += rule.mib_per_decode_of_many * ranks
    return each_mib * decodes


def _prefill_graphs_mib(args: EngineArgs, rule: StaticMemory, *, latent: bool) -> float:
    """For the graphs of prompts; those of latent attention count as one."""
    if latent and args.prefill_graph_sizes:
        return rule.latent_prefill_graphs_mib
    return rule.mib_per_prefill_graph * len(args.prefill_graph_sizes)
