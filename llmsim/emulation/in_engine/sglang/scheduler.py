"""Puts SGLang's scheduler under the clock: its steps take simulated times, and what it receives and
gives out is counted.

Methods of SGLang's classes are wrapped; its loops run as they are.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from llmsim.emulation.in_engine.channel import Channel, current, opened, row_of
from llmsim.emulation.in_engine.clock import ClockPage
from llmsim.emulation.in_engine.sglang.copies import HostCopies
from llmsim.emulation.in_engine.sglang.roles import hook_role
from llmsim.emulation.in_engine.sglang.stages import hook_stages
from llmsim.emulation.in_engine.sglang.transfers import NoTransfers, begin
from llmsim.scheduling.conformance.sglang import drafts, states
from llmsim.scheduling.conformance.sglang.batches import batch_items, batch_result
from llmsim.scheduling.conformance.sglang.loops.idle import IdlePasses


class Messages:
    """What messages of the tokenizer's process say."""

    def requests(self, message: Any) -> list[tuple[str, int]]:
        """Names and prompts' tokens of the requests of clients."""
        from sglang.srt.managers.io_struct import (
            BatchTokenizedGenerateReqInput,
            TokenizedGenerateReqInput,
        )

        if isinstance(message, TokenizedGenerateReqInput):
            return [(message.rid, len(message.input_ids))]
        if isinstance(message, BatchTokenizedGenerateReqInput):
            return [(one.rid, len(one.input_ids)) for one in message]
        return []

    def left(self, message: Any) -> list[str]:
        """Requests whose clients have left."""
        from sglang.srt.managers.io_struct import AbortReq

        return [message.rid] if isinstance(message, AbortReq) else []

    def asks(self, message: Any) -> bool:
        """Whether it is a question to the scheduler itself, as for its state."""
        from sglang.srt.managers.io_struct import AbortReq

        return not (isinstance(message, AbortReq) or self.requests(message))

    def ends_server(self, message: Any) -> bool:
        """Whether it is the last one."""
        from sglang.srt.managers.io_struct import ShutdownReq

        return isinstance(message, ShutdownReq)


class Inbox:
    """Stands for the socket from which SGLang's scheduler reads: a thread of its own reads that
    socket, and counts requests.
    """

    def __init__(
        self,
        channel: Channel,
        read: Callable[[], Any],
        kinds: Messages,
        *,
        beside: bool = False,
    ) -> None:
        """`read` waits for the next message, and `kinds` says what is in it; `beside`: there are
        other ranks, which run in lock-step with this one.
        """
        self._channel, self._read, self._kinds = channel, read, kinds
        self._beside = beside
        self._messages: deque[Any] = deque()
        self.is_over = False
        """The server ends: nobody waits for the clock any more."""
        self._changed = threading.Condition()
        self._parked = False
        threading.Thread(target=self._fill, name="llmsim inbox", daemon=True).start()

    def take(self) -> Any:
        """The next message; IndexError where there is none."""
        with self._changed:
            message = self._messages.popleft()
        if self._kinds.asks(message) and not self.is_over:
            self._channel.answers()
        return message

    def park(self, until_ps: int | None = None) -> None:
        """The clock may move on without this scheduler; returns when there is a message, or work
        of another rank, or KV has moved, or at that time.
        """
        with self._changed:
            if self._messages:
                return
            self._parked = True
            self._ask(lambda: self._channel.dozes(until_ps))
        self._ask(self._channel.goes_on)
        with self._changed:
            self._parked = False

    def meet(self) -> None:
        """Returns when all ranks are here, or the server ends."""
        if self._beside:
            self._ask(self._channel.meet)

    def settle(self) -> None:
        """Returns when all requests of the present time are here, or the server ends; at once where
        somebody asks something else, who waits for the answer before anything else comes.
        """
        with self._changed:
            if any(self._kinds.asks(message) for message in self._messages):
                return
            self._ask(self._channel.settles)
        self._ask(self._channel.goes_on)

    def _ask(self, question: Callable[[], None]) -> None:
        try:
            if not self.is_over:
                question()
        except (ConnectionError, ValueError):  # it was closed meanwhile
            if not self.is_over:
                raise

    def _fill(self) -> None:
        while True:
            message = self._read()
            with self._changed:
                self._messages.append(message)
                self._changed.notify()
                if self._kinds.ends_server(message):
                    self.is_over = True
                    self._channel.close()
                    return
                if self._parked:  # before the receipt: the clock must not move in between
                    self._parked = False
                    self._channel.unpark()
                if self._kinds.asks(message):
                    self._channel.asked_for()
                for name, tokens in self._kinds.requests(message):
                    self._channel.received(name, tokens)
                left = self._kinds.left(message)
                if left:
                    self._channel.left(left)


