"""What one device must hold besides KV blocks, how many blocks then fit, and what to do where too
few do.
"""

import math
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from llmsim.config.engine.profile import MemoryRules
from llmsim.config.errors import DoesNotFit, InfeasibleError
from llmsim.model.dtypes import dtype_bytes
from llmsim.model.layout import Layout
from llmsim.model.memory.hybrid_groups import KEEPS_STATE, KvTables, kv_tables
from llmsim.model.memory.lora_slots import LoraSlots
from llmsim.model.memory.pool_shares import PoolBytes, PoolShares
from llmsim.model.memory.profile_run import ProfileRun
from llmsim.model.memory.sizes import (
    KvGroup,
    expert_padding_bytes,
    kv_bytes_per_token,
    kv_groups,
    state_bytes_per_sequence,
    weight_bytes,
)
from llmsim.model.parallel.expert_parallel import buffer_bytes
from llmsim.model.types import Dtypes, ModelConfig

GIB = 1 << 30

NCCL_BYTES = {1: 0, 2: 358_612_992}
NCCL_BYTES_LARGER = 411_041_792
"""Communicator buffers by group size; source: aiconfigurator-core 0.12 systems/*.yaml, nccl_mem."""

NULL_BLOCKS = 1
"""vLLM's null block, which no request can use."""

UNLIMITED = 1 << 30
"""Blocks of a pipeline stage whose layers keep no keys and values: the other stages decide."""


class Elsewhere(Struct, frozen=True):
    """What a device need not hold: weights in other memories, and the KV cache where decodes attend
    in one.
    """

    weights_bytes: int = 0
    buffer_bytes: int = 0
    """Where copied weights go."""
    kv_bytes: int | None = None
    """Memory for the rank's KV cache; None: the device's own."""


class DraftShare(Struct, frozen=True):
    """What a drafter takes of each device, bytes: its weights, and its own KV of every token."""

    weight_bytes: int
    kv_bytes_per_token: int


