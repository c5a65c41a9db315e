"""How a device's memory is spent, and how many KV blocks are left: the ledger that decides what
fits.
"""

from msgspec import Struct

from llmsim.config.engine.profile import DEFAULT_PROFILE, MemoryRules, load_profile
from llmsim.model.layout import Layout
from llmsim.model.memory.hybrid_groups import KvTables
from llmsim.model.memory.lora_slots import LoraSlots
from llmsim.model.memory.pool_shares import PoolBytes, PoolShares
from llmsim.model.memory.profile_run import DEFAULT_NUM_SMS
from llmsim.model.memory.requirements import NULL_BLOCKS, Demand, DraftShare, Elsewhere
from llmsim.model.types import Dtypes, ModelConfig


class MemoryLedger(Struct, frozen=True):
    """Where one device's memory goes. `lines` are (label, bytes), capacity positive, uses negative:
    they add up to 0.

    `num_blocks` counts the null block that vLLM reserves; requests can use `usable_blocks`.
    """

    lines: tuple[tuple[str, int], ...]
    block_bytes: int
    num_blocks: int
    tables: KvTables | None = None
    """How layers of several kinds share the blocks; None: a block holds all layers."""
    notes: tuple[str, ...] = ()
    """Where the ledger counts more than the engine would hold; one sentence each."""
    window_blocks: int = 0
    """Blocks in a pool of layers with a window (SGLang); 0: they have none."""
    most_sequences: int | None = None
    """Running sequences for which there are states; None: as many as blocks allow."""
    states: int | None = None
    """In SGLang's pool of them; None: it has no such pool."""
    pools: PoolBytes | None = None
    """Where SGLang has pools apart: what each of their places takes."""

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold a request's KV."""
        return self.num_blocks - 1

    def at_once(self, tokens: int, budget: int, block_size: int) -> float:
        """How many requests of so many tokens all blocks hold at once, as vLLM logs it for the
        longest request ("Maximum concurrency"); `budget` are the tokens of a step.
        """
        if self.tables is None:
            return self.num_blocks / -(-tokens // block_size)
        return self.num_blocks / self.tables.blocks_of(tokens, budget)

    @property
    def kv_bytes(self) -> int:
        """Bytes of all blocks, the null block included."""
        return self.num_blocks * self.block_bytes


def memory_ledger(  # as many arguments as vLLM's own profile run depends on
    model: ModelConfig,
    layout: Layout,
    dtypes: Dtypes,
    *,
    device_bytes: int,
    utilization: float,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
    num_gpu_blocks_override: int | None = None,
    rules: MemoryRules | None = None,
    cuda_graph_sizes: tuple[int, ...] = (),
    cudagraph_mode: str = "FULL_AND_PIECEWISE",
    num_sms: int = DEFAULT_NUM_SMS,
    elsewhere: Elsewhere | None = None,
    on_nvlink: bool = False,
    draft: DraftShare | None = None,
    hybrid: bool = False,
    lora: LoraSlots | None = None,
    shares: PoolShares | None = None,
) -> MemoryLedger:
    """The ledger of one device of a group.

    blocks = floor((utilization x device_bytes - reserves) / block_bytes); the reserves and their
    reasons are in `Demand.reserves` and `ProfileRun`; `rules` are the engine version's (None: the
    default profile's). With `hybrid`, layers of several kinds share the blocks as in vLLM
    (`Demand.with_tables`, `kv_tables`), and with `shares` memory is divided as in SGLang; else
    those that see a window are counted by the better of two bounds (`Demand.windows_apart`). With
    `num_gpu_blocks_override` the number is taken as given, as long as the device can hold it.
    `lora`: slots of adapters, if the engine takes any.
    Raises InfeasibleError with the arithmetic and what would fit; InputError if the layout does not
    split the model.
    """
    rules = rules or load_profile(DEFAULT_PROFILE).memory
    demand = Demand(
        model,
        layout,
        dtypes,
        device_bytes,
        utilization,
        max_num_seqs,
        max_num_batched_tokens,
        block_size,
        rules,
        cuda_graph_sizes,
        num_sms,
        elsewhere or Elsewhere(),
        on_nvlink,
        draft=draft,
        cudagraph_mode=cudagraph_mode,
        lora=lora,
        shares=shares,
    )
    if hybrid:
        demand = demand.with_tables
    elif demand.window_bytes and shares is None:
        demand = max(demand.windows_apart, demand, key=lambda bound: bound.roominess)
    return _ledger_of(demand, device_bytes, utilization, num_gpu_blocks_override)


def _ledger_of(
    demand: Demand, device_bytes: int, utilization: float, num_gpu_blocks_override: int | None
) -> MemoryLedger:
    """Blocks that fit, or those asked for, and what is left."""
    if demand.layout.domain == "ffn":
        return _without_kv(demand, device_bytes, utilization)
    blocks, origin = demand.fitting_blocks, ""
    if num_gpu_blocks_override is not None:
        origin = f", num_gpu_blocks_override; {blocks} would fit"
        blocks = num_gpu_blocks_override
        demand.check_override(blocks)
    if blocks < demand.least_blocks or demand.left < 0:
        raise demand.does_not_fit()
    kv_bytes = blocks * demand.block_bytes
    if demand.elsewhere.kv_bytes is not None:
        origin += f" in another memory of {demand.elsewhere.kv_bytes} B"
        kv_bytes = 0
    rest = demand.left - kv_bytes
    lines = [
        ("device memory", device_bytes),
        (f"outside gpu_memory_utilization {utilization:g}", demand.budget - device_bytes),
        *((label, -size) for label, size in demand.reserves),
        (f"KV cache ({blocks} blocks of {demand.block_bytes} B{origin})", -kv_bytes),
        ("unused" if rest >= 0 else "taken beyond gpu_memory_utilization", -rest),
    ]
    windows, most_sequences = 0, None
    if demand.shares is not None:
        if demand.window_bytes:
            windows = demand.shares.window_blocks(blocks - NULL_BLOCKS, demand.block_size)
        if demand.states is not None:
            most_sequences = demand.states // demand.shares.states_per_sequence
    return MemoryLedger(
        tuple(lines),
        demand.block_bytes,
        blocks,
        demand.tables,
        demand.notes,
        windows,
        most_sequences,
        demand.states,
        demand.pool_bytes,
    )


def _without_kv(demand: Demand, device_bytes: int, utilization: float) -> MemoryLedger:
    """Of a device that keeps no KV; `num_blocks` is the null block alone."""
    if demand.left < 0:
        raise demand.does_not_fit()
    lines = [
        ("device memory", device_bytes),
        (f"outside gpu_memory_utilization {utilization:g}", demand.budget - device_bytes),
        *((label, -size) for label, size in demand.reserves),
        ("unused, since the device keeps no KV", -demand.left),
    ]
    return MemoryLedger(tuple(lines), 0, 1)
