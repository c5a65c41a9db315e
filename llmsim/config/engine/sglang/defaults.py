"""What SGLang's server derives from its card, its layout and its model where nobody says it: the
token budget of a rank, the share of the memory that weights and KV take, the graphs of decodes, and
those of prompts.

Source: `_handle_gpu_memory_settings`, `_handle_piecewise_cuda_graph` and `_handle_data_parallelism`
of SGLang's server_args.py (0.5.6 to 0.5.18), arg_groups/memory_hook.py, cuda_graph_hook.py and
parallel_hook.py (0.5.19 to 0.5.23).
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
    """The options once the server is known; those that somebody gave stay as they are, and are
    those of a rank.

    An engine profile without rules for static memory and for graphs of prompts leaves all as it is.
    Raises InfeasibleError where the rule leaves no memory for weights.
    """
    profile = load_profile(args.engine_profile)
    rule = profile.static_memory
    if rule is None:
        return args
    budget = _server_budget(args, server)
    ranked = _of_rank(args, server)
    ranked = replace(
        ranked,
        cuda_graph_sizes=_decode_sizes(ranked, profile, server),
        prefill_graph_sizes=_prefill_sizes(ranked, profile, server),
    )
    if not args.is_default("gpu_memory_utilization"):
        return ranked
    memory_mib = server.memory_bytes / MIB
    reserved_mib = _Reserve(ranked, profile, rule, server, budget).mib
    share = (memory_mib - reserved_mib) / memory_mib
    if share <= 0:
        raise InfeasibleError(
            f"SGLang sets aside {reserved_mib / MIB_PER_GIB:.1f} GiB for chunks of "
            f"{budget:,} tokens and for graphs, and {server.hardware} has "
            f"{memory_mib / MIB_PER_GIB:.1f} GiB; lower max_num_batched_tokens, or state "
            "gpu_memory_utilization"
        )
    origin = {**ranked.origin, "gpu_memory_utilization": f"engine profile {profile.name}, its rule"}
    # `mem_fraction_static`, rounded as SGLang rounds it.
    return replace(ranked, gpu_memory_utilization=round(share, 3), origin=MappingProxyType(origin))


def _server_budget(args: EngineArgs, server: Server) -> int:
    """SGLang's `chunked_prefill_size`, which the ranks of data-parallel attention divide."""
    given = not args.is_default("max_num_batched_tokens")
    return args.max_num_batched_tokens * (server.attention_ranks if given else 1)


