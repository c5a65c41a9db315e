"""Puts SGLang's scheduler under the clock: its steps take simulated times, and what it receives and
gives out is counted.

Methods of SGLang's classes are wrapped; its loops run as they are.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from llmsim.emulation.in_engine.channel import Channel, current, opened
from llmsim.scheduling.conformance.sglang.batches import batch_items, batch_result
from llmsim.scheduling.conformance.sglang.loops.idle import IdlePasses

_WIDTH = 1
"""Tokens that a decode computes for each request."""


class Inbox:
    """Stands for the socket from which SGLang's scheduler reads: a thread of its own reads that
    socket, and counts requests.
    """

    def __init__(
        self,
        channel: Channel,
        read: Callable[[], Any],
        count: Callable[[Any], list[tuple[str, int]]],
        is_last: Callable[[Any], bool],
    ) -> None:
        """`read` waits for the next message; `count` gives names and tokens of the requests in one,
        and `is_last` says that the server ends.
        """
        self._channel, self._read = channel, read
        self._count, self._is_last = count, is_last
        self._messages: deque[Any] = deque()
        self.is_over = False
        """The server ends: nobody waits for the clock any more."""
        self._changed = threading.Condition()
        self._parked = False
        threading.Thread(target=self._fill, name="llmsim inbox", daemon=True).start()

    def take(self) -> Any:
        """The next message; IndexError where there is none."""
        with self._changed:
            return self._messages.popleft()

    def park(self) -> None:
        """The clock may move on without this scheduler; returns when there is a message."""
        with self._changed:
            if not self._messages:
                self._parked = True
                self._channel.park()
            while not self._messages:
                self._changed.wait()

    def settle(self) -> None:
        """Returns when all requests of the present time are here, or the server ends."""
        try:
            if not self.is_over:
                self._channel.settle()
        except (ConnectionError, ValueError):  # it was closed meanwhile
            if not self.is_over:
                raise

    def _fill(self) -> None:
        while True:
            message = self._read()
            with self._changed:
                self._messages.append(message)
                self._changed.notify()
                if self._is_last(message):
                    self.is_over = True
                    self._channel.close()
                    return
                if self._parked:  # before the receipt: the clock must not move in between
                    self._parked = False
                    self._channel.unpark()
                for name, tokens in self._count(message):
                    self._channel.received(name, tokens)


class _Steps:
    """Which requests of the scheduler have begun, and when the steps in flight end."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._started: set[str] = set()
        self.retracted = 0
        """How many requests were ever retracted."""

    def forward(self, batch: Any) -> Any:
        """In place of the model: the tokens of a batch, and when they are there."""
        items = []
        for request, (name, tokens, before) in zip(
            batch.reqs, batch_items(batch, _WIDTH), strict=True
        ):
            item = [name, tokens, before, 0, name not in self._started]
            if name not in self._started:
                item.append(len(request.origin_input_ids) + len(request.output_ids))
            items.append(item)
            self._started.add(name)
        end_ps, sampled, _ = self._channel.step(items)
        result = batch_result([each[0] if each else 0 for each in sampled])
        result.llmsim_end_ps = end_ps
        return result

    def wait(self, result: Any) -> None:
        """Returns at the end of the step that gave this result."""
        end_ps = getattr(result, "llmsim_end_ps", None)
        if end_ps is not None:
            self._channel.wait(end_ps)

    def restarts(self, name: str) -> None:
        """A request has been retracted: it begins again later."""
        self._started.discard(name)
        self.retracted += 1

    def ended(self, name: str) -> None:
        """A request has its answer."""
        self._started.discard(name)


class _Passes:
    """Whether the scheduler has found nothing to run, and would find nothing in the next pass."""

    def __init__(self, scheduler: Any, steps: _Steps) -> None:
        self._passes, self._steps = IdlePasses(scheduler), steps
        self.nothing_left = False

    def begin(self) -> None:
        """A pass of the loop begins."""
        self.nothing_left = False
        self._passes.begin(self._steps.retracted)

    def is_idle(self) -> None:
        """The pass has found nothing to run."""
        self.nothing_left = not self._passes.find_more(self._steps.retracted)


def hook_scheduler(socket: str, number: int) -> None:
    """Wraps what a scheduler's process is made of; `number` is that of the engine core."""
    from sglang.srt.distributed import bootstrap

    bootstrap._bind_threads_if_cpu = lambda *_, **__: None
    _hook_inputs(socket, number)
    _hook_loop()
    _hook_steps()
    _hook_outputs()


