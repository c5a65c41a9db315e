"""What SGLang's server derives from its card, its layout and its model where nobody says it: the
share of the memory that weights and KV take, the largest graphs of decodes, and graphs of prompts.

Source: `_handle_gpu_memory_settings` and `_handle_piecewise_cuda_graph` of SGLang's server_args.py
(0.5.6 to 0.5.16), arg_groups/memory_hook.py and arg_groups/cuda_graph_hook.py (0.5.17 to 0.5.23).
"""

from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.engine.args import EngineArgs
from llmsim.config.engine.profile import EngineProfile, StaticMemory, load_profile
from llmsim.config.units import BYTES_PER_GIB

FULL_MODES = ("FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")
LARGE_GROUP = 4
"""Devices from which a group's decodes have the larger graphs."""
DEVICES_OF_A_SERVER = 8
MIB = 1 << 20


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
    """
    profile = load_profile(args.engine_profile)
    decodes = args.cuda_graph_sizes
    most = profile.device_class(server.hardware, server.memory_bytes).decode_graphs
    if most and args.is_default("cuda_graph_sizes"):
        largest = most[server.devices >= LARGE_GROUP]
        decodes = tuple(size for size in decodes if size <= largest)
    args = replace(args, cuda_graph_sizes=decodes)
    args = replace(args, prefill_graph_sizes=_prefill_sizes(args, profile, server))
    rule = profile.static_memory
    if rule is None or not args.is_default("gpu_memory_utilization"):
        return args
    share = _share(args, rule, server)
    origin = {**args.origin, "gpu_memory_utilization": f"engine profile {profile.name}, its rule"}
    return replace(args, gpu_memory_utilization=share, origin=MappingProxyType(origin))


def _prefill_sizes(args: EngineArgs, profile: EngineProfile, server: Server) -> tuple[int, ...]:
    """Sizes of the graphs that steps with prompts replay; none where SGLang captures none."""
    rule = profile.prefill_graphs
    if rule is None or args.cudagraph_mode != "FULL_AND_PIECEWISE" or server.stages > 1:
        return ()
    apart = server.pd_type is not None or server.attention_ranks > 1
    if (apart and rule.alone) or server.pd_type == "decode":
        return ()
    return rule.sizes(args.max_num_batched_tokens, server.architectures, latent=server.latent)


def _share(args: EngineArgs, rule: StaticMemory, server: Server) -> float:
    """`mem_fraction_static`, rounded as SGLang rounds it."""
    decodes = 0
    if args.cudagraph_mode in FULL_MODES:
        decodes = max(args.cuda_graph_sizes, default=0)
    reserved_mib = rule.constant_mib
    reserved_mib += rule.mib_per_prompt_token * max(
        args.max_num_batched_tokens, rule.least_prompt_tokens
    )
    reserved_mib += rule.mib_per_decode * decodes
    reserved_mib += rule.mib_of_eight_devices * server.devices * server.stages / DEVICES_OF_A_SERVER
    ranks = server.attention_ranks
    if ranks > 1:
        reserved_mib += rule.mib_per_decode_of_a_rank * decodes * ranks
    if ranks > 1 and decodes > rule.many_decodes:
        reserved_mib += rule.mib_per_decode_of_many * decodes * ranks
    if args.prefill_graph_sizes:
        each = rule.mib_per_prefill_graph * len(args.prefill_graph_sizes)
        reserved_mib += rule.latent_prefill_graphs_mib if server.latent else each
    if server.memory_bytes > rule.floor_above_gib * BYTES_PER_GIB:
        reserved_mib = max(reserved_mib, rule.floor_mib)
    if args.speculation is not None and args.speculation.method != "ngram":
        reserved_mib += rule.drafts_mib
    memory_mib = server.memory_bytes / MIB
    return round((memory_mib - reserved_mib) / memory_mib, 3)
