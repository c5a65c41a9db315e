"""vLLM's executor without workers and without a model: steps take their simulated times."""

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple

from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from llmsim.emulation.in_engine.channel import Channel, opened
from llmsim.emulation.in_engine.kv_workers import KvWorkers, Looked, NoKv, Reads, WritesChunks
from llmsim.emulation.in_engine.plugin import settings
from llmsim.model.memory.hybrid_groups import KEEPS_STATE
from llmsim.scheduling.conformance.connectors import HANDOVER
from llmsim.scheduling.conformance.vllm.known_model import DRAFT, items_of
from llmsim.scheduling.conformance.vllm.live import layer_spec
from llmsim.scheduling.conformance.vllm.no_workers import NoWorkers, done

PLENTY = 1 << 46
"""Bytes for KV of a device; the number of blocks is given."""


class Pending(NamedTuple):
    """A step that has begun."""

    end: int
    """In ps; in lock-step, its number."""
    output: Callable[[], Any]
    """Gives what it gives, at its end."""


class AtTime(Future):  # type: ignore[type-arg]
    """What a step gives, at its virtual end."""

    def __init__(self, channel: Channel, step: Pending) -> None:
        super().__init__()
        self._channel, self._step = channel, step

    def result(self, timeout: float | None = None) -> Any:
        """Waits for the end."""
        if not super().done():
            self._waits()
            self.set_result(self._step.output())
        return super().result()

    def _waits(self) -> None:
        self._channel.wait(self._step.end)


class AtRoundEnd(AtTime):
    """What a step of a rank in lock-step gives, at the end of its round."""

    def _waits(self) -> None:
        self._channel.ends(self._step.end)


class VirtualExecutor(NoWorkers):
    """Answers as workers with the model would; a pool of KV is a number of blocks."""

    def _init_executor(self) -> None:
        given = settings()
        parallel = self.vllm_config.parallel_config
        rank = getattr(parallel, "data_parallel_index", parallel.data_parallel_rank)
        self._channel = opened(given["socket"], given["engines"][rank])
        self._kv = self._kv_workers(given["connector"])
        self._tables = given["kv_tables"]
        self._keep_states()
        self._lockstep = given["lockstep"]
        self._next: Pending | None = None
        self._names: list[str] = []
        """Requests of the last step."""

    def _kv_workers(self, connector: dict[str, Any] | None) -> KvWorkers:
        calls = self.vllm_config.max_concurrent_batches
        if connector is None:
            return NoKv()
        if connector["kind"] == HANDOVER:
            said = connector["extra"]
            kind = WritesChunks if said["writes"] == "chunks" else Reads
            return kind(self._channel, calls, keeps_finished=said["keeps_finished"])
        from llmsim.emulation.in_engine.offloading import OffloadingWorkers

        workers = self.vllm_config.parallel_config.world_size
        block_size = self.vllm_config.cache_config.block_size
        return OffloadingWorkers(self._channel, calls, workers, block_size)

    def _keep_states(self) -> None:
        """The small model has no layers with states, of which vLLM would set this."""
        cache = self.vllm_config.cache_config
        if cache.enable_prefix_caching and any(window == KEEPS_STATE for window, _ in self._tables):
            cache.mamba_cache_mode = "align"

    def get_kv_cache_specs(self) -> list[dict[str, Any]]:
        """A layer for each table of blocks, of one rank."""
        return [
            {
                f"model.layers.{number}.self_attn.attn": layer_spec(
                    self.vllm_config, window, block_size=size
                )
                for number, (window, size) in enumerate(self._tables)
            }
        ]

    def determine_available_memory(self) -> list[int]:
        """More than the blocks that are asked for."""
        return [PLENTY]

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Begins a step; its tokens come from `sample_tokens`."""
        self._kv.begin(scheduler_output)
        if scheduler_output.total_num_scheduled_tokens == 0:
            self._channel.empty_step()
            nothing = ModelRunnerOutput(
                req_ids=[], req_id_to_index={}, kv_connector_output=self._kv.moved(None)
            )
            return done(nothing) if non_block else nothing
        items = items_of(scheduler_output)
        names = [name for name, *_ in items]
        encodes = scheduler_output.scheduled_encoder_inputs
        end, tokens, looks_ps = self._channel.step([list(item) for item in items], encodes=encodes)
        places = {name: place for place, name in enumerate(names)}
        looked: Looked = lambda: looks_ps  # noqa: E731
        if self._lockstep:  # known when all ranks have launched theirs
            looked = partial(self._channel.looks_of, end)
        self._kv.launched(looked)

        def output() -> Any:
            self._kv.computed({name: before + count for name, count, before, *_ in items})
            return ModelRunnerOutput(
                req_ids=names,
                req_id_to_index=places,
                sampled_token_ids=tokens,
                kv_connector_output=self._kv.moved(looked),
            )

        self._next, self._names = Pending(end, output), names
        return done(None) if non_block else None

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """The tokens of the step that was begun last, at its end."""
        assert self._next is not None, "a step was begun"
        kind = AtRoundEnd if self._lockstep else AtTime
        future = kind(self._channel, self._next)
        return future if non_block else future.result()

    def take_draft_token_ids(self) -> Any:
        """Drafts that follow the last step; which tokens they are says nothing here."""
        return DraftTokenIds(self._names, [[DRAFT] * count for count in self._channel.drafts()])

    def add_lora(self, lora_request: Any) -> bool:
        """It is there; `AdapterSlots` knows when it is loaded."""
        return True

    def execute_dummy_batch(self) -> None:
        """Joins the next round; takes no time where ranks are on their own."""
        if self._lockstep:
            self._channel.dummy()

    def shutdown(self) -> None:
        """Leaves the clock to the others."""
        self._channel.close()
