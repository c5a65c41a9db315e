"""
llmsim's serving core: scheduler, KV cache, step programs and the event loop.
"""

from collections.abc import Mapping, Sequence
import enum
from typing import Annotated, overload

import numpy
from numpy.typing import NDArray

from llmsim import _native_engine

engine = _native_engine


sources_sha256: str = ...

class ContentHasher:
    """Names the content of full token blocks by dense ids from 1."""

    def __init__(self, granularity: int) -> None: ...

    def add(self, input_ids: list, output_ids: object | None = None) -> None:
        """The next request, as lists of token ids."""

    def skip(self) -> None:
        """The next request has no token ids."""

    def offsets(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

    def keys(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]: ...

    def take_keys(self) -> Annotated[NDArray[numpy.uint64], dict(shape=(None,))]:
        """The keys of all requests since the last call, which are not kept."""

class Attention:
    """Attention of one layer, priced by the batch; used by one Program."""

    @staticmethod
    def mixed(axes: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], skew_ps: int, provenance: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, window: int = 0, chunked: bool = False, queries_per_kv_head: int = 1, prompts_apart: bool = False) -> Attention: ...

    @staticmethod
    def split(prefill_axes: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], prefill_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], decode_axes: Sequence[Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]], decode_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], mixed_ps: int, skew_ps: int, prefill_provenance: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, decode_provenance: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, window: int = 0, chunked: bool = False, queries_per_kv_head: int = 1, shared_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, latent_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, latent_provenance: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, latent_shared_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None, latent_rule: Sequence[int] = [0, 0, 0]) -> Attention: ...

class Feature(enum.Enum):
    TOKENS = 0

    SEQUENCES = 1

    GATHERED = 2

    DECODES = 3

    PREFILLS = 4

    ADAPTER_TOKENS = 5

    ADAPTER_ROWS = 6

    ADAPTERS = 7

    ADAPTER_EXPERTS = 8

    ADAPTER_LOADS = 9

    ADAPTER_READS = 10

    ENCODER_TOKENS = 11

    ENCODER_PAIRS = 12

class NodeKind(enum.Enum):
    COMPUTE = 0

    ATTENTION = 1

    COLLECTIVE = 2

    STAGE_SEND = 3

class SampledCostTable:
    """
    Times sampled before the run: [layer][draw][token count]; a counter chooses the draw.
    """

    def __init__(self, tokens: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], layers: int, draws: int, ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], seed: int, provenance: int, first_layer: int = 0, in_order: bool = False) -> None: ...

class Operator:
    def __init__(self, name: str, kind: NodeKind, feature: Feature, part: int, repeat: int, ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], provenance: Annotated[NDArray[numpy.uint8], dict(shape=(None,), order='C', device='cpu', writable=False)], stage: int = 0, attention: int = 0, sampled: SampledCostTable | None = None, layers: Sequence[int] = [], caches: bool = False) -> None: ...

    @property
    def name(self) -> str: ...

class LowerBound:
    """What peak_rates allows; zeros are not checked."""

    def __init__(self) -> None: ...

    @property
    def weight_bytes(self) -> int: ...

    @weight_bytes.setter
    def weight_bytes(self, arg: int, /) -> None: ...

    @property
    def kv_bytes_per_token(self) -> int: ...

    @kv_bytes_per_token.setter
    def kv_bytes_per_token(self, arg: int, /) -> None: ...

    @property
    def cached_kv_bytes(self) -> int: ...

    @cached_kv_bytes.setter
    def cached_kv_bytes(self, arg: int, /) -> None: ...

    @property
    def bytes_per_s(self) -> int: ...

    @bytes_per_s.setter
    def bytes_per_s(self, arg: int, /) -> None: ...

    @property
    def flops_per_token(self) -> int: ...

    @flops_per_token.setter
    def flops_per_token(self, arg: int, /) -> None: ...

    @property
    def flops_per_s(self) -> int: ...

    @flops_per_s.setter
    def flops_per_s(self, arg: int, /) -> None: ...

class GraphMode(enum.Enum):
    NONE = 0

    PIECEWISE = 1

    FULL = 2

class GraphRules:
    """Which graph a batch replays, and the host's time for each kind (ps)."""

    def __init__(self) -> None: ...

    @property
    def query(self) -> int: ...

    @query.setter
    def query(self, arg: int, /) -> None: ...

    @property
    def largest_decode(self) -> int: ...

    @largest_decode.setter
    def largest_decode(self, arg: int, /) -> None: ...

    @property
    def largest_mixed(self) -> int: ...

    @largest_mixed.setter
    def largest_mixed(self, arg: int, /) -> None: ...

    @property
    def mixed_takes_decodes(self) -> bool: ...

    @mixed_takes_decodes.setter
    def mixed_takes_decodes(self, arg: bool, /) -> None: ...

    @property
    def mixed(self) -> GraphMode: ...

    @mixed.setter
    def mixed(self, arg: GraphMode, /) -> None: ...

    @property
    def padded_decode(self) -> list[int]: ...

    @padded_decode.setter
    def padded_decode(self, arg: Sequence[int], /) -> None: ...

    @property
    def host_ps(self) -> list[list[int]]: ...

    @host_ps.setter
    def host_ps(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def prepare_ps(self) -> int: ...

    @prepare_ps.setter
    def prepare_ps(self, arg: int, /) -> None: ...

    @property
    def prepare_sequence_ps(self) -> int: ...

    @prepare_sequence_ps.setter
    def prepare_sequence_ps(self, arg: int, /) -> None: ...

    @property
    def posts_reads(self) -> bool: ...

    @posts_reads.setter
    def posts_reads(self, arg: bool, /) -> None: ...

class PowerTables:
    """
    What a step's operators do on a device whose power is limited: mW, pJ and ps; a window of 0 is no limit.
    """

    def __init__(self, limit_mw: int, idle_mw: int, window_ps: int, stages: int) -> None: ...

    def add_operator(self, feature: Feature, switching_pj: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], traffic_pj: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], clocked_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """Of all its executions in a step, by the rows of its feature."""

    def add_attention(self, switching_pj_per_pair: int, traffic_pj_per_token: int, layers: int) -> None:
        """
        Of the next kind, by pair of a prompt's token and one that it sees, and by token of KV that is read.
        """

class Program:
    def __init__(self, operators: Sequence[Operator], attention: Attention, padded_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], floor: LowerBound, host_gap_ps: int, largest_graph: int = 0, other_attentions: Sequence[Attention] = [], context_ranks: int = 1) -> None: ...

    def set_graphs(self, rules: GraphRules) -> None: ...

    @property
    def num_stages(self) -> int: ...

    def set_host_sequence(self, each_ps: int) -> None: ...

    def graph(self, tokens: Sequence[int]) -> tuple[GraphMode, int]:
        """
        What a batch of sequences with so many tokens replays, and the tokens that it computes.
        """

    def set_power(self, tables: PowerTables) -> None:
        """Devices lower their clock where their mean power reaches the limit."""

    def give_drafts_rows(self) -> None:
        """Verified drafts count as sequences in the tables."""

    def step_ps(self, items: Sequence[Sequence[int]]) -> int:
        """Duration of a step of (tokens, computed before) items, ps."""

    def attention_ps(self, items: Sequence[Sequence[int]]) -> list[int]:
        """
        One layer of each kind of attention, ps; 0 for kinds that the program does not have.
        """

    def device_work(self, items: Sequence[Sequence[int]]) -> tuple[int, int, int]:
        """
        Of a step on one device: pJ that its operations switch and that its bytes take, and ps that the clock limits; zeros without tables of power.
        """

    def rank_graph(self, items: Sequence[Sequence[int]]) -> tuple[GraphMode, int, int]:
        """
        What a rank replays of a batch, its tokens, and the tokens that it computes, if it is alone.
        """

    def padded(self, tokens: int, mode: GraphMode) -> int:
        """
        What members of a domain compute whose largest batch has so many tokens.
        """

    def place(self, items: Sequence[Sequence[int]], padded: int, gathered: int, adapters: Sequence[int] = []) -> list[int]:
        """Of each feature, what a step of this batch has, padding included."""

class QueueOrder(enum.Enum):
    FCFS = 0

    PRIORITY = 1

    SHORTEST = 2

    SLACK = 3

class QueueConfig:
    """Order of a waiting queue; the times (ps) are for SLACK."""

    def __init__(self) -> None: ...

    @property
    def order(self) -> QueueOrder: ...

    @order.setter
    def order(self, arg: QueueOrder, /) -> None: ...

    @property
    def ttft_target_ps(self) -> int: ...

    @ttft_target_ps.setter
    def ttft_target_ps(self, arg: int, /) -> None: ...

    @property
    def prefill_ps_per_token(self) -> int: ...

    @prefill_ps_per_token.setter
    def prefill_ps_per_token(self, arg: int, /) -> None: ...

class FreeOrder(enum.Enum):
    APPEND = 0

    UNKEYED_FIRST = 1

class CachedStates:
    """Which states a prefix cache keeps."""

    def __init__(self) -> None: ...

    @property
    def on(self) -> bool: ...

    @on.setter
    def on(self, arg: bool, /) -> None: ...

    @property
    def match_unit(self) -> int: ...

    @match_unit.setter
    def match_unit(self, arg: int, /) -> None: ...

    @property
    def cuts_last_block(self) -> bool: ...

    @cuts_last_block.setter
    def cuts_last_block(self, arg: bool, /) -> None: ...

    @property
    def frees_past_gaps(self) -> bool: ...

    @frees_past_gaps.setter
    def frees_past_gaps(self, arg: bool, /) -> None: ...

    @property
    def registers_again(self) -> bool: ...

    @registers_again.setter
    def registers_again(self, arg: bool, /) -> None: ...

    @property
    def checkpoint_alignment(self) -> int: ...

    @checkpoint_alignment.setter
    def checkpoint_alignment(self, arg: int, /) -> None: ...