class _Steps:
    """Which requests of the scheduler have begun, and when the steps in flight end."""

    def __init__(self, channel: Channel, width: int, *, in_rounds: bool = False) -> None:
        """`width`: tokens that a decode computes for each request, of which all but one are drafts
        to be verified. `in_rounds`: steps have numbers, and one ends when all ranks in lock-step
        have launched theirs, and its transfers have landed.
        """
        self._channel, self._width, self._in_rounds = channel, width, in_rounds
        self._started: set[str] = set()
        self.copies: HostCopies | None = None
        """To host memory and back."""
        self.transfers = NoTransfers()
        """From prefill to decode servers."""
        self.retracted = 0
        """How many requests were ever retracted."""
        self.has_run = False
        """Some step was launched in this pass."""

    def forward(self, batch: Any, publish: Callable[[Any], None] | None = None) -> Any:
        """In place of the model: the tokens of a batch, and when they are there. With drafts, the
        length of each sequence is published as soon as it is known.
        """
        verifies = self._width > 1 and not batch.forward_mode.is_extend()
        waits = None if self.copies is None else self.copies.waits_of(batch)
        items = self._items(batch, self._width - 1 if verifies else 0)
        end, sampled, _ = self._channel.step(items, waits)
        if self.copies is not None:
            self.copies.launched(self._channel.end_of(end) if self._in_rounds else end)
        self.transfers.runs()
        self.has_run = True
        if verifies:
            result = drafts.verified(batch, sampled, self._width, publish)
        elif self._width > 1:
            result = drafts.settled(batch, _last_of(sampled), publish)
        else:
            result = batch_result(_last_of(sampled))
        result.llmsim_end = end
        result.llmsim_computed = [(row_of(name), before + more) for name, more, before, *_ in items]
        return result

    def _items(self, batch: Any, verified: int) -> list[list[Any]]:
        """What each request computes, with so many drafts (`Channel.step`)."""
        if batch.forward_mode.is_idle():
            return []
        items = []
        for request, (name, tokens, before) in zip(
            batch.reqs, batch_items(batch, self._width), strict=True
        ):
            item = [name, tokens, before, verified, name not in self._started]
            if name not in self._started:
                item.append(len(request.origin_input_ids) + len(request.output_ids))
            items.append(item)
            self._started.add(name)
        return items

    def wait(self, result: Any) -> None:
        """Returns at the end of the step that gave this result."""
        end = getattr(result, "llmsim_end", None)
        if end is not None:
            (self._channel.ends if self._in_rounds else self._channel.wait)(end)
            self.transfers.computed(result.llmsim_computed)

    def first_tokens(self, prompts: list[tuple[str, int]]) -> None:
        """They have come along with the KV of these requests (`Channel.first_tokens`)."""
        self.transfers.brought()
        self._channel.first_tokens(prompts)

    def restarts(self, name: str) -> None:
        """A request has been retracted: it begins again later."""
        self._started.discard(name)
        self.retracted += 1

    def gives(self, answers: list[tuple[str, int, bool]]) -> None:
        """Tokens go to clients (`Channel.produced`)."""
        self._channel.produced(answers)
        self._started.difference_update(name for name, _, ended in answers if ended)


