"""The workload as an engine sees it: names, token ids, answers."""

from collections.abc import Callable

from msgspec.structs import replace

from llmsim.config.errors import NotYetError
from llmsim.core import Workload
from llmsim.scheduling.conformance.vllm.installed import live_requests
from llmsim.scheduling.conformance.vllm.request import LiveRequest

VOCABULARY = 1 << 30
"""Token ids that the emulated model has."""
_SPREAD = 0x9E3779B97F4A7C15
_WORD = (1 << 64) - 1


def engine_requests(
    workload: Workload, *, stops: bool, ranked: bool = False, slots: bool = False
) -> list[LiveRequest]:
    """The requests by row, with token ids of `VOCABULARY`; equal content has equal ids. Without
    `ranked`, they have no priorities, and without `slots` no adapters.
    """
    requests = [_in_vocabulary(one) for one in live_requests(workload, stops=stops, slots=slots)]
    return requests if ranked else [replace(one, priority=0) for one in requests]


def request_name(row: int) -> str:
    """What the server is told to call a request."""
    return f"{row:09d}"


def check_workload(workload: Workload, *, hands_over: bool, takes_adapters: bool = False) -> None:
    """NotYetError where its clients do what ours do not; `hands_over`: prompts and answers are
    computed apart. `takes_adapters`: the servers have slots for them.
    """
    if workload.adapter is not None and not takes_adapters:
        raise NotYetError(
            "adapters of the trace: `llmsim emulate` runs them on vLLM's servers with --max-loras, "
            "as vLLM takes none without slots; add it, or leave them out"
        )
    if hands_over and workload.may_give_up:
        raise NotYetError(
            "clients that give up (--request-timeout, cancel_after_ns or cancel_after_toks): "
            "`llmsim emulate` passes requests from prefill to decode to their end; leave it out, "
            "or give one instance without a pd_type"
        )
    for is_so, what in (
        (
            any(
                one is not None
                for one in (
                    workload.draft_depth,
                    workload.acceptance_rate,
                    workload.accepted_drafts,
                )
            ),
            "drafts of single requests of the trace",
        ),
        (workload.encoder_inputs is not None, "encoder_inputs of the trace"),
        (len(workload) >= 10**9, "more than 999,999,999 requests"),
    ):
        if is_so:
            raise NotYetError(f"{what}: `llmsim emulate` does not do this; leave it out")


def _in_vocabulary(request: LiveRequest) -> LiveRequest:
    prompt, output = request.prompt, request.output

    def known_prompt() -> list[int]:
        return [_known(token) for token in prompt()]

    known_output: Callable[[int], int] = lambda place: _known(output(place))  # noqa: E731
    return replace(request, prompt=known_prompt, output=known_output)


def _known(token: int) -> int:
    """Spreads 63 bits over the vocabulary."""
    return ((token * _SPREAD & _WORD) >> 34) % VOCABULARY
