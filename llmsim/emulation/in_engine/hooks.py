"""Tells the Timekeeper when vLLM's engine core idles, takes requests, gives tokens out and reports
its load.

Three methods of `EngineCoreProc` are wrapped; nothing of vLLM is edited.
"""

import threading
from typing import Any

from llmsim.emulation.in_engine.channel import Channel, current

_TO_COORDINATOR = -1
"""In place of a client's number."""


class CoreState:
    """How many requests, and messages that wake it, the engine core has received and not yet
    taken.
    """

    def __init__(self, core: Any, add: Any, wave: Any, abort: Any) -> None:
        """`add`, `wave`, `abort`: the kinds of messages that bring a request, that wake a rank, and
        that say that clients have left.
        """
        self._core, self._add, self._wave, self._abort = core, add, wave, abort
        self._lock = threading.Lock()
        self._received = 0
        self._parked = False
        self._put = core.input_queue.put_nowait
        core.input_queue.put_nowait = self._put_counted
        self._give = core.output_queue.put_nowait
        core.output_queue.put_nowait = self._give_counted

    def _give_counted(self, item: Any) -> None:
        channel = current()
        if channel is not None and isinstance(item, tuple) and item[0] == _TO_COORDINATOR:
            channel.reports()
        self._give(item)

    def _put_counted(self, item: Any) -> None:
        """Called in the thread that reads the socket."""
        channel = current()
        if item[0] not in (self._add, self._wave, self._abort) or channel is None:
            self._put(item)
            return
        with self._lock:
            self._put(item)
            self._received += 1
            if self._parked:  # before the receipt: the clock must not move in between
                self._parked = False
                channel.unpark()
            if item[0] == self._wave:
                channel.woken()
                return
            if item[0] == self._abort:
                channel.left(list(item[1]))
                return
            request = item[1][0]
            channel.received(request.request_id, request.num_prompt_tokens)

    def taken(self) -> None:
        """The engine core has taken what it received."""
        with self._lock:
            self._received -= 1

    def park_if_idle(self, channel: Channel) -> None:
        """The clock may move on without this engine core, if it has nothing to do."""
        with self._lock:
            if not self._parked and self._received == 0 and not self._core.has_work():
                self._parked = True
                channel.park()


def hook_engine_core() -> None:
    """Wraps the methods, once."""
    from vllm.v1.engine import EngineCoreRequestType, core

    process = core.EngineCoreProc
    if getattr(process, "_llmsim", False):
        return
    process._llmsim = True
    kinds = EngineCoreRequestType
    _hook_inputs(process, kinds.ADD, kinds.START_DP_WAVE, kinds.ABORT)
    _hook_waves(core.DPEngineCoreProc, EngineCoreRequestType.START_DP_WAVE)
    _hook_outputs(process)


def _hook_inputs(process: Any, add: Any, wave: Any, abort: Any) -> None:
    take_inputs, take_one = process._process_input_queue, process._handle_client_request

    def _process_input_queue(self: Any) -> None:
        channel = current()
        if channel is None:
            take_inputs(self)
            return
        if not hasattr(self, "_llmsim_state"):
            self._llmsim_state = CoreState(self, add, wave, abort)
        state = self._llmsim_state
        if not self.has_work():
            state.park_if_idle(channel)
            take_inputs(self)  # returns when there is work
        # What arrives at this time is scheduled at this time, whichever process was faster.
        channel.settle()
        if self.has_work():
            take_inputs(self)

    def _handle_client_request(self: Any, kind: Any, request: Any) -> None:
        take_one(self, kind, request)
        channel = current()
        if kind in (add, abort) and channel is not None:
            self._llmsim_state.taken()
            self._llmsim_state.park_if_idle(channel)

    process._process_input_queue = _process_input_queue
    process._handle_client_request = _handle_client_request


def _hook_waves(process: Any, wave: Any) -> None:
    take_one = process._handle_client_request

    def _handle_client_request(self: Any, kind: Any, request: Any) -> None:
        take_one(self, kind, request)
        channel = current()
        if kind == wave and channel is not None:
            self._llmsim_state.taken()
            self._llmsim_state.park_if_idle(channel)

    process._handle_client_request = _handle_client_request


def hook_ranks() -> None:
    """Ranks in lock-step agree in virtual time, and rest between two waves."""
    from vllm.config import ParallelConfig
    from vllm.v1.engine import core

    _hook_idle_ranks(core.DPEngineCoreProc)

    def sync_dp_state(*_: Any, has_unfinished: bool, pending_pause: bool) -> tuple[bool, bool]:
        channel = current()
        assert channel is not None, "engine cores alone agree"
        return channel.agree(unfinished=has_unfinished, pauses=pending_pause)

    ParallelConfig.sync_dp_state = staticmethod(sync_dp_state)


def _hook_idle_ranks(process: Any) -> None:
    """A rank that keeps the KV of requests that have ended, for another server, goes round and
    round between two waves: without a request, it runs no dummies.
    """
    take_step = process._process_engine_step

    def _process_engine_step(self: Any) -> bool:
        executed = bool(take_step(self))
        runs_dummies = self.engines_running or self.scheduler.has_unfinished_requests()
        channel = current()
        if channel is not None and not (executed or runs_dummies) and self.has_work():
            channel.rest()
        return executed

    process._process_engine_step = _process_engine_step


def _hook_outputs(process: Any) -> None:
    take_step = process._process_engine_step

    def _process_engine_step(self: Any) -> bool:
        if not hasattr(self, "_llmsim_step"):
            self._llmsim_step = step = self.step_fn

            def counted() -> Any:
                outputs, executed = step()
                channel = current()
                answers = [
                    (one.request_id, len(one.new_token_ids), one.finish_reason is not None)
                    for each in (outputs or {}).values()
                    for one in each.outputs
                    if one.new_token_ids or one.finish_reason is not None
                ]
                if answers and channel is not None:
                    channel.produced(answers)
                ended = sum(bool(each.finished_requests) for each in (outputs or {}).values())
                if ended and channel is not None:
                    channel.ended(ended)
                return outputs, executed

            self.step_fn = counted
        return bool(take_step(self))

    process._process_engine_step = _process_engine_step