def _last_of(sampled: list[list[int]]) -> list[int]:
    """A token of each request; one whose prompt goes on has none, and nobody looks at it."""
    return [tokens[0] if tokens else 0 for tokens in sampled]


_QUIET_PASSES = 3
"""Of stages that hand KV over, which find nothing more behind so many that ran nothing."""


class _Passes:
    """Whether the scheduler has found nothing to run, and would find nothing in the next pass."""

    def __init__(self, scheduler: Any, steps: _Steps, turns: int) -> None:
        """`turns`: how often it looks for requests in a pass, once for each micro-batch."""
        self._passes, self._steps = IdlePasses(scheduler), steps
        self._turns, self._turn = turns, 0
        self._quiet = 0
        """Passes since a step was launched, or since it rested."""
        self.nothing_left = False

    def look_back(self) -> None:
        """A turn is about to begin. With stages that hand KV over, SGLang does not say that it has
        run nothing while some of the KV is on its way; what one pass has seen happens in the next.
        """
        if self._turn > 0 or self._turns == 1:
            return
        self._quiet = 0 if self._steps.has_run else self._quiet + 1
        if self._quiet >= _QUIET_PASSES:
            self.is_idle()

    def rests(self) -> None:
        """It waits for something to happen."""
        self._quiet = 0

    def begin(self) -> None:
        """A turn of the loop begins, and with the first one a pass."""
        self.nothing_left = False
        if self._turn == 0:
            self._passes.begin(self._steps.retracted)
            self._steps.transfers.begins_pass()
            self._steps.has_run = False
        else:
            self._steps.transfers.begins_turn()
        self._turn = (self._turn + 1) % self._turns

    def is_idle(self) -> None:
        """The pass has found nothing to run."""
        self.nothing_left = not self._passes.find_more(self._steps.retracted)


def hook_scheduler(given: Mapping[str, Any]) -> None:
    """Wraps what a scheduler's process is made of; `given`: what `llmsim emulate` has set."""
    from sglang.srt.distributed import bootstrap

    bootstrap._bind_threads_if_cpu = lambda *_, **__: None
    _hook_inputs(given)
    _hook_loop(given["stages"])
    _hook_steps(given["width"])
    _hook_outputs()
    if given["keeps_states"]:
        states.use_stand_in()
    if given["stages"] > 1:
        hook_stages(given["stages"])
    if given["ranks"] > 1:
        _hook_meetings()
    if given["hands_over"]:
        hook_role(lambda prompts: _steps().first_tokens(prompts))


def _hook_inputs(given: Mapping[str, Any]) -> None:
    """The scheduler joins the clock when it makes its sockets."""
    import zmq
    from sglang.srt.managers.scheduler_components import ipc_channels, request_receiver
    from sglang.srt.runtime_context import get_parallel

    page = ClockPage(given["clock"])
    copies = None if given["copies"] is None else HostCopies(given["copies"], page)
    receive, make = request_receiver.sock_recv, ipc_channels.SchedulerIpcChannels.create.__func__

    def create(cls: Any, /, **options: Any) -> Any:
        channels = make(cls, **options)
        if channels.recv_from_tokenizer is not None:
            read = channels.recv_from_tokenizer
            beside = given["ranks"] > 1
            rank = get_parallel().attn_dp_rank if beside else 0
            channel = opened(given["socket"], given["engines"][rank])
            steps = _begin(channel, given["width"], in_rounds=given["in_rounds"])
            steps.copies = copies
            if given["hands_over"]:
                steps.transfers = begin(channel, page)
            inbox = _listen(Inbox(channel, lambda: receive(read), Messages(), beside=beside))
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