def _hook_inputs(socket: str, number: int) -> None:
    """The scheduler joins the clock when it makes its sockets."""
    import zmq
    from sglang.srt.managers.scheduler_components import ipc_channels, request_receiver

    receive, make = request_receiver.sock_recv, ipc_channels.SchedulerIpcChannels.create.__func__

    def create(cls: Any, /, **options: Any) -> Any:
        channels = make(cls, **options)
        if channels.recv_from_tokenizer is not None:
            read = channels.recv_from_tokenizer
            inbox = Inbox(opened(socket, number), lambda: receive(read), _requests_of, _ends_server)
            object.__setattr__(channels, "recv_from_tokenizer", inbox)
        return channels

    def sock_recv(source: Any, flags: int = 0) -> Any:
        if not isinstance(source, Inbox):
            return receive(source, flags)
        try:
            return source.take()
        except IndexError:
            raise zmq.Again from None

    ipc_channels.SchedulerIpcChannels.create = classmethod(create)
    request_receiver.sock_recv = sock_recv


def _requests_of(message: Any) -> list[tuple[str, int]]:
    """Names and prompts' tokens of the requests of clients in a message."""
    from sglang.srt.managers.io_struct import (
        BatchTokenizedGenerateReqInput,
        TokenizedGenerateReqInput,
    )

    if isinstance(message, TokenizedGenerateReqInput):
        return [(message.rid, len(message.input_ids))]
    if isinstance(message, BatchTokenizedGenerateReqInput):
        return [(one.rid, len(one.input_ids)) for one in message]
    return []


def _ends_server(message: Any) -> bool:
    from sglang.srt.managers.io_struct import ShutdownReq

    return isinstance(message, ShutdownReq)


def _hook_loop() -> None:
    """Before it looks for requests, the scheduler waits for those of the present time; one that has
    nothing to do waits for a request.
    """
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.scheduler_components.request_receiver import SchedulerRequestReceiver

    ingest, pull, idle = (
        Scheduler.ingest_requests,
        SchedulerRequestReceiver._pull_raw_reqs,
        Scheduler.on_idle,
    )

    def ingest_requests(self: Any, *args: Any, **options: Any) -> Any:
        if not hasattr(self, "_llmsim_passes"):
            self._llmsim_passes = _Passes(self, _steps())
        passes = self._llmsim_passes
        if passes.nothing_left:
            self.ipc_channels.recv_from_tokenizer.park()
        passes.begin()
        return ingest(self, *args, **options)

    def _pull_raw_reqs(self: Any) -> Any:
        inbox = self.recv_from_tokenizer
        if isinstance(inbox, Inbox):
            inbox.settle()
        return pull(self)

    def on_idle(self: Any) -> None:
        idle(self)
        self._llmsim_passes.is_idle()

    Scheduler.ingest_requests = ingest_requests
    Scheduler.on_idle = on_idle
    SchedulerRequestReceiver._pull_raw_reqs = _pull_raw_reqs


_STEPS: _Steps | None = None


def _steps() -> _Steps:
    global _STEPS
    if _STEPS is None:
        channel = current()
        assert channel is not None, "the sockets are made before the first step"
        _STEPS = _Steps(channel)
    return _STEPS


def _hook_steps() -> None:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tp_worker import TpModelWorker

    process, reset = Scheduler.process_batch_result, Req.reset_for_retract

    def forward_batch_generation(self: Any, batch: Any, *_: Any, **__: Any) -> Any:
        return _steps().forward(batch)

    def process_batch_result(self: Any, batch: Any, result: Any) -> Any:
        _steps().wait(result)
        return process(self, batch, result)

    def reset_for_retract(self: Any, *args: Any, **options: Any) -> Any:
        _steps().restarts(self.rid)
        return reset(self, *args, **options)

    TpModelWorker.forward_batch_generation = forward_batch_generation
    Scheduler.process_batch_result = process_batch_result
    Req.reset_for_retract = reset_for_retract


def _hook_outputs() -> None:
    """Tokens count as under way from the time at which the scheduler sends them."""
    from sglang.srt.managers.io_struct import BatchTokenIDOutput
    from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper

    send = SenderWrapper.send_output

    def send_output(self: Any, output: Any, *args: Any, **options: Any) -> Any:
        channel = current()
        if channel is not None and isinstance(output, BatchTokenIDOutput):
            answers = [
                (name, len(tokens), reason is not None)
                for name, tokens, reason in zip(
                    output.rids, output.output_ids, output.finished_reasons, strict=True
                )
            ]
            channel.produced(answers)
            for name, _, ended in answers:
                if ended:
                    _steps().ended(name)
        return send(self, output, *args, **options)

    SenderWrapper.send_output = send_output
