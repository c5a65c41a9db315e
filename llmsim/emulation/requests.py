"""The workload as an engine sees it: names, token ids, answers."""

from collections.abc import Callable

from msgspec.structs import replace

from llmsim.config.errors import NotYetError
from llmsim.core import Workload
from llmsim.scheduling.conformance.vllm.installed import live_requests, with_images
from llmsim.scheduling.conformance.vllm.request import LiveRequest

VOCABULARY = 1 << 30
"""Token ids that the emulated model has."""
_LEAVE_OUT = "does not do this; leave it out"
_SPREAD = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def engine_requests(workload: Workload, *, stops: bool, ranked: bool = False) -> list[LiveRequest]:
    """The requests by row, with token ids of `VOCABULARY`; equal content has equal ids. Without
    `ranked`, they have no priorities.
    """
    requests = [_in_vocabulary(one) for one in live_requests(workload, stops=stops)]
    if workload.encoder_inputs is not None:
        requests = with_images(requests, workload)
    return requests if ranked else [replace(one, priority=0) for one in requests]


def request_name(row: int) -> str:
    """What the server is told to call a request."""
    return f"{row:09d}"


def check_workload(
    workload: Workload,
    *,
    hands_over: bool,
    stays: bool = False,
    takes_adapters: bool = False,
    encodes: bool = False,
) -> None:
    """NotYetError where its clients do what ours do not; `hands_over`: prompts and answers are
    computed apart; `stays`: by servers that a client may not leave before its answer's end.
    `takes_adapters`: the servers have slots for them. `encodes`: they have budgets of an encoder.
    """
    gives_up = stays and workload.may_give_up
    has_adapters = workload.adapter is not None and not takes_adapters
    has_images = workload.encoder_inputs is not None
    drafts = (workload.draft_depth, workload.acceptance_rate, workload.accepted_drafts)
    for is_so, what, remedy in (
        (
            gives_up,
            "clients that give up (--request-timeout, cancel_after_ns or cancel_after_toks)",
            "runs them where KV is pulled and RR chooses; leave them out, or add --kv-transfer "
            "whole --kv-transfer-mode pull, and RR on both sides",
        ),
        (
            has_adapters,
            "adapters of the trace",
            "gives them to vLLM's servers with --max-loras alone; add it, or leave them out",
        ),
        (
            has_images and (hands_over or not encodes),
            "encoder_inputs of the trace",
            "gives them to vLLM's servers from 0.24 on without a pd_type; choose "
            "these, or leave them out",
        ),
        (
            any(one is not None for one in drafts),
            "drafts of single requests of the trace",
            _LEAVE_OUT,
        ),
        (len(workload) >= 10**9, "more than 999,999,999 requests", _LEAVE_OUT),
    ):
        if is_so:
            raise NotYetError(f"{what}: `llmsim emulate` {remedy}")


def _in_vocabulary(request: LiveRequest) -> LiveRequest:
    prompt, output = request.prompt, request.output

    def known_prompt() -> list[int]:
        return [_known(token) for token in prompt()]

    known_output: Callable[[int], int] = lambda place: _known(output(place))  # noqa: E731
    return replace(request, prompt=known_prompt, output=known_output)


def _known(token: int) -> int:
    """Spreads 63 bits over the vocabulary."""
    return ((token * _SPREAD & _WORD) >> 34) % VOCABULARY