class Demand(Struct, frozen=True, dict=True):
    """What one device must hold, and the engine arguments that decide it."""

    model: ModelConfig
    layout: Layout
    dtypes: Dtypes
    device_bytes: int
    utilization: float
    max_num_seqs: int
    max_num_batched_tokens: int
    block_size: int
    rules: MemoryRules
    cuda_graph_sizes: tuple[int, ...]
    num_sms: int
    elsewhere: Elsewhere = Elsewhere()
    on_nvlink: bool = False
    """NVLink joins the devices."""
    draft: DraftShare | None = None
    cudagraph_mode: str = "FULL_AND_PIECEWISE"
    apart: bool = False
    """The windows of sliding layers are reserved, and blocks hold the other layers alone."""
    tables: KvTables | None = None
    """Of vLLM's hybrid cache, where layers of several kinds share its blocks; None: blocks hold
    whole sequences.
    """
    lora: LoraSlots | None = None
    """Slots of adapters; None: the engine takes none."""
    shares: PoolShares | None = None
    """SGLang's pools of windows and of states; None: vLLM's rules."""

    @property
    def windows_apart(self) -> "Demand":
        """The bound that reserves the largest windows that can ever be alive.

        For groups without tables (`tables`), whose cache keeps one block table for a sequence.
        Either every layer is counted as one that sees everything, or all that sliding layers can
        hold at once is set aside: of each sequence the window, rounded up to blocks, and one token
        budget in flight. Both hold no more than vLLM does; the larger one is taken.
        """
        return replace(self, apart=True)

    @cached_property
    def window_bytes(self) -> int:
        """What layers with a window can hold at once; 0 where no layer sees everything (then blocks
        hold them).
        """
        groups = kv_groups(self.model, self.layout, self.dtypes)
        if all(group.window for group in groups):
            return 0
        return sum(self._window_tokens(group) * group.bytes_per_token for group in groups)

    def _window_tokens(self, group: KvGroup) -> int:
        """Tokens for which layers with a window have blocks at once: each sequence's window and one
        budget.
        """
        if group.kind != "sliding":
            return 0
        size = group.block_tokens or self.block_size
        blocks = -(-group.window // size) + 1
        return self.max_num_seqs * blocks * size + self.max_num_batched_tokens

    @property
    def with_tables(self) -> "Demand":
        """The blocks that vLLM's hybrid cache manager makes, for models with layers of several
        kinds.
        """
        tables = kv_tables(self.model, self.layout, self.dtypes, self.block_size)
        return replace(self, tables=tables, block_size=tables.block_size)

    @property
    def notes(self) -> tuple[str, ...]:
        """How layers of several kinds are counted, and what a hybrid cache would do otherwise."""
        if self.tables is not None:
            return (self._note_of(self.tables),) if len(self.tables.windows) > 1 else ()
        groups = kv_groups(self.model, self.layout, self.dtypes)
        windows = [group for group in groups if group.window]
        notes = []
        some = (
            f"{self.model.name}: {sum(group.layers for group in windows)} layers see "
            f"{self.model.window} tokens"
        )
        if self.model.compressed is not None:
            some = f"{self.model.name}: all layers see {self.model.window} tokens as they are"
        if windows and self.shares is not None:
            notes.append(self._note_of_shares(some, self.shares))
        elif windows and self.apart:
            notes.append(
                f"{some}; the most that they can hold at once is set aside, blocks hold the "
                "other layers alone"
            )
        elif windows:
            notes.append(
                f"{some}, but their blocks are kept for whole sequences, as vLLM does without its "
                "hybrid KV cache manager; with it more would fit"
            )
        if self.model.keeps_states_alone:
            notes.append(f"{self.model.name}: a block holds the states of one sequence")
        elif self.model.linear is not None and self.shares is not None:
            notes.append(
                f"{self.model.name}: SGLang keeps {self.states} states of its linear-attention "
                f"layers, {self.shares.states_per_sequence} for each running sequence"
            )
        elif self.model.linear is not None:
            notes.append(
                f"{self.model.name}: the state of its linear-attention layers is set aside for "
                "max_num_seqs sequences;"
                " prefix hits are counted as if the state of every block were kept"
            )
        if self.layout.context_ranks > 1:
            notes.append(
                f"{self.model.name}: a block holds {self.block_size * self.layout.context_ranks} "
                "tokens, "
                f"{self.block_size} on each of {self.layout.context_ranks} context-parallel ranks"
            )
        return tuple(notes)

    def _note_of_shares(self, some: str, shares: PoolShares) -> str:
        """`some` says which layers have a window."""
        if shares.window_tokens is not None:
            return f"{some}, in a pool of {shares.window_tokens} tokens that SGLang sets aside"
        if shares.window_ratio == 1:
            return f"{some}, but their KV is kept for whole sequences, as SGLang does"
        return (
            f"{some}, in a pool of SGLang's that has {shares.window_ratio:g} tokens for each one "
            "of the other layers'"
        )

    def _note_of(self, tables: KvTables) -> str:
        states = tables.windows.count(KEEPS_STATE)
        about = f", {states} of them for states" if states else ""
        sizes = " or ".join(map(str, sorted(set(tables.block_sizes))))
        return (
            f"{self.model.name}: one pool of blocks for {len(tables.windows)} tables of up to "
            f"{max(tables.layers)} layers{about}, as vLLM's hybrid KV cache has it; a block is "
            f"{sizes} tokens of one table"
        )

    @property
    def budget(self) -> int:
        return int(self.device_bytes * self.utilization)

    @cached_property
    def weights(self) -> int:
        return weight_bytes(self.model, self.layout, self.dtypes)

    @property
    def block_bytes(self) -> int:
        if self.tables is not None:
            return self.tables.block_bytes
        if self.model.keeps_states_alone:  # a block holds a sequence's states
            return state_bytes_per_sequence(self.model, self.layout, self.dtypes)
        groups = kv_groups(self.model, self.layout, self.dtypes)
        drafts = self.draft.kv_bytes_per_token if self.draft is not None else 0
        if self.shares is not None:
            per_token = self.shares.block_tokens_bytes(groups)
        elif self.apart:
            per_token = sum(group.bytes_per_token for group in groups if group.kind != "sliding")
        else:
            per_token = kv_bytes_per_token(self.model, self.layout, self.dtypes)
        return (per_token + drafts) * self.block_size

    @property
    def pool_bytes(self) -> PoolBytes | None:
        """What places of SGLang's pools take, where it has some apart."""
        if self.shares is None:
            return None
        groups = kv_groups(self.model, self.layout, self.dtypes)
        drafts = self.draft.kv_bytes_per_token if self.draft is not None else 0
        windows = sum(group.bytes_per_token for group in groups if group.window)
        everything = sum(group.bytes_per_token for group in groups if not group.window)
        size = self.block_size
        return PoolBytes((everything + drafts) * size, windows * size, self._wide_state_bytes)

    @cached_property
    def reserves(self) -> tuple[tuple[str, int], ...]:
        """What the engine holds besides KV blocks; (label, bytes)."""
        return (*self._reserves, *self._pools)

    @cached_property
    def _reserves(self) -> tuple[tuple[str, int], ...]:
        """All but pools of windows and states; (label, bytes)."""
        seqs = self.max_num_seqs
        run = ProfileRun(
            self.model,
            self.layout,
            self.dtypes,
            seqs,
            self.max_num_batched_tokens,
            self.rules,
            self.cuda_graph_sizes,
            self.num_sms,
            self.cudagraph_mode,
        )
        lines = [("weights", self.weights), *run.lines]
        if self.draft is not None:
            lines.insert(1, ("weights of the drafter", self.draft.weight_bytes))
        if self.model.vision is not None:
            tower = self.model.vision.device_parameters(self.layout)
            size = int(tower * dtype_bytes(self.dtypes.activation))
            lines.append(("weights of the vision tower", size))
        if self.lora is not None:
            slots = self.lora.device_bytes(self.model, self.layout, self.dtypes)
            lines.append((self.lora.label, slots))
        there, tokens = self.elsewhere, self.max_num_batched_tokens
        if there.weights_bytes:
            lines.append(("weights that are elsewhere", -there.weights_bytes))
            lines.append(("buffers of copied weights", there.buffer_bytes))
        if there.kv_bytes is not None:
            lines.append(
                (
                    f"KV of a batch's prompts, {tokens} tokens",
                    tokens * self.block_bytes // self.block_size,
                )
            )
        state = state_bytes_per_sequence(self.model, self.layout, self.dtypes)
        alone = self.model.keeps_states_alone
        if state and self.tables is None and self.shares is None and not alone:
            lines.append((f"linear-attention state, {seqs} sequences x {state} B", seqs * state))
        if self.apart:
            window = self.model.window
            lines.append(
                (f"KV of layers that see {window} tokens, {seqs} sequences", self.window_bytes)
            )
        if self.layout.domain:
            lines.append(self._rows_on_their_way)
        exchange = buffer_bytes(self.model, self.layout, self.dtypes)
        if exchange:
            lines.append((f"buffers of all2all_backend {self.layout.exchange}", exchange))
        padding = expert_padding_bytes(self.model, self.layout, self.dtypes)
        if padding:
            lines.insert(1, ("padding of MXFP4 experts", padding))
        if self._ranks > 1:
            lines.append(self._collectives)
        return tuple(lines)

    @property
    def _pools(self) -> list[tuple[str, int]]:
        """SGLang's pools whose size does not follow from that of the KV blocks."""
        if self.shares is None:
            return []
        lines = []
        groups = kv_groups(self.model, self.layout, self.dtypes)
        windows, state = self.shares.fixed_window_bytes(groups), self._wide_state_bytes
        if windows:
            lines.append((f"KV of layers that see {self.model.window} tokens", windows))
        if self.states is not None:
            label = f"linear-attention state, {self.states} x {state} B and padding"
            lines.append((label, (self.states + 1) * state))
            verified = self.shares.verified_states(self.states, self.max_num_seqs)
            if verified > 0:
                label = f"linear-attention state of verified tokens, {verified} x {state} B"
                lines.append((label, verified * state))
        return lines

    @cached_property
    def _wide_state_bytes(self) -> int:
        """Of one sequence's states in SGLang, whose matrices are fp32 unless the model says
        otherwise; 0: the model has none, or they are its blocks.
        """
        linear = self.model.linear
        if linear is None or self.model.keeps_states_alone:
            return 0
        wide = replace(self.model, linear=replace(linear, state_dtype=linear.state_dtype or "fp32"))
        return state_bytes_per_sequence(wide, self.layout, self.dtypes)

    @cached_property
    def states(self) -> int | None:
        """States in SGLang's pool of them; None: it has no such pool."""
        if self.shares is None or not self._wide_state_bytes:
            return None
        room = self.budget - sum(size for _, size in self._reserves)
        return self.shares.state_slots(room, self._wide_state_bytes)

    @property
    def _collectives(self) -> tuple[str, int]:
        """What NCCL, vLLM's own all-reduce and symmetric memory keep on each rank."""
        ranks = self._ranks
        known = (self.rules.nvlink_ranks_bytes if self.on_nvlink else None, self.rules.ranks_bytes)
        for size in known:
            if size is not None:
                return f"buffers of collectives, {ranks} ranks", size
        return f"NCCL buffers, {ranks} ranks", NCCL_BYTES.get(ranks, NCCL_BYTES_LARGER)

    @property
    def _ranks(self) -> int:
        """Ranks of the largest communicator inside a group."""
        return self.layout.expert_ranks if self.layout.domain == "ffn" else self.layout.tp

    @property
    def _rows_on_their_way(self) -> tuple[str, int]:
        """Buffers of a batch's hidden states, in and out, between attention and FFN devices."""
        tokens = self.max_num_batched_tokens
        row = self.model.hidden_size * int(dtype_bytes(self.dtypes.activation))
        return f"buffers of rows in and out, {tokens} tokens", 2 * tokens * row

    @property
    def least_blocks(self) -> int:
        """Blocks with which the shortest request can run: the null block, and one of each table."""
        return NULL_BLOCKS + (1 if self.tables is None else len(self.tables.windows))

    @property
    def left(self) -> int:
        """Bytes of the budget that remain for KV; negative if the reserves alone exceed it."""
        return self.budget - sum(size for _, size in self.reserves)

    @property
    def fitting_blocks(self) -> int:
        room = self.left if self.elsewhere.kv_bytes is None else self.elsewhere.kv_bytes
        if self.block_bytes == 0:
            return UNLIMITED if room >= 0 else 0
        return max(0, room // self.block_bytes)

    @property
    def where(self) -> str:
        tp, ep = self.layout.tp, self.layout.ep
        return (
            self.model.name
            + (f" with tp {tp}" if tp > 1 else "")
            + (f", ep {ep}" if ep > 1 else "")
        )

    def check_override(self, blocks: int) -> None:
        """InfeasibleError if no request could use that many blocks, or the device cannot hold them
        and the weights.
        """
        least = self.least_blocks
        if blocks < least:
            raise InfeasibleError(
                f"{self.where}: num_gpu_blocks_override {blocks} leaves no block for requests, "
                f"since vLLM keeps one as its null block; give at least {least}"
            )
        if self.elsewhere.kv_bytes is not None:
            return
        drafts = self.draft.weight_bytes if self.draft is not None else 0
        needed = self.weights + drafts - self.elsewhere.weights_bytes + blocks * self.block_bytes
        if needed <= self.device_bytes:
            return
        most = max(0, (self.device_bytes - self.weights) // self.block_bytes)
        remedy = (
            f"at most {most} blocks can be held" if most >= least else "the weights alone fill it"
        )
        raise InfeasibleError(
            f"{self.where}: num_gpu_blocks_override {blocks} x {self.block_bytes} B + weights "
            f"{_gib(self.weights)} ="
            f" {_gib(needed)} exceeds the device's {_gib(self.device_bytes)}; {remedy}"
        )

    def does_not_fit(self) -> DoesNotFit:
        """The error with the arithmetic and the smallest device that would hold it."""
        needed = self.needed
        terms = " + ".join(f"{label} {_gib(size)}" for label, size in self.reserves)
        least = math.ceil(needed / self.utilization / GIB * 100) / 100
        return DoesNotFit(
            f"{self.where} does not fit",
            f"gpu_memory_utilization {self.utilization:g} x "
            f"{_gib(self.device_bytes)} ="
            f" {_gib(self.budget)}, but it needs {_gib(needed)} ({terms} + {self.least_blocks} KV "
            f"blocks {_gib(self.least_blocks * self.block_bytes)})",
            least,
        )

    @property
    def roominess(self) -> tuple[int, int]:
        """By which of two bounds more blocks fit or, where too few do, less memory is needed."""
        blocks = self.fitting_blocks
        return blocks, 0 if blocks >= self.least_blocks else -self.needed

    @property
    def needed(self) -> int:
        """Least bytes of the budget with which a request can run."""
        return sum(size for _, size in self.reserves) + self.least_blocks * self.block_bytes


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