class KvTables:
    """Tables of blocks of layers that keep different parts of a sequence."""

    def __init__(self) -> None: ...

    @property
    def windows(self) -> list[int]: ...

    @windows.setter
    def windows(self, arg: Sequence[int], /) -> None: ...

    @property
    def block_sizes(self) -> list[int]: ...

    @block_sizes.setter
    def block_sizes(self, arg: Sequence[int], /) -> None: ...

    @property
    def step_tokens(self) -> int: ...

    @step_tokens.setter
    def step_tokens(self, arg: int, /) -> None: ...

    @property
    def frees_processed(self) -> bool: ...

    @frees_processed.setter
    def frees_processed(self, arg: bool, /) -> None: ...

    @property
    def retention(self) -> int: ...

    @retention.setter
    def retention(self, arg: int, /) -> None: ...

    @property
    def held_behind(self) -> int: ...

    @held_behind.setter
    def held_behind(self, arg: int, /) -> None: ...

    @property
    def states(self) -> CachedStates: ...

    @states.setter
    def states(self, arg: CachedStates, /) -> None: ...

class KvCacheConfig:
    def __init__(self) -> None: ...

    @property
    def num_blocks(self) -> int: ...

    @num_blocks.setter
    def num_blocks(self, arg: int, /) -> None: ...

    @property
    def block_size(self) -> int: ...

    @block_size.setter
    def block_size(self, arg: int, /) -> None: ...

    @property
    def max_model_len(self) -> int: ...

    @max_model_len.setter
    def max_model_len(self, arg: int, /) -> None: ...

    @property
    def prefix_caching(self) -> bool: ...

    @prefix_caching.setter
    def prefix_caching(self, arg: bool, /) -> None: ...

    @property
    def tables(self) -> KvTables: ...

    @tables.setter
    def tables(self, arg: KvTables, /) -> None: ...

    @property
    def drops_last_hit(self) -> bool: ...

    @drops_last_hit.setter
    def drops_last_hit(self, arg: bool, /) -> None: ...

    @property
    def key_lookahead(self) -> int: ...

    @key_lookahead.setter
    def key_lookahead(self, arg: int, /) -> None: ...

    @property
    def unsettled_tokens(self) -> int: ...

    @unsettled_tokens.setter
    def unsettled_tokens(self, arg: int, /) -> None: ...

    @property
    def free_order(self) -> FreeOrder: ...

    @free_order.setter
    def free_order(self, arg: FreeOrder, /) -> None: ...

class StepLimits:
    """Limits of a step beyond its token budget."""

    def __init__(self) -> None: ...

    @property
    def long_prefill_token_threshold(self) -> int: ...

    @long_prefill_token_threshold.setter
    def long_prefill_token_threshold(self, arg: int, /) -> None: ...

    @property
    def adaptive_threshold(self) -> bool: ...

    @adaptive_threshold.setter
    def adaptive_threshold(self, arg: bool, /) -> None: ...

    @property
    def lone_prompt_uncapped(self) -> bool: ...

    @lone_prompt_uncapped.setter
    def lone_prompt_uncapped(self, arg: bool, /) -> None: ...

    @property
    def input_budget(self) -> int: ...

    @input_budget.setter
    def input_budget(self, arg: int, /) -> None: ...

    @property
    def draft_slots(self) -> int: ...

    @draft_slots.setter
    def draft_slots(self, arg: int, /) -> None: ...

    @property
    def pads_new_decodes(self) -> bool: ...

    @pads_new_decodes.setter
    def pads_new_decodes(self, arg: bool, /) -> None: ...

    @property
    def pads_hits(self) -> bool: ...

    @pads_hits.setter
    def pads_hits(self, arg: bool, /) -> None: ...

    @property
    def pads_within_context(self) -> bool: ...

    @pads_within_context.setter
    def pads_within_context(self, arg: bool, /) -> None: ...

    @property
    def paces_itself(self) -> bool: ...

    @paces_itself.setter
    def paces_itself(self, arg: bool, /) -> None: ...

    @property
    def max_num_active_seqs(self) -> int: ...

    @max_num_active_seqs.setter
    def max_num_active_seqs(self, arg: int, /) -> None: ...

    @property
    def max_loras(self) -> int: ...

    @max_loras.setter
    def max_loras(self, arg: int, /) -> None: ...

    @property
    def prefill_schedule_interval(self) -> int: ...

    @prefill_schedule_interval.setter
    def prefill_schedule_interval(self, arg: int, /) -> None: ...

class VersionRules:
    """What releases of vLLM after 0.24 decide otherwise; all off."""

    def __init__(self) -> None: ...

    @property
    def counts_every_victim(self) -> bool: ...

    @counts_every_victim.setter
    def counts_every_victim(self, arg: bool, /) -> None: ...

    @property
    def passes_own_victim(self) -> bool: ...

    @passes_own_victim.setter
    def passes_own_victim(self, arg: bool, /) -> None: ...

    @property
    def awaits_output(self) -> bool: ...

    @awaits_output.setter
    def awaits_output(self, arg: bool, /) -> None: ...

    @property
    def passed_over_first(self) -> bool: ...

    @passed_over_first.setter
    def passed_over_first(self, arg: bool, /) -> None: ...

    @property
    def keys_processed(self) -> bool: ...

    @keys_processed.setter
    def keys_processed(self, arg: bool, /) -> None: ...

    @property
    def admits_last_token(self) -> bool: ...

    @admits_last_token.setter
    def admits_last_token(self, arg: bool, /) -> None: ...

    @property
    def loads_without_drafts(self) -> bool: ...

    @loads_without_drafts.setter
    def loads_without_drafts(self, arg: bool, /) -> None: ...

    @property
    def loads_spare_verification(self) -> bool: ...

    @loads_spare_verification.setter
    def loads_spare_verification(self, arg: bool, /) -> None: ...

    @property
    def joins_verification(self) -> bool: ...

    @joins_verification.setter
    def joins_verification(self, arg: bool, /) -> None: ...

    @property
    def passes_over_cut(self) -> bool: ...

    @passes_over_cut.setter
    def passes_over_cut(self, arg: bool, /) -> None: ...

    @property
    def counts_running_loras(self) -> bool: ...

    @counts_running_loras.setter
    def counts_running_loras(self, arg: bool, /) -> None: ...

    @property
    def holders_first(self) -> bool: ...

    @holders_first.setter
    def holders_first(self, arg: bool, /) -> None: ...

    @property
    def delivers_kv(self) -> bool: ...

    @delivers_kv.setter
    def delivers_kv(self, arg: bool, /) -> None: ...

    @property
    def spares_busy_victims(self) -> bool: ...

    @spares_busy_victims.setter
    def spares_busy_victims(self, arg: bool, /) -> None: ...

class Acceptance:
    """Chance of each draft, in 2^-53, given that those before it hold."""

    def __init__(self) -> None: ...

    @property
    def chance(self) -> list[int]: ...

    @chance.setter
    def chance(self, arg: Sequence[int], /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    def accepted(self, request: int, emitted: int, drafts: int) -> int:
        """
        How many of the drafts hold that follow the request's `emitted` tokens.
        """

class RequestSpeculation:
    """What a trace says of the drafts of each request, by row."""

    def __init__(self, depth: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], chance_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], chances: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], counts_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], accepted_counts: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

class SpeculationConfig:
    """vLLM's speculative_config, resolved."""

    def __init__(self) -> None: ...

    @property
    def tokens(self) -> int: ...

    @tokens.setter
    def tokens(self, arg: int, /) -> None: ...

    @property
    def lookahead(self) -> int: ...

    @lookahead.setter
    def lookahead(self, arg: int, /) -> None: ...

    @property
    def prompt_lookahead(self) -> int: ...

    @prompt_lookahead.setter
    def prompt_lookahead(self, arg: int, /) -> None: ...

    @property
    def tokens_by_sequences(self) -> list[int]: ...

    @tokens_by_sequences.setter
    def tokens_by_sequences(self, arg: Sequence[int], /) -> None: ...

    @property
    def proposal_chance(self) -> int: ...

    @proposal_chance.setter
    def proposal_chance(self, arg: int, /) -> None: ...

    @property
    def acceptance(self) -> Acceptance: ...

    @acceptance.setter
    def acceptance(self, arg: Acceptance, /) -> None: ...

    @property
    def requests(self) -> bool: ...

    @requests.setter
    def requests(self, requests: RequestSpeculation | None) -> None: ...

    def drafts_after(self, sequences: int) -> int: ...

    def proposes(self, request: int, emitted: int) -> bool: ...

class Drafter:
    """
    The model that proposes drafts: its first pass, and the pass of each further one.
    """

    def __init__(self, first: Program, next: Program, slots: int, parallel: bool, branches: int = 1) -> None: ...

    def expand(self, first: ExpandedConfig, next: ExpandedConfig) -> None:
        """Every rank's nodes of its passes run in the engine."""

class EncoderInputs:
    """Parts of prompts that an encoder computes, by row."""

    def __init__(self, offsets: Sequence[int], inputs: Sequence[tuple[int, int, int]]) -> None:
        """
        inputs: first token, tokens and content; offsets: where each row's begin, and the end.
        """

class EncoderRules:
    """What vLLM after 0.24 decides otherwise."""

    def __init__(self) -> None: ...

    @property
    def encodes_ahead(self) -> bool: ...

    @encodes_ahead.setter
    def encodes_ahead(self, arg: bool, /) -> None: ...

    @property
    def holds_repeated(self) -> bool: ...

    @holds_repeated.setter
    def holds_repeated(self, arg: bool, /) -> None: ...

    @property
    def counts_repeated(self) -> bool: ...

    @counts_repeated.setter
    def counts_repeated(self, arg: bool, /) -> None: ...

    @property
    def keeps_first_whole(self) -> bool: ...

    @keeps_first_whole.setter
    def keeps_first_whole(self, arg: bool, /) -> None: ...

    @property
    def frees_at_once(self) -> bool: ...

    @frees_at_once.setter
    def frees_at_once(self, arg: bool, /) -> None: ...