def _of_rank(args: EngineArgs, server: Server) -> EngineArgs:
    """The defaults of one rank: those of the server, divided."""
    if server.attention_ranks == 1:
        return args
    origin, changed = dict(args.origin), {}
    divided = {"max_num_batched_tokens"}
    if args.speculation is not None and load_profile(args.engine_profile).max_num_seqs_with_drafts:
        divided.add("max_num_seqs")
    for name in sorted(divided):
        if args.is_default(name):
            changed[name] = max(getattr(args, name) // server.attention_ranks, 1)
            origin[name] += f", divided by {server.attention_ranks} ranks"
    if "max_num_batched_tokens" in changed and args.is_default("max_num_scheduled_tokens"):
        changed["max_num_scheduled_tokens"] = changed["max_num_batched_tokens"]
        origin["max_num_scheduled_tokens"] = origin["max_num_batched_tokens"]
    return replace(args, origin=MappingProxyType(origin), **changed)


def _most_decodes(args: EngineArgs, profile: EngineProfile, server: Server) -> int:
    """Sequences of the largest graph of decodes by the card and the group; 0: no rule says it."""
    largest = profile.device_class(server.hardware, server.memory_bytes).decode_graphs
    if not largest:
        return 0
    few, many = largest
    most = many if server.devices >= LARGE_GROUP else few
    requests = _known_requests(args, server)
    rule = profile.static_memory
    if rule is not None and rule.decodes_of_requests and requests is not None:
        return min(most, requests)
    return most


def _known_requests(args: EngineArgs, server: Server) -> int | None:
    """SGLang's `max_running_requests` of all ranks; None: SGLang decides it later."""
    if args.is_default("max_num_seqs"):
        return None
    return args.max_num_seqs * server.attention_ranks


def _query_tokens(args: EngineArgs) -> int:
    return 1 if args.speculation is None else args.speculation.verified


def _decode_sizes(args: EngineArgs, profile: EngineProfile, server: Server) -> tuple[int, ...]:
    """Sizes of the graphs of decodes, in tokens, as far as the card, the group and the sequences of
    a rank let them reach.
    """
    most = _most_decodes(args, profile, server)
    own = args.is_default("cuda_graph_sizes") and args.cudagraph_mode != "NONE"
    if most == 0 or not own:
        return args.cuda_graph_sizes
    most = min(most, args.max_num_seqs)
    return profile.cuda_graphs.decodes_up_to(most, _query_tokens(args))


def _prefill_sizes(args: EngineArgs, profile: EngineProfile, server: Server) -> tuple[int, ...]:
    """Sizes of the graphs that steps with prompts replay; none where SGLang captures none."""
    rule = profile.prefill_graphs
    if rule is None or args.cudagraph_mode != "FULL_AND_PIECEWISE" or server.stages > 1:
        return ()
    apart = server.pd_type is not None or server.attention_ranks > 1
    if (apart and rule.alone) or server.pd_type == "decode":
        return ()
    return rule.sizes(args.max_num_batched_tokens, server.architectures, latent=server.latent)


class _Reserve(Struct, frozen=True):
    """What SGLang's rule leaves out for steps and graphs; `budget` is that of all ranks."""

    args: EngineArgs
    profile: EngineProfile
    rule: StaticMemory
    server: Server
    budget: int

    @property
    def mib(self) -> float:
        """All of it."""
        rule, server = self.rule, self.server
        reserved_mib = (
            rule.constant_mib
            + rule.mib_per_prompt_token * max(self._step_tokens, rule.least_prompt_tokens)
            + rule.mib_of_eight_devices * server.devices * server.stages / DEVICES_OF_A_SERVER
            + self._decodes_mib
            + self._prefill_graphs_mib
        )
        if server.memory_bytes > rule.floor_above_gib * BYTES_PER_GIB:
            reserved_mib = max(reserved_mib, rule.floor_mib)
        speculation = self.args.speculation
        drafts = speculation is not None and speculation.method != "ngram"
        return reserved_mib + rule.drafts_mib if drafts else reserved_mib

    def _serves_alone(self, role: str) -> bool:
        return self.rule.by_use and self.server.pd_type == role

    @property
    def _most_decodes(self) -> int:
        """Sequences of the largest graph of decodes."""
        args = self.args
        if not args.is_default("cuda_graph_sizes"):
            return max(args.cuda_graph_sizes, default=0) // _query_tokens(args)
        return _most_decodes(args, self.profile, self.server)

    @property
    def _step_tokens(self) -> int:
        """Tokens of the largest step: of prompts, or in decode servers of verified drafts."""
        if not self._serves_alone("decode"):
            return self.budget
        requests = _known_requests(self.args, self.server) or self._most_decodes or 1
        return requests * _query_tokens(self.args)

    @property
    def _decodes_mib(self) -> float:
        """For the sequences of the largest graph of decodes, and again for each of several ranks,
        which need it without graphs, too.
        """
        if self._serves_alone("prefill"):
            return 0.0
        rule, ranks, decodes = self.rule, self.server.attention_ranks, self._most_decodes
        captures = self.args.cudagraph_mode in MODES_OF_DECODES or not rule.by_use
        each_mib = rule.mib_per_decode if captures else 0.0
        if ranks > 1:
            each_mib += rule.mib_per_decode_of_a_rank * ranks
        if ranks > 1 and decodes > rule.many_decodes:
            each_mib += rule.mib_per_decode_of_many * ranks
        return each_mib * decodes

    @property
    def _prefill_graphs_mib(self) -> float:
        """For the graphs of prompts of the whole budget; those of latent attention count as one."""
        rule, prefill = self.rule, self.profile.prefill_graphs
        if prefill is None or not self.args.prefill_graph_sizes:
            return 0.0
        if self.server.latent:
            return rule.latent_prefill_graphs_mib
        captured = prefill.sizes(self.budget, self.server.architectures, latent=False)
        return rule.mib_per_prefill_graph * len(captured)