def _hook_loop(stages: int) -> None:
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
            self._llmsim_passes = _Passes(self, _steps(), stages)
        passes, transfers = self._llmsim_passes, _steps().transfers
        passes.look_back()
        if passes.nothing_left and not transfers.finds_more():
            copies = _steps().copies
            until_ps = None if copies is None else copies.next_end_ps()
            passes.rests()
            self.ipc_channels.recv_from_tokenizer.park(until_ps)
        passes.begin()
        return ingest(self, *args, **options)

    def _pull_raw_reqs(self: Any) -> Any:
        inbox = self.recv_from_tokenizer
        if isinstance(inbox, Inbox):
            inbox.settle()
            pulled = pull(self)
            inbox.meet()  # what SGLang tells all ranks goes from one of them to the others
            return pulled
        return pull(self)

    def on_idle(self: Any) -> None:
        idle(self)
        self._llmsim_passes.is_idle()

    Scheduler.ingest_requests = ingest_requests
    Scheduler.on_idle = on_idle
    SchedulerRequestReceiver._pull_raw_reqs = _pull_raw_reqs


def _hook_meetings() -> None:
    """Ranks tell each other what they run; the clock moves while one of them waits for others."""
    from sglang.srt.managers.scheduler_components.dp_attn import SchedulerDPAttnAdapter

    prepare = SchedulerDPAttnAdapter.prepare_mlp_sync_batch

    def prepare_mlp_sync_batch(self: Any, batch: Any) -> Any:
        _inbox().meet()
        return prepare(self, batch)

    SchedulerDPAttnAdapter.prepare_mlp_sync_batch = prepare_mlp_sync_batch


_STEPS: _Steps | None = None


def _begin(channel: Channel, width: int, *, in_rounds: bool) -> _Steps:
    global _STEPS
    _STEPS = _Steps(channel, width, in_rounds=in_rounds)
    return _STEPS


_INBOX: Inbox | None = None


def _listen(inbox: Inbox) -> Inbox:
    global _INBOX
    _INBOX = inbox
    return inbox


def _inbox() -> Inbox:
    assert _INBOX is not None, "the sockets are made before the first pass"
    return _INBOX


def _steps() -> _Steps:
    assert _STEPS is not None, "the sockets are made before the first step"
    return _STEPS


def _hook_steps(width: int) -> None:
    from sglang.srt.managers.schedule_batch import Req
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.managers.tp_worker import TpModelWorker

    process, reset = Scheduler.process_batch_result, Req.reset_for_retract

    def forward_batch_generation(
        self: Any, batch: Any, *_: Any, on_publish: Any = None, **__: Any
    ) -> Any:
        return _steps().forward(batch, on_publish)

    def process_batch_result(self: Any, batch: Any, result: Any) -> Any:
        _steps().wait(result)
        return process(self, batch, result)

    def reset_for_retract(self: Any, *args: Any, **options: Any) -> Any:
        _steps().restarts(self.rid)
        return reset(self, *args, **options)

    worker = TpModelWorker if width == 1 else drafts.use_stand_in()
    worker.forward_batch_generation = forward_batch_generation
    Scheduler.process_batch_result = process_batch_result
    Req.reset_for_retract = reset_for_retract


def _hook_outputs() -> None:
    """Tokens count as under way from the time at which the scheduler sends them."""
    from sglang.srt.managers.io_struct import BatchTokenIDOutput
    from sglang.srt.managers.scheduler_components.output_sender import SenderWrapper

    send = SenderWrapper.send_output

    def send_output(self: Any, output: Any, *args: Any, **options: Any) -> Any:
        if current() is not None and isinstance(output, BatchTokenIDOutput):
            answers = [
                (name, len(tokens), reason is not None)
                for name, tokens, reason in zip(
                    output.rids, output.output_ids, output.finished_reasons, strict=True
                )
            ]
            _steps().gives(answers)
        return send(self, output, *args, **options)

    SenderWrapper.send_output = send_output