class EncoderConfig:
    """Tokens that an encoder computes, and keeps."""

    def __init__(self) -> None: ...

    @property
    def rules(self) -> EncoderRules: ...

    @rules.setter
    def rules(self, arg: EncoderRules, /) -> None: ...

    @property
    def step_tokens(self) -> int: ...

    @step_tokens.setter
    def step_tokens(self, arg: int, /) -> None: ...

    @property
    def cache_tokens(self) -> int: ...

    @cache_tokens.setter
    def cache_tokens(self, arg: int, /) -> None: ...

    @property
    def whole_inputs(self) -> bool: ...

    @whole_inputs.setter
    def whole_inputs(self, arg: bool, /) -> None: ...

    @property
    def pair_tokens(self) -> int:
        """0: its time is not modelled."""

    @pair_tokens.setter
    def pair_tokens(self, arg: int, /) -> None: ...

    @property
    def inputs(self) -> bool: ...

    @inputs.setter
    def inputs(self, inputs: EncoderInputs | None) -> None: ...

class LoraSlotsConfig:
    """Adapters on the devices and in host memory."""

    def __init__(self) -> None: ...

    @property
    def slots(self) -> int:
        """0: nobody asks where adapters are."""

    @slots.setter
    def slots(self, arg: int, /) -> None: ...

    @property
    def host_slots(self) -> int: ...

    @host_slots.setter
    def host_slots(self, arg: int, /) -> None: ...

    @property
    def experts(self) -> list[int]:
        """By tokens of one adapter: experts that they are expected to need."""

    @experts.setter
    def experts(self, arg: Sequence[int], /) -> None: ...

class LoraSlots:
    """Where the adapters of a group are."""

    def __init__(self, config: LoraSlotsConfig) -> None: ...

    def begin_step(self, requests: Sequence[tuple[int, int, int]]) -> list[int]:
        """
        What a step of (adapter, tokens, rows of logits) has, as in `adapter_use` of a schedule: tokens, rows, adapters, experts, loads, reads.
        """

class LoadFailuresConfig:
    """Chance that a load of KV fails, in 2^-53, and what comes of it."""

    def __init__(self) -> None: ...

    @property
    def chance(self) -> int: ...

    @chance.setter
    def chance(self, arg: int, /) -> None: ...

    @property
    def seed(self) -> int: ...

    @seed.setter
    def seed(self, arg: int, /) -> None: ...

    @property
    def recomputes(self) -> bool: ...

    @recomputes.setter
    def recomputes(self, arg: bool, /) -> None: ...

    @property
    def loses_all(self) -> bool: ...

    @loses_all.setter
    def loses_all(self, arg: bool, /) -> None: ...

class LoadFailures:
    """Says of each load how much of it comes."""

    def __init__(self, config: LoadFailuresConfig) -> None: ...

    def next(self, request: int, first: int, end: int, piece: int) -> int:
        """
        Up to where KV is there after the request's next load, of the tokens [first, end).
        """

class HostCacheWrite(enum.Enum):
    THROUGH = 0

    THROUGH_SELECTIVE = 1

    BACK = 2

class StoragePrefetch(enum.Enum):
    BEST_EFFORT = 0

    WAIT_COMPLETE = 1

    TIMEOUT = 2

class HostStorageConfig:
    """Storage behind a pool in host memory."""

    def __init__(self) -> None: ...

    @property
    def prefetch_threshold(self) -> int:
        """Tokens; fewer are not looked for. 0: there is no storage."""

    @prefetch_threshold.setter
    def prefetch_threshold(self, arg: int, /) -> None: ...

    @property
    def prefetch(self) -> StoragePrefetch: ...

    @prefetch.setter
    def prefetch(self, arg: StoragePrefetch, /) -> None: ...

    @property
    def timeout_ps(self) -> int: ...

    @timeout_ps.setter
    def timeout_ps(self, arg: int, /) -> None: ...

    @property
    def timeout_per_page_ps(self) -> int: ...

    @timeout_per_page_ps.setter
    def timeout_per_page_ps(self, arg: int, /) -> None: ...

    @property
    def retry_passes(self) -> int:
        """0: nobody looks again for what was not there."""

    @retry_passes.setter
    def retry_passes(self, arg: int, /) -> None: ...

    @property
    def most_retries(self) -> int: ...

    @most_retries.setter
    def most_retries(self, arg: int, /) -> None: ...

    @property
    def query_latency_ps(self) -> int: ...

    @query_latency_ps.setter
    def query_latency_ps(self, arg: int, /) -> None: ...

    @property
    def read_latency_ps(self) -> int: ...

    @read_latency_ps.setter
    def read_latency_ps(self, arg: int, /) -> None: ...

    @property
    def write_latency_ps(self) -> int: ...

    @write_latency_ps.setter
    def write_latency_ps(self, arg: int, /) -> None: ...

    @property
    def read_ps_per_token(self) -> int: ...

    @read_ps_per_token.setter
    def read_ps_per_token(self, arg: int, /) -> None: ...

    @property
    def write_ps_per_token(self) -> int: ...

    @write_ps_per_token.setter
    def write_ps_per_token(self, arg: int, /) -> None: ...

    @property
    def capacity_bytes(self) -> int:
        """0: everything fits."""

    @capacity_bytes.setter
    def capacity_bytes(self, arg: int, /) -> None: ...

    @property
    def page_bytes(self) -> int: ...

    @page_bytes.setter
    def page_bytes(self, arg: int, /) -> None: ...

class HostCacheConfig:
    """Pages of KV in host memory below a scheduler's prefix cache."""

    def __init__(self) -> None: ...

    @property
    def pages(self) -> int:
        """0: there are none."""

    @pages.setter
    def pages(self, arg: int, /) -> None: ...

    @property
    def window_pages(self) -> int:
        """Of layers with a window."""

    @window_pages.setter
    def window_pages(self, arg: int, /) -> None: ...

    @property
    def states(self) -> int:
        """Of layers that keep them."""

    @states.setter
    def states(self, arg: int, /) -> None: ...

    @property
    def write(self) -> HostCacheWrite: ...

    @write.setter
    def write(self, arg: HostCacheWrite, /) -> None: ...

    @property
    def load_back_tokens(self) -> int:
        """Fewer tokens are computed again instead of loaded."""

    @load_back_tokens.setter
    def load_back_tokens(self, arg: int, /) -> None: ...

    @property
    def copy_latency_ps(self) -> int: ...

    @copy_latency_ps.setter
    def copy_latency_ps(self, arg: int, /) -> None: ...

    @property
    def write_ps_per_token(self) -> int: ...

    @write_ps_per_token.setter
    def write_ps_per_token(self, arg: int, /) -> None: ...

    @property
    def load_ps_per_token(self) -> int: ...

    @load_ps_per_token.setter
    def load_ps_per_token(self, arg: int, /) -> None: ...

    @property
    def write_ps_per_window_token(self) -> int: ...

    @write_ps_per_window_token.setter
    def write_ps_per_window_token(self, arg: int, /) -> None: ...

    @property
    def load_ps_per_window_token(self) -> int: ...

    @load_ps_per_window_token.setter
    def load_ps_per_window_token(self, arg: int, /) -> None: ...

    @property
    def write_ps_per_state(self) -> int: ...

    @write_ps_per_state.setter
    def write_ps_per_state(self, arg: int, /) -> None: ...

    @property
    def load_ps_per_state(self) -> int: ...

    @load_ps_per_state.setter
    def load_ps_per_state(self, arg: int, /) -> None: ...

    @property
    def layers(self) -> int:
        """
        Layers that are loaded one by one, while the step computes those before.
        """

    @layers.setter
    def layers(self, arg: int, /) -> None: ...

    @property
    def storage(self) -> HostStorageConfig: ...

    @storage.setter
    def storage(self, arg: HostStorageConfig, /) -> None: ...

class WindowPoolConfig:
    """Pages of KV that layers with a window have for themselves."""

    def __init__(self) -> None: ...

    @property
    def window(self) -> int:
        """
        Tokens that such a layer sees before the one that attends; 0: there is no pool.
        """

    @window.setter
    def window(self, arg: int, /) -> None: ...

    @property
    def pages(self) -> int: ...

    @pages.setter
    def pages(self, arg: int, /) -> None: ...

class StatePoolConfig:
    """
    States of linear attention and Mamba layers beside a scheduler's prefix cache.
    """

    def __init__(self) -> None: ...

    @property
    def slots(self) -> int:
        """0: there is no such pool."""

    @slots.setter
    def slots(self, arg: int, /) -> None: ...

    @property
    def spare(self) -> int:
        """
        Slots of each running request for states that the prefix cache gets; 0: it gets copies of the request's own.
        """

    @spare.setter
    def spare(self, arg: int, /) -> None: ...

    @property
    def lazy(self) -> bool:
        """
        Whether a second spare slot is taken for the step that writes to it alone.
        """

    @lazy.setter
    def lazy(self, arg: bool, /) -> None: ...

    @property
    def verified(self) -> int:
        """Tokens of a step that verifies drafts, where slots are lazy."""

    @verified.setter
    def verified(self, arg: int, /) -> None: ...

    @property
    def prompt_interval(self) -> int:
        """Tokens of a prompt from one state in a spare slot to the next."""

    @prompt_interval.setter
    def prompt_interval(self, arg: int, /) -> None: ...

    @property
    def answer_interval(self) -> int:
        """Likewise, of an answer."""

    @answer_interval.setter
    def answer_interval(self, arg: int, /) -> None: ...

