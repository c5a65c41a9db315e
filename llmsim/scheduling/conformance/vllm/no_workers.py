"""An executor of vLLM that has neither workers nor a device."""

from concurrent.futures import Future
from typing import Any

from vllm.v1.executor.abstract import Executor


class NoWorkers(Executor):  # type: ignore[misc]
    """Answers what vLLM's engine core asks workers beside the steps; those are a subclass's."""

    supports_pp = True

    @classmethod
    def supports_async_scheduling(cls) -> bool:
        """As vLLM's own executors do."""
        return True

    def initialize_from_config(self, kv_cache_configs: Any) -> None:
        """There is no memory to take."""

    def get_supported_kv_cache_layouts(self) -> list[list[str]]:
        """Any layout will do (vLLM 0.33)."""
        return [["LBNHC", "LBHNC"]]

    def set_kv_cache_layout(self, layout_name: str, cp_kv_cache_interleave_size: int = 1) -> None:
        """There is nothing to lay out (vLLM from 0.31 on, which at first gave the name alone)."""

    def compile_or_warm_up_model(self) -> None:
        """There is nothing to warm up (vLLM 0.33)."""

    @property
    def supported_tasks(self) -> tuple[str, ...]:
        """Text generation."""
        return ("generate",)

    def collective_rpc(self, method: Any, *args: Any, **options: Any) -> list[Any]:
        """Nobody is there to answer."""
        name = method if isinstance(method, str) else getattr(method, "__name__", "")
        return [("generate",) if name == "get_supported_tasks" else None]

    def execute_dummy_batch(self) -> None:
        """Takes no time."""

    def check_health(self) -> None:
        """Always well."""

    def shutdown(self) -> None:
        """Nothing is to be ended."""

    def reset_mm_cache(self) -> None:
        """There is none."""

    def reset_encoder_cache(self) -> None:
        """There is none."""


def done(value: Any) -> "Future[Any]":
    """A future with a value."""
    future: Future[Any] = Future()
    future.set_result(value)
    return future