class Sessions:
    """
    The session of each request, and its round, from the successors of calls.
    """

    def __init__(self, next_call: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None: ...

    @property
    def session(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """Row of the first call of each row's session."""

    @property
    def round(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]:
        """Place of each row among the calls of its session, from 0."""

class SchedulerConfig:
    """Options of a scheduler, by its name."""

    def __init__(self) -> None: ...

    @property
    def scheduler(self) -> str: ...

    @scheduler.setter
    def scheduler(self, arg: str, /) -> None: ...

    @property
    def parameters(self) -> dict[str, int]:
        """The scheduler's own, by name."""

    @parameters.setter
    def parameters(self, arg: Mapping[str, int], /) -> None: ...

    def rank_by(self, name: str, parameters: Mapping[str, int] = {}) -> None:
        """A native ranking orders this group's requests."""

    @property
    def sessions(self) -> bool: ...

    @sessions.setter
    def sessions(self, arg: Sessions, /) -> None: ...

    @property
    def max_num_seqs(self) -> int: ...

    @max_num_seqs.setter
    def max_num_seqs(self, arg: int, /) -> None: ...

    @property
    def max_num_scheduled_tokens(self) -> int: ...

    @max_num_scheduled_tokens.setter
    def max_num_scheduled_tokens(self, arg: int, /) -> None: ...

    @property
    def long_prefill_token_threshold(self) -> int: ...

    @long_prefill_token_threshold.setter
    def long_prefill_token_threshold(self, arg: int, /) -> None: ...

    @property
    def limits(self) -> StepLimits: ...

    @limits.setter
    def limits(self, arg: StepLimits, /) -> None: ...

    @property
    def rules(self) -> VersionRules: ...

    @rules.setter
    def rules(self, arg: VersionRules, /) -> None: ...

    @property
    def chunked_prefill(self) -> bool: ...

    @chunked_prefill.setter
    def chunked_prefill(self, arg: bool, /) -> None: ...

    @property
    def reserve_full_isl(self) -> bool: ...

    @reserve_full_isl.setter
    def reserve_full_isl(self, arg: bool, /) -> None: ...

    @property
    def async_scheduling(self) -> bool: ...

    @async_scheduling.setter
    def async_scheduling(self, arg: bool, /) -> None: ...

    @property
    def output_length_known(self) -> bool: ...

    @output_length_known.setter
    def output_length_known(self, arg: bool, /) -> None: ...

    @property
    def watermark_blocks(self) -> int: ...

    @watermark_blocks.setter
    def watermark_blocks(self, arg: int, /) -> None: ...

    @property
    def order(self) -> QueueOrder: ...

    @order.setter
    def order(self, arg: QueueOrder, /) -> None: ...

    @property
    def queue(self) -> QueueConfig: ...

    @queue.setter
    def queue(self, arg: QueueConfig, /) -> None: ...

    @property
    def prefill_first(self) -> bool: ...

    @prefill_first.setter
    def prefill_first(self, arg: bool, /) -> None: ...

    @property
    def decode_only(self) -> bool: ...

    @decode_only.setter
    def decode_only(self, arg: bool, /) -> None: ...

    @property
    def kv_producer(self) -> bool: ...

    @kv_producer.setter
    def kv_producer(self, arg: bool, /) -> None: ...

    @property
    def kv_consumer(self) -> bool: ...

    @kv_consumer.setter
    def kv_consumer(self, arg: bool, /) -> None: ...

    @property
    def prefill_all_but_last_token(self) -> bool: ...

    @prefill_all_but_last_token.setter
    def prefill_all_but_last_token(self, arg: bool, /) -> None: ...

    @property
    def decode_interval(self) -> int: ...

    @decode_interval.setter
    def decode_interval(self, arg: int, /) -> None: ...

    @property
    def defer_block_free(self) -> bool: ...

    @defer_block_free.setter
    def defer_block_free(self, arg: bool, /) -> None: ...

    @property
    def stages(self) -> int: ...

    @stages.setter
    def stages(self, arg: int, /) -> None: ...

    @property
    def micro_batches(self) -> int: ...

    @micro_batches.setter
    def micro_batches(self, arg: int, /) -> None: ...

    @property
    def tiered(self) -> bool: ...

    @tiered.setter
    def tiered(self, arg: bool, /) -> None: ...

    @property
    def disable_fast_path(self) -> bool: ...

    @disable_fast_path.setter
    def disable_fast_path(self, arg: bool, /) -> None: ...

    @property
    def speculation(self) -> SpeculationConfig: ...

    @speculation.setter
    def speculation(self, arg: SpeculationConfig, /) -> None: ...

    @property
    def encoder(self) -> EncoderConfig: ...

    @encoder.setter
    def encoder(self, arg: EncoderConfig, /) -> None: ...

    @property
    def lora(self) -> LoraSlotsConfig: ...

    @lora.setter
    def lora(self, arg: LoraSlotsConfig, /) -> None: ...

    @property
    def host_cache(self) -> HostCacheConfig: ...

    @host_cache.setter
    def host_cache(self, arg: HostCacheConfig, /) -> None: ...

    @property
    def window_pool(self) -> WindowPoolConfig: ...

    @window_pool.setter
    def window_pool(self, arg: WindowPoolConfig, /) -> None: ...

    @property
    def state_pool(self) -> StatePoolConfig: ...

    @state_pool.setter
    def state_pool(self, arg: StatePoolConfig, /) -> None: ...

    @property
    def offloading(self) -> OffloadingConfig: ...

    @offloading.setter
    def offloading(self, arg: OffloadingConfig, /) -> None: ...

    @property
    def load_failures(self) -> LoadFailuresConfig: ...

    @load_failures.setter
    def load_failures(self, arg: LoadFailuresConfig, /) -> None: ...

    @property
    def kv(self) -> KvCacheConfig: ...

    @kv.setter
    def kv(self, arg: KvCacheConfig, /) -> None: ...

    def with_policies(self, policies: Policies) -> SchedulerConfig:
        """The same, but for these decisions."""

def schedulers() -> list:
    """
    Name, parameters (name, default, lowest, highest), defaults of options, and what each scheduler does not go with, sorted by name.
    """

def rankings() -> dict:
    """The native rankings and their parameters."""

def ranking_orders(name: str) -> list:
    """
    What a native ranking decides, in the words of a Python ranking's `orders`.
    """

class Role(enum.Enum):
    """What a group does with a request."""

    BOTH = 0

    PREFILL = 1

    DECODE = 2

    FFN = 3

class ApiServerConfig:
    """Work of the processes of an API server."""

    def __init__(self) -> None: ...

    @property
    def processes(self) -> int: ...

    @processes.setter
    def processes(self, arg: int, /) -> None: ...

    @property
    def request_ps(self) -> int: ...

    @request_ps.setter
    def request_ps(self, arg: int, /) -> None: ...

    @property
    def prompt_token_ps(self) -> int: ...

    @prompt_token_ps.setter
    def prompt_token_ps(self, arg: int, /) -> None: ...

    @property
    def chunk_ps(self) -> int: ...

    @chunk_ps.setter
    def chunk_ps(self, arg: int, /) -> None: ...

class BalancerRules:
    """
    How a release of vLLM chooses among data-parallel engines; by default as 0.33 does.
    """

    def __init__(self) -> None: ...

    @property
    def by_requests_in_flight(self) -> bool: ...

    @by_requests_in_flight.setter
    def by_requests_in_flight(self, arg: bool, /) -> None: ...

    @property
    def rotates(self) -> bool: ...

    @rotates.setter
    def rotates(self, arg: bool, /) -> None: ...

    @property
    def hears_loads(self) -> bool: ...

    @hears_loads.setter
    def hears_loads(self, arg: bool, /) -> None: ...

    @property
    def quiet_ps(self) -> int: ...

    @quiet_ps.setter
    def quiet_ps(self, arg: int, /) -> None: ...

    @property
    def hears_of_first_requests(self) -> bool: ...

    @hears_of_first_requests.setter
    def hears_of_first_requests(self, arg: bool, /) -> None: ...

    @property
    def hears_of_first_iterations(self) -> bool: ...

    @hears_of_first_iterations.setter
    def hears_of_first_iterations(self, arg: bool, /) -> None: ...

class GroupConfig:
    def __init__(self) -> None: ...

    @property
    def index(self) -> int: ...

    @index.setter
    def index(self, arg: int, /) -> None: ...

    @property
    def model(self) -> int: ...

    @model.setter
    def model(self, arg: int, /) -> None: ...

    @property
    def depth(self) -> int: ...

    @depth.setter
    def depth(self, arg: int, /) -> None: ...

    @property
    def stages_wait(self) -> bool: ...

    @stages_wait.setter
    def stages_wait(self, arg: bool, /) -> None: ...

    @property
    def role(self) -> Role: ...

    @role.setter
    def role(self, arg: Role, /) -> None: ...

    @property
    def offload(self) -> OffloadConfig: ...

    @offload.setter
    def offload(self, arg: OffloadConfig | None, /) -> None: ...

    @property
    def drafter(self) -> Drafter: ...

    @drafter.setter
    def drafter(self, arg: Drafter | None, /) -> None: ...

    @property
    def max_queued_requests(self) -> int: ...

    @max_queued_requests.setter
    def max_queued_requests(self, arg: int, /) -> None: ...

    @property
    def max_queued_tokens(self) -> int: ...

    @max_queued_tokens.setter
    def max_queued_tokens(self, arg: int, /) -> None: ...

    @property
    def api_latency_ps(self) -> int: ...

    @api_latency_ps.setter
    def api_latency_ps(self, arg: int, /) -> None: ...

    @property
    def abort_latency_ps(self) -> int: ...

    @abort_latency_ps.setter
    def abort_latency_ps(self, arg: int, /) -> None: ...

    @property
    def api_latency_per_token_ps(self) -> int: ...

    @api_latency_per_token_ps.setter
    def api_latency_per_token_ps(self, arg: int, /) -> None: ...

    @property
    def api_server(self) -> ApiServerConfig: ...

    @api_server.setter
    def api_server(self, arg: ApiServerConfig, /) -> None: ...

    @property
    def balancer(self) -> BalancerRules: ...

    @balancer.setter
    def balancer(self, arg: BalancerRules, /) -> None: ...

def mesh(dimensions: Sequence[tuple[int, int, int]]) -> engine.Topology:
    """
    Fully connected dimensions of (devices, bytes/s, latency in ps), the first varying fastest.
    """

class CollectiveSpec:
    """How one collective operator runs; 0 bytes: by its own table."""

    def __init__(self, op: int, kind: engine.CollectiveKind, bytes_per_unit: int, algorithm: engine.AlgorithmChoice = ..., ranks: int = 0, stride: int = 1, everyone: bool = False, per_node: int = 0, far_bytes_per_unit: int = 0) -> None: ...

class ExpandedConfig:
    """A group's own links and the collectives that run on them."""

    def __init__(self, topology: engine.Topology, network: engine.NetworkKind, collectives: Sequence[CollectiveSpec], members: int = 1, devices: Sequence[int] = [], incast: engine.Incast = ...) -> None: ...

class CopySource:
    """A memory that weights are copied from."""

    def __init__(self, latency_ps: int, rate_q16: int, place: int = -1, before_ps: int = 0) -> None:
        """
        rate_q16: 2^-16 bytes/s to each rank when nobody else copies; place: on the network; before_ps: latency that the network does not charge.
        """

class WeightStreaming:
    """Weights that steps copy in, by operator of the program; bytes."""

    def __init__(self) -> None: ...

    @property
    def sources(self) -> list[CopySource]: ...

    @sources.setter
    def sources(self, arg: Sequence[CopySource], /) -> None: ...

    @property
    def ahead(self) -> list[list[int]]: ...

    @ahead.setter
    def ahead(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def ahead_from(self) -> list[list[int]]: ...

    @ahead_from.setter
    def ahead_from(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def by_batch(self) -> list[list[int]]: ...

    @by_batch.setter
    def by_batch(self, arg: Sequence[Sequence[int]], /) -> None: ...

    @property
    def sampled(self) -> int: ...

    @sampled.setter
    def sampled(self, sampled: list) -> None: ...

    @property
    def by_batch_from(self) -> list[int]: ...

    @by_batch_from.setter
    def by_batch_from(self, arg: Sequence[int], /) -> None: ...

    @property
    def demand(self) -> list[bool]: ...

    @demand.setter
    def demand(self, arg: Sequence[bool], /) -> None: ...

    @property
    def buffers(self) -> int: ...

    @buffers.setter
    def buffers(self, arg: int, /) -> None: ...

class Interleaving(enum.Enum):
    NEVER = 0

    WHEN_SHORTER = 1

    ALWAYS = 2

class PimConfig:
    """Memory in which decodes attend."""

    def __init__(self) -> None: ...

    @property
    def context(self) -> list[int]: ...

    @context.setter
    def context(self, arg: Sequence[int], /) -> None: ...

    @property
    def ps(self) -> list[int]: ...

    @ps.setter
    def ps(self, arg: Sequence[int], /) -> None: ...

    @property
    def sets(self) -> int: ...

    @sets.setter
    def sets(self, arg: int, /) -> None: ...

    @property
    def latency_ps(self) -> int: ...

    @latency_ps.setter
    def latency_ps(self, arg: int, /) -> None: ...

    @property
    def bytes_per_s(self) -> int: ...

    @bytes_per_s.setter
    def bytes_per_s(self, arg: int, /) -> None: ...

    @property
    def query_bytes(self) -> int: ...

    @query_bytes.setter
    def query_bytes(self, arg: int, /) -> None: ...

    @property
    def output_bytes(self) -> int: ...

    @output_bytes.setter
    def output_bytes(self, arg: int, /) -> None: ...

    @property
    def kv_bytes(self) -> int: ...

    @kv_bytes.setter
    def kv_bytes(self, arg: int, /) -> None: ...

    @property
    def concurrent(self) -> bool: ...

    @concurrent.setter
    def concurrent(self, arg: bool, /) -> None: ...

    @property
    def places(self) -> list[int]: ...

    @places.setter
    def places(self, arg: Sequence[int], /) -> None: ...

class HostOperators:
    """Operators of the program that the node's processors run."""

    def __init__(self) -> None: ...

    @property
    def runs(self) -> list[bool]: ...

    @runs.setter
    def runs(self, arg: Sequence[bool], /) -> None: ...

    @property
    def input_bytes(self) -> list[int]: ...

    @input_bytes.setter
    def input_bytes(self, arg: Sequence[int], /) -> None: ...

    @property
    def output_bytes(self) -> list[int]: ...

    @output_bytes.setter
    def output_bytes(self, arg: Sequence[int], /) -> None: ...

    @property
    def latency_ps(self) -> int: ...

    @latency_ps.setter
    def latency_ps(self, arg: int, /) -> None: ...

    @property
    def rate_q16(self) -> int: ...

    @rate_q16.setter
    def rate_q16(self, arg: int, /) -> None: ...

    @property
    def place(self) -> int: ...

    @place.setter
    def place(self, arg: int, /) -> None: ...

    @property
    def before_ps(self) -> int: ...

    @before_ps.setter
    def before_ps(self, arg: int, /) -> None: ...

class OffloadConfig:
    """What a group keeps elsewhere."""

    def __init__(self) -> None: ...

    def __copy__(self) -> OffloadConfig: ...

    @property
    def weights(self) -> WeightStreaming: ...

    @weights.setter
    def weights(self, arg: WeightStreaming, /) -> None: ...

    @property
    def pim(self) -> PimConfig: ...

    @pim.setter
    def pim(self, arg: PimConfig, /) -> None: ...

    @property
    def has_pim(self) -> bool: ...

    @property
    def host(self) -> HostOperators: ...

    @host.setter
    def host(self, arg: HostOperators, /) -> None: ...

    @property
    def interleaving(self) -> Interleaving: ...

    @interleaving.setter
    def interleaving(self, arg: Interleaving, /) -> None: ...

    @property
    def expanded(self) -> bool: ...

    @expanded.setter
    def expanded(self, arg: bool, /) -> None: ...

    @property
    def shared(self) -> bool: ...

    @shared.setter
    def shared(self, arg: bool, /) -> None: ...

    @property
    def ranks(self) -> list[list[int]]: ...

    @ranks.setter
    def ranks(self, arg: Sequence[Sequence[int]], /) -> None: ...

class PortBytes:
    """Bytes over one device's port, by a feature."""

    def __init__(self, feature: Feature, bytes: int, units: int = 1) -> None:
        """bytes: of every `units`, rounded up."""

class M2nHop:
    """What one kind of layer moves between attention and FFN."""

    def __init__(self, attention_out: PortBytes, ffn_in: PortBytes, ffn_out: PortBytes, attention_in: PortBytes) -> None: ...

class AfdLayer:
    """One layer: operators of both programs, by index."""

    def __init__(self, attention: Sequence[int], ffn: Sequence[int], hop: int = 0) -> None: ...

class AfdBand:
    """Layers that follow each other, several times."""

    def __init__(self, stage: int, repeat: int, layers: Sequence[AfdLayer]) -> None: ...

class AfdConfig:
    """How attention and FFN members run a step together."""

    def __init__(self, attention_members: int, lanes: int, columns: int, sharing: int, bands: Sequence[AfdBand], hops: Sequence[M2nHop], latency_ps: int, attention_bytes_per_s: int, ffn_bytes_per_s: int) -> None:
        """
        columns: sets of an FFN member's ranks that get rows of their own. sharing: of these, those that exchange rows. Rates are of one device's port.
        """

    def least_m2n_ps(self) -> int:
        """
        Least time that rows of a step are on their way between attention and FFN, ps.
        """

class SharedPort:
    """A port of a unit that other transfers use, too."""

    def __init__(self, member: int, stage: int, out: bool, flows: Sequence[tuple[int, int, Sequence[int]]]) -> None:
        """
        member: of the lock-step group. flows: (from, to, links) of each of its devices, with the numbers of the network's places and links.
        """

class DeviceStream(enum.Enum):
    COMPUTE = 0

    PULL = 1

    COPY_IN = 2

    COPY_OUT = 3

    PIM = 4

    HOST = 5

    SEND = 6

class NodeRole(enum.Enum):
    BEGIN = 0

    RECEIVE = 1

    MEET = 2

    LAUNCH = 3

    PREPARE = 19

    SLOWED = 20

    DRAFTS = 4

    END = 5

    OPERATOR = 6

    COPY = 7

    TO_HOST = 8

    FROM_HOST = 9

    QUERIES = 10

    IN_MEMORY = 11

    RESULTS = 12

    CONTEXT = 13

    PROMPTS = 14

    M2N_SEND = 15

    M2N_RECEIVE = 16

    M2N_LATENCY = 17

def step_nodes(program: Program, offload: OffloadConfig | None, items: Sequence[Sequence[Sequence[int]]], step: int, drafter: Drafter | None = None, drafts_after: Sequence[int] = [], first_passes: int = 0, next_passes: int = 0, adapters: Sequence[Sequence[int]] = [], slowed_ps: Sequence[int] = []) -> tuple:
    """
    The nodes of the run's step of that number, from 1, if nothing ran before: (unit, stream, role, operator, execution, lane, ps, end ps, bytes, nodes before) each; of each member its two halves, if they alternate; and what each member counts (`Simulation.activity`). `drafts_after` are each member's, of a drafter that has run so many passes before; `adapters` each member's counts of `Simulation.schedule`'s `adapter_use`, and `slowed_ps` what the power limit added to each of its stages (none: nothing).
    """

def afd_nodes(config: AfdConfig, programs: Sequence[Program], items: Sequence[Sequence[Sequence[int]]], step: int, drafter: Drafter | None = None, drafts_after: Sequence[int] = [], first_passes: int = 0, next_passes: int = 0) -> tuple:
    """
    The nodes of the run's step of that number, from 1, of attention and FFN members, if nothing ran before, as `step_nodes` has them; by lane and member, its items and its value of each feature; and what each member counts. `items` of FFN members are none; drafts are those of `step_nodes`, of attention members.
    """

def draft_nodes(drafter: Drafter, items: Sequence[Sequence[int]], drafts_after: int, first_passes: int, next_passes: int) -> list:
    """
    The passes of a drafter at the end of a step: whether it is the first, its items, its value of each feature, ps, and its nodes, as `step_nodes` has them.
    """

class Sharing(enum.Enum):
    FAIR = 0

    FIFO = 1

class Purpose(enum.Enum):
    """What a transfer of the network is for."""

    KV_HANDOVER = 0

    KV_TIER = 1

    WEIGHTS = 2

    EXPERTS = 3

    COLLECTIVE = 4

    OTHER = 5

    M2N = 6

class NetworkConfig:
    """The cluster's shared network: links, and the places that they join."""

    def __init__(self, sharing: Sharing) -> None: ...

    def add_link(self, bytes_per_s: int, latency_ps: int) -> int:
        """A directed link; returns its number."""

    @property
    def first_of_topology(self) -> int:
        """The number of the topology's first link."""

    def port(self, place: int, far: bool, out: bool) -> int:
        """The number of a place's link in one direction."""

    def add_place(self, island: int, near: tuple[int, int], far: tuple[int, int], device: int = -1, near_latency_ps: int = 0, far_latency_ps: int = 0, host: tuple[int, int] | None = None, host_latency_ps: int = 0, below: bool = False) -> int:
        """
        A memory; returns its number. near, far: numbers of the links (out, in), -1: none. island -1: near to all. device: its number in the topology, whose routes it takes to other devices. near_latency_ps, far_latency_ps: of the cluster's link that KV crosses on its way out, where the out link is the memory's own; -1: the reader's host_latency_ps. host: links (out, in) to places `below` on the island, those of near if None. host_latency_ps: of the link that KV from places below crosses.
        """

    def add_topology(self, topology: engine.Topology) -> None:
        """Its links become links of the network."""

    @property
    def incast(self) -> engine.Incast: ...

    @incast.setter
    def incast(self, arg: engine.Incast, /) -> None: ...

    @property
    def num_links(self) -> int: ...

    @property
    def num_places(self) -> int: ...

    def route(self, sender: int, receiver: int) -> list[int]:
        """The numbers of the links from one place to another, in order."""

    def bytes_per_s(self, link: int) -> int: ...

    def probe(self, starts: Sequence[tuple[int, int, int, int]]) -> tuple:
        """
        Runs transfers (at_ps, from, to, bytes), in order of time; arrays: landed_ps, bytes per link, busy ps per link.
        """

class KvTransferConfig:
    """How the KV of prompts goes from prefill groups to decode groups."""

    def __init__(self, push: bool, layerwise: bool, places: Sequence[Sequence[int]], chunked: bool = False) -> None:
        """
        places: of every group's ranks, by group; chunked: the KV of a chunk of a prompt moves when its step has ended.
        """

    def add_table(self, shares: Sequence[tuple[int, int, Sequence[tuple[Sequence[int], int, int, int]]]], block_size: int = 1, prefill_all_but_last_token: bool = False, posting_ps: tuple[int, int] = (0, 0)) -> int:
        """
        Tuples (prefill rank, decode rank, parts) with parts (layers, bytes per token and layer, bytes of state per layer, blocks at the end of a prompt that are kept or 0 for all); posting_ps is what a decode worker's host takes to post reads: for each rank that it reads from, and for each block of a layer. Returns the table's number.
        """

    @property
    def push(self) -> bool:
        """Whether the prefill group writes the KV."""

    @property
    def layerwise(self) -> bool:
        """Whether the KV of a layer moves while the prefill goes on."""

    @property
    def chunked(self) -> bool:
        """Whether the KV of a chunk of a prompt moves when its step has ended."""

    def add_route(self, prefill_group: int, decode_group: int, table: int) -> None: ...

class PostedReads:
    """Reads of KV that the hosts of an engine's workers post before a batch."""

    def __init__(self) -> None: ...

    def add(self, posts_ps: int, now_ps: int) -> None:
        """They are given to the hosts, along with the next batch or without one."""

    def take(self, now_ps: int) -> int:
        """
        What is left of them, in ps, for the hosts of a batch that is formed then.
        """

class OutsideNetwork:
    """The network of engines outside of a simulation."""

    def __init__(self, config: NetworkConfig) -> None: ...

    def run_out(self) -> None:
        """All that is under way lands, whoever hears of it."""

class OutsideTransfers:
    """KV of prompts that moves between engines outside of a simulation."""

    def __init__(self, config: KvTransferConfig, network: OutsideNetwork) -> None: ...

    def reserved(self, request: int, groups: tuple[int, int], tokens: int, cached: int, now_ps: int) -> int:
        """
        A decode group has reserved blocks for a prompt of a prefill group (`groups`: that one, then the decode group), of which it has `cached` tokens; returns how long its workers post the reads, in ps.
        """

    def sends(self, request: int, tokens: int, now_ps: int) -> None:
        """
        Where KV is pushed: the prefill group has computed so many leading tokens of the prompt, whose KV begins to move.
        """

    def withdrawn(self, request: int, groups: tuple[int, int], now_ps: int) -> None:
        """
        Where KV is pushed: the decode group no longer wants the KV, and keeps its memory until nothing of it is under way.
        """

    def dropped(self, request: int, groups: tuple[int, int], now_ps: int) -> None:
        """
        Where KV is pulled: the decode group has dropped a prompt that has not landed. Before its blocks are reserved, the prefill group is told that nobody will read it.
        """

    def take_forgotten(self) -> list[int]:
        """
        Where KV is pulled: the requests of which prefill groups have been told since the last call that nobody will read their KV.
        """

    def take_told(self) -> list[int]:
        """
        Where KV is pushed: the requests of which prefill groups have been told since the last call that blocks are reserved, in that order.
        """

    def take_refused(self) -> list[int]:
        """
        The requests of which prefill groups have been told since the last call that nobody wants their KV.
        """

    def take_drained(self) -> list[int]:
        """
        The requests of which decode groups have been told since the last call that nothing of their KV is under way.
        """

    def next_event_ps(self) -> int | None:
        """When something may land; None: nothing moves."""

    def advance(self, now_ps: int) -> list[int]:
        """Time passes; returns the requests whose KV has landed, in that order."""

class RouterOption:
    @property
    def name(self) -> str: ...

    @property
    def default(self) -> float: ...

    @property
    def low(self) -> float: ...

    @property
    def high(self) -> float: ...

    @property
    def meaning(self) -> str: ...

class RouterKind:
    """A native router: its name, what it does, and its options."""

    @property
    def name(self) -> str: ...

    @property
    def summary(self) -> str: ...

    @property
    def options(self) -> list[RouterOption]: ...

def router_kinds() -> list[RouterKind]:
    """All native routers."""

class BadRoute(RuntimeError):
    pass

class RequestView:
    """A request at its arrival (llmsim.routing.base.RequestView)."""

    @property
    def row(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def session(self) -> object: ...

    @property
    def model(self) -> object: ...

    @property
    def now_ps(self) -> int: ...

class GroupView:
    """A group at an arrival (llmsim.routing.base.GroupView)."""

    index: int

    running: int

    waiting: int

    free_blocks: int

    total_blocks: int

class RouterMaker:
    """Makes the router of a simulation."""

def native_router(name: str, seed: int, options: Mapping[str, float], session: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> RouterMaker:
    """
    A native router. session: number of each row's session from 0, or -1; empty when no row has one.
    """

def keep_sessions(inner: RouterMaker, session: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> RouterMaker:
    """
    Another router, but later calls of a session go to the group of its first call. session: number of each row's session from 0, or -1 for rows without this.
    """

def python_router(route: object, session_names: object | None, model_names: object) -> RouterMaker:
    """
    A function route(request, groups) -> index (llmsim.routing.base.Router). session_names: by row, or None; model_names: of the deployment.
    """

class BadPolicy(RuntimeError):
    pass

class SequenceView:
    """A request of a group (llmsim.scheduling.base.SequenceView)."""

    @property
    def row(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def received(self) -> int: ...

    @property
    def computed(self) -> int: ...

    @property
    def blocks(self) -> int: ...

    @property
    def priority(self) -> int: ...

    @property
    def arrival_ps(self) -> int: ...

class Policies:
    """Decisions of one group's scheduler that Python objects take."""

    def __init__(self) -> None: ...

    def set_queue_order(self, key: object, preempted_first: bool) -> None: ...

    def set_victim(self, choose: object) -> None: ...

    def set_eviction(self, freed: object, reused: object, evict: object) -> None: ...

    def set_ranking(self, waiting: bool, running: bool, victims: bool, pauses: bool, rank: object, added: object | None, scheduled: object | None, executed: object | None, left: object | None) -> None: ...

class RankView:
    """All requests of a group (llmsim.scheduling.base.RankView)."""

    def __len__(self) -> int: ...

    @property
    def row(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def running(self) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]: ...

    @property
    def parked(self) -> Annotated[NDArray[numpy.bool_], dict(shape=(None,))]: ...

    @property
    def position(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def tokens(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def received(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def computed(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def left(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def blocks(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def preemptions(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def priority(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def session(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def round(self) -> Annotated[NDArray[numpy.int32], dict(shape=(None,))]: ...

    @property
    def arrival_ps(self) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

class AdmissionMaker:
    """Makes the admission policy of a simulation."""

def queue_limit(most: int) -> AdmissionMaker:
    """Turns requests away that would find that many waiting in their group."""

def python_admission(admit: object, session_names: object | None, model_names: object) -> AdmissionMaker:
    """
    A function admit(request, group) -> bool (llmsim.scheduling.base.Admission).
    """

class TierEviction(enum.Enum):
    LRU = 0

    LFU = 1

    COST = 2

class TierWrite(enum.Enum):
    THROUGH = 0

    SELECTIVE = 1

    BACK = 2

class KvTiersConfig:
    """Pools of KV, and which groups use which."""

    def __init__(self, write: TierWrite, parks: bool = False, shared: bool = False) -> None:
        """
        parks: who recalls is parked alone; else its batch waits. shared: pools outlive groups.
        """

    def add_pool(self, name: str, capacity_bytes: int, eviction: TierEviction, places: Sequence[int], queue_depth: int = 0, read_latency_ps: int = 0, write_latency_ps: int = 0) -> int:
        """
        Returns the pool's number. places: a memory of each node that the ranks are on. queue_depth 0: a memory.
        """

    def stripe(self, place: int, stripes: Sequence[int]) -> None:
        """
        A place of pools that is several memories, over which KV is spread: their places.
        """

    def add_group(self, pools: Sequence[int], ranks: Sequence[int], chunk_tokens: int, bytes_per_token: Sequence[int], model: int) -> None:
        """
        The next group: its pools in order of lookup (none: it has no tiers), the places of its ranks, the bytes of each.
        """

class OffloadingEviction(enum.Enum):
    LRU = 0

    ARC = 1

    LRU_BY_CHUNK = 2

    TOUCHED_LRU = 3

    TOUCHED_ARC = 4

class OffloadingRules:
    """What releases of vLLM after 0.24 offload otherwise; all off."""

    def __init__(self) -> None: ...

    @property
    def stores_ends(self) -> bool: ...

    @stores_ends.setter
    def stores_ends(self, arg: bool, /) -> None: ...

    @property
    def keeps_progress(self) -> bool: ...

    @keeps_progress.setter
    def keeps_progress(self, arg: bool, /) -> None: ...

    @property
    def ends_with_step(self) -> bool: ...

    @ends_with_step.setter
    def ends_with_step(self, arg: bool, /) -> None: ...

    @property
    def counts_offers(self) -> bool: ...

    @counts_offers.setter
    def counts_offers(self, arg: bool, /) -> None: ...

    @property
    def remembers_offers(self) -> bool: ...

    @remembers_offers.setter
    def remembers_offers(self, arg: bool, /) -> None: ...

    @property
    def stores_computed(self) -> bool: ...

    @stores_computed.setter
    def stores_computed(self, arg: bool, /) -> None: ...

    @property
    def offloads_drafted(self) -> bool: ...

    @offloads_drafted.setter
    def offloads_drafted(self, arg: bool, /) -> None: ...

    @property
    def gives_up_either(self) -> bool: ...

    @gives_up_either.setter
    def gives_up_either(self, arg: bool, /) -> None: ...

    @property
    def offers_again(self) -> bool: ...

    @offers_again.setter
    def offers_again(self, arg: bool, /) -> None: ...

class OffloadingConfig:
    """What a group offloads (vLLM's kv_connector_extra_config)."""

    def __init__(self) -> None: ...

    @property
    def num_chunks(self) -> int:
        """Chunks that the pool in host memory holds."""

    @num_chunks.setter
    def num_chunks(self, arg: int, /) -> None: ...

    @property
    def eviction(self) -> OffloadingEviction: ...

    @eviction.setter
    def eviction(self, arg: OffloadingEviction, /) -> None: ...

    @property
    def store_threshold(self) -> int:
        """
        A chunk is stored when it is offered, or looked for, for the so manieth time; below 2: at once.
        """

    @store_threshold.setter
    def store_threshold(self, arg: int, /) -> None: ...

    @property
    def max_tracker_size(self) -> int:
        """Chunks that are counted for it."""

    @max_tracker_size.setter
    def max_tracker_size(self, arg: int, /) -> None: ...

    @property
    def rules(self) -> OffloadingRules: ...

    @rules.setter
    def rules(self, arg: OffloadingRules, /) -> None: ...

    @property
    def blocks_per_chunk(self) -> int: ...

    @blocks_per_chunk.setter
    def blocks_per_chunk(self, arg: int, /) -> None: ...

    @property
    def sync_load_tokens(self) -> int:
        """
        Tokens that a step loads and waits for, at most; others are parked meanwhile.
        """

    @sync_load_tokens.setter
    def sync_load_tokens(self, arg: int, /) -> None: ...

    @property
    def prompt_only(self) -> bool:
        """Chunks of answers are not stored."""

    @prompt_only.setter
    def prompt_only(self, arg: bool, /) -> None: ...

class OffloadingCopies:
    """How a group's KV comes to host memory and back."""

    def __init__(self, ranks: Sequence[int], hosts: Sequence[int], bytes_per_token: Sequence[int], bytes_stored_per_token: Sequence[int]) -> None:
        """
        The places of its ranks (none: it offloads nothing) and of the host of each, and the bytes of a token that each loads and stores.
        """

class OutsideCopies:
    """
    Copies of KV to host memory and back, of engines outside of a simulation that number them.
    """

    def __init__(self, groups: Sequence[OffloadingCopies], network: NetworkConfig) -> None: ...

    def load(self, group: int, job: int, tokens: int) -> None:
        """
        Asked for with the batch that is formed next; its request waits for it.
        """

    def store(self, group: int, job: int, tokens: int) -> None:
        """Asked for with the batch that is formed next."""

    def load_in_step(self, group: int, job: int, tokens: int) -> None:
        """A load for which the batch that is formed next waits."""

    def flush(self, group: int, job: int) -> None:
        """
        The batch that is formed next waits for the store, unless it has ended.
        """

    def formed(self, group: int, runs: bool, now_ps: int) -> None:
        """
        A batch is formed (`runs`: with requests), and what was asked for is submitted.
        """

    def launched(self, group: int, end_ps: int) -> None:
        """A batch was launched, and ends then."""

    def is_open(self, group: int) -> bool:
        """Whether all that the group's batch waits for is there."""

    def next_event_ps(self) -> int | None:
        """When something may end; None: nothing is under way."""

    def advance(self, now_ps: int) -> list[tuple[int, int]]:
        """
        Time passes; returns (group, job) of the copies that have ended since it was called, in that order.
        """

class PoolsBelow:
    """What a scheduler in Python sees of the pools of KV below its group."""

    def find(self, request: int, cached: int) -> int:
        """Tokens after the first `cached` ones that the pools hold."""

    def load(self, request: int, cached: int, tokens: int) -> None:
        """
        The request, just admitted, takes `tokens` tokens behind the first `cached` ones.
        """

    @property
    def chunk_tokens(self) -> int:
        """Tokens of a chunk."""

    @property
    def parks(self) -> bool:
        """Whether who takes something is parked until it is there."""

class CopiesBelow:
    """What a scheduler in Python that offloads KV calls for its copies."""

    def load(self, job: int, request: int, tokens: int) -> None:
        """
        A copy of so many tokens from host memory; jobs have ever larger numbers.
        """

    def store(self, job: int, request: int, tokens: int) -> None:
        """A copy of so many tokens to host memory."""

    def load_in_step(self, job: int, request: int, tokens: int) -> None:
        """A load for which the step that is formed waits."""

    def flush(self, job: int) -> None:
        """The step that is formed waits for this store."""

class EngineTurn(enum.Enum):
    """Where the loop of a rank's engine stands."""

    LOOKS = 0
    """For what has arrived, in front of its next step."""

    AWAITS = 1
    """The output of its oldest batch."""

    TAKES = 2
    """That of its oldest call, which gave no batch."""

    DUMMY = 3
    """Until its devices run a dummy batch."""

    AGREES = 4
    """With the other data-parallel ranks, whether any of them has work."""

class TriggerKind(enum.Enum):
    """What a switch of layouts waits for."""

    AT = 0

    OPEN_SHARE_BELOW = 1

    ENDED_SHARE_ABOVE = 2

    WAITING_BELOW = 3

class KvOnSwitch(enum.Enum):
    """What becomes of KV when layouts are switched."""

    MOVE = 0

    RECOMPUTE = 1

    DROP = 2

class LayoutTrigger:
    """A switch of layouts, and what it waits for."""

    def __init__(self, to: int, kind: TriggerKind, value: int) -> None:
        """value: ps (AT), millionths (a share), or requests (WAITING_BELOW)."""

class LayoutSpec:
    """Groups that serve together."""

    def __init__(self, name: str, groups: Sequence[GroupSpec], lockstep: Sequence[LockstepSpec], contention: Sequence[ContentionSpec], kv_transfer: KvTransferConfig | None, kv_tiers: KvTiersConfig | None, kv_bytes_per_token: Sequence[int], devices: Sequence[int], kinds: Sequence[int], kv_offloading: Sequence[OffloadingCopies] = []) -> None:
        """
        Groups are numbered from the layout's first one. kv_transfer: the places of all ranks, and routes. kv_tiers: whose groups are these. kv_bytes_per_token: of each device of a group. devices: of a group. kinds: of groups between which KV moves alike. kv_offloading: how the KV of each group comes to host memory.
        """

class LayoutsConfig:
    """Layouts of the same devices, and when to switch."""

    def __init__(self, layouts: Sequence[LayoutSpec], initial: int, triggers: Sequence[LayoutTrigger], weights_ps: Sequence[Sequence[int]], process_ps: int, kv: KvOnSwitch, decide: object | None = None) -> None:
        """
        weights_ps: [from][to]. decide: a function of (now_ps, [(running, waiting), ...]) that returns a layout, or -1.
        """

    def move_kv(self, network: NetworkConfig, tables: KvTransferConfig, table_of: Sequence[Sequence[int]]) -> None:
        """KV moves over this network. table_of: [from][to] kind of group."""

class Removal(enum.Enum):
    """What becomes of the requests of a group that is removed."""

    DRAIN = 0

    HAND_BACK = 1

class Membership:
    """The groups of a running simulation."""

    def add_group(self, spec: GroupSpec, kv_nodes: Sequence[int] = [], kv_routes: Sequence[tuple[int, int, int]] = []) -> None:
        """
        The group's index is the next one. kv_nodes, kv_routes (prefill group, decode group, table): of a group that computes prompts or answers alone.
        """

    def remove_group(self, index: int, removal: Removal) -> None:
        """The group gets no new requests."""

    def outstanding(self) -> list[int]:
        """Requests of each group that it has received and not finished."""

class ControllerMaker:
    """Makes a controller of a simulation."""

def python_controller(times_ps: Sequence[int], act: object) -> ControllerMaker:
    """
    A function act(membership, now_ps) that is called at these times, before their arrivals.
    """

class Live:
    """Requests come while the simulation runs."""

    def __init__(self, rows: int, granularity: int) -> None:
        """
        rows: requests that are remembered at a time. granularity: tokens that a content key names.
        """

class BatchRunner:
    """
    Times batches that somebody else forms, a real engine, on the devices of one group.
    """

    def __init__(self, config: GroupConfig, program: Program, expanded: ExpandedConfig | None = None) -> None: ...

    def run(self, items: Sequence[Sequence[int]], now_ps: int, known_ps: int = 0, drafts_after: int = 0, posting_ps: int = 0, counts: Sequence[int] = []) -> tuple[int, int]:
        """
        (start, end) in ps of the next step, which the host has at now_ps and which may start when its input tokens are known; items as of Program.step_ps, drafts_after are proposed for each sequence at its end, and its hosts post reads of KV for posting_ps first. counts: none, or those of LoraSlots.begin_step, and perhaps tokens and pairs of tokens that its encoder computes.
        """

class RoundRunner:
    """
    Times rounds of batches that real engines form, on the devices of a lock-step group.
    """

    def __init__(self, configs: Sequence[GroupConfig], programs: Sequence[Program], expanded: ExpandedConfig | None = None, contention: ContentionSpec | None = None, network: OutsideNetwork | None = None) -> None:
        """
        configs, programs: of each member. contention: what they move on the network, where they meet others; None: they meet nobody.
        """

    def begin(self, batches: Sequence[Sequence[Sequence[int]]], now_ps: int, ready_ps: int = 0, posting_ps: Sequence[int] = [], drafts_after: Sequence[int] = []) -> None:
        """
        Begins the next round, which the hosts have at now_ps and which may start at ready_ps; items as of Program.step_ps, none for a member without work. posting_ps: how long the hosts of each member post reads of KV first. drafts_after: proposed for each sequence of a member at its end. Both may be empty.
        """

    def take_timed(self) -> list[tuple[int, int, int]]:
        """
        (member, start, end) in ps of the steps whose times have become known since this was asked last, of each member in the order of its steps.
        """

class ClientsConfig:
    """When clients give up, and how many of them ask in turn."""

    def __init__(self, timeout_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], cancel_after_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], count: int, think_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        timeout_ps: from a request's arrival until its client gives up (-1: never). cancel_after_tokens: it leaves with that many tokens (0: never). count: clients of a closed loop, 0 in an open loop. think_ps: from a row's answer to the client's next request. Each array may be empty.
        """

class Source:
    """The workload of a simulation, by row, and its clients."""

    def __init__(self, arrival_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], input_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], output_tokens: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], model: Annotated[NDArray[numpy.int16], dict(shape=(None,), order='C', device='cpu', writable=False)], next_call: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], tool_delay_ps: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], priority: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)], key_offsets: Annotated[NDArray[numpy.int64], dict(shape=(None,), order='C', device='cpu', writable=False)], keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)], granularity: int, clients: ClientsConfig | None = None, adapter: Annotated[NDArray[numpy.int32], dict(shape=(None,), order='C', device='cpu', writable=False)] | None = None) -> None:
        """adapter: LoRA of each row, from 1; 0: the model itself."""

class PythonSchedulerConfig:
    """
    A scheduler in Python (llmsim.scheduling.base.Scheduler) and its limits.
    """

    def __init__(self, scheduler: object, kv: KvCacheConfig, speculation: SpeculationConfig = ..., lora: LoraSlotsConfig = ...) -> None: ...

class GroupSpec:
    """
    A model serving group: its configuration, its scheduler and its program.
    """

    def __init__(self, config: GroupConfig, scheduler: SchedulerConfig | PythonSchedulerConfig | None, program: Program, expanded: ExpandedConfig | None = None, record_steps: bool = False, record_schedule: bool = False, outside: object | None = None) -> None:
        """
        scheduler: None for a group that gets no requests. expanded: every rank's nodes run in the engine instead of the folded program. outside: a callable that gets (tokens, computed before) of each member's items and the number of the step, and returns how much later than in its graph each stage of each member is done, in ps.
        """

class LockstepSpec:
    """Groups that run in lock-step."""

    @overload
    def __init__(self, groups: Sequence[int], sync_interval: int, expanded: ExpandedConfig | None = None, outside: object | None = None, syncs_first: bool = False) -> None:
        """
        groups: by index. sync_interval: rounds between two agreements that nobody has work; 0: no round runs without work, and nobody agrees. syncs_first: they also agree behind the first round of a wave.
        """

    @overload
    def __init__(self, groups: Sequence[int], sync_interval: int, afd: AfdConfig, exact: bool = False, ports: Sequence[SharedPort] = [], syncs_first: bool = False, splits_waiting: bool = True) -> None:
        """
        groups: attention members, then FFN members. exact: every node runs in the engine. ports: those that other transfers use, too. splits_waiting: what steps wait for rows is told from other waiting.
        """

class PlannedSpec:
    """What a collective moves by the plan of its size."""

    def __init__(self, op: int, member: int, from_units: int, parts: Sequence[tuple[Sequence[tuple[int, int]], int, int]]) -> None:
        """
        member: 0 for collectives of all members. from_units: tokens or sequences from which on the plan is taken. parts: (nodes (from, to) of flows that carry equal bytes, and these bytes as a numerator and a denominator, of the vector).
        """

class ContentionSpec:
    """
    Members of a lock-step group, or one group in stages, that send over shared links.
    """

    def __init__(self, groups: Sequence[int], places: Sequence[int], collectives: Sequence[CollectiveSpec], planned: Sequence[PlannedSpec] = []) -> None:
        """
        groups: by index. places: the node of every device, ranks of a stage first, then stages, then members. collectives: what is between members or stages, with its bytes. planned: what those of them that a library plans move.
        """

class Frontend:
    """What happens to a request between its arrival and its group."""

    def __init__(self, router: RouterMaker | None = None, decode_router: RouterMaker | None = None, admission: AdmissionMaker | None = None) -> None:
        """
        router: needed where several groups serve a model. decode_router: needed where several groups decode for one. admission: None takes every request in.
        """

class Observers:
    """What is recorded and checked while a simulation runs."""

    def __init__(self, series_interval_ps: int = 0, device_shares: bool = False, check_every_step: bool = False, transfers: bool = False) -> None:
        """
        series_interval_ps: between two samples, 0 for none. device_shares: groups note for whom their devices worked. check_every_step: recounts the blocks of every tier at every step. transfers: all of the network are kept.
        """

class Limits:
    """Where a simulation ends before its work does."""

    def __init__(self, horizon_ps: int) -> None: ...

class SimulationConfig:
    """Everything that a simulation is made of."""

    def __init__(self, source: Source | None, groups: Sequence[GroupSpec], *, lockstep: Sequence[LockstepSpec] = [], network: NetworkConfig | None = None, contention: Sequence[ContentionSpec] = [], kv_tiers: KvTiersConfig | None = None, kv_transfer: KvTransferConfig | None = None, frontend: Frontend | None = None, observers: Observers | None = None, limits: Limits | None = None, controllers: Sequence[ControllerMaker] = [], live: Live | None = None, layouts: LayoutsConfig | None = None, kv_offloading: Sequence[OffloadingCopies] = []) -> None:
        """
        source: the workload, or None where `live` says that requests come while the simulation runs.
        """

def column_types() -> dict:
    """
    The numpy type of every column that the core fills, by table and column.
    """

class Circular(RuntimeError):
    pass

class Stalled(RuntimeError):
    pass

class OutOfKvMemory(Stalled):
    pass

class OutOfStates(OutOfKvMemory):
    pass

class EngineFails(Stalled):
    pass

class Violated(RuntimeError):
    pass

class Simulation:
    def __init__(self, config: SimulationConfig) -> None:
        """
        Builds everything that the configuration says; ValueError names the field that is wrong.
        """

    def run(self, max_events: int, max_wall_ms: int = 1099511627776) -> bool:
        """
        Handles up to max_events events, and no more after max_wall_ms; True when nothing is left.
        """

    def end_series(self) -> None:
        """Samples the series at the last event of a run that goes no further."""

    @property
    def at_horizon(self) -> bool: ...

    @property
    def now_ps(self) -> int: ...

    @property
    def num_finished(self) -> int: ...

    @property
    def num_rejected(self) -> int: ...

    def requests(self) -> dict: ...

    def kv_transfers(self) -> object: ...

    def network(self) -> dict:
        """Per link of the shared network, as it numbers them."""

    def transfers(self) -> dict:
        """Every transfer of the network, where recorded."""

    def node_spans(self) -> dict:
        """
        When nodes of steps ran whose times a step alone does not tell: what crosses shared links, copies, and where members and stages began, where transfers are recorded.
        """

    def steps(self) -> dict: ...

    def series(self) -> dict:
        """Since it was last taken."""

    def take_series(self) -> dict: ...

    def counters(self) -> dict: ...

    def accepted_at(self) -> list:
        """Per group, how many drafts of each position held."""

    def drafts(self) -> object:
        """
        Per request, what became of its drafts; None where no group speculates.
        """

    def blame(self) -> dict: ...

    def first_token_blame(self) -> dict:
        """The parts of the time to the first token."""

    def busy_time(self) -> list: ...

    def attention_reach(self) -> list: ...

    def reconfigurations(self) -> list[dict]:
        """One mapping per switch of layouts, in order of time."""

    def table_rows(self) -> list: ...

    def kv_tiers(self) -> list: ...

    def take_kv_tier_series(self) -> dict: ...

    def take_link_series(self) -> dict: ...

    def activity(self, arg: int, /) -> dict: ...

    def schedule(self, arg: int, /) -> dict: ...

    def ask(self, row: int, arrival_ps: int, input_tokens: int, output_tokens: int, model: int, priority: int, adapter: int, keys: Annotated[NDArray[numpy.uint64], dict(shape=(None,), order='C', device='cpu', writable=False)]) -> None:
        """
        A live request arrives at that time, which is not before the last event.
        """

    def leave(self, row: int, time_ps: int) -> None:
        """The client of a live request goes, if it still waits then."""

    def statuses(self, rows: Sequence[int]) -> list:
        """Where these requests stand (llmsim.core.Status)."""

    def run_until(self, time_ps: int) -> None:
        """Handles all events until then, and that time included."""

    @property
    def next_event_ps(self) -> int:
        """The largest time there is, if there is none."""

    def take_live_events(self) -> dict:
        """
        What clients have seen since the last call, in order of time: a request has so many tokens in all, or has ended with this status instead.
        """

    def reusable_rows(self) -> list:
        """
        Rows of requests that have ended; they are forgotten, and may be asked again.
        """

    def progress(self, rows: Sequence[int]) -> dict:
        """
        The engine's times of these requests, their groups and counts, as the table of requests has them.
        """

    def engine_counters(self) -> dict:
        """
        Per group: requests that wait for something else than room, and totals of tokens that were looked up and found.
        """

    def step_tokens(self) -> list:
        """
        Per group: pairs of the tokens of a step that gave answers, and how many steps had them.
        """

    def gauges(self) -> list:
        """
        Per group: requests that run, requests that wait, KV blocks in use, and all blocks.
        """

class TokenTimes:
    def __init__(self, simulation: Simulation) -> None: ...

    def inter_token_latencies(self) -> tuple: ...

    def inter_token_latencies_of(self, arg: int, /) -> Annotated[NDArray[numpy.int64], dict(shape=(None,))]: ...

def expect_abrupt_end() -> None:
    """
    The process ends without giving back what it holds: nothing of that is reported as lost.
    """
