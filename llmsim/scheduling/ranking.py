"""Lets rankings in Python order a group's requests, and says what is wrong with their keys."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from llmsim.config import EngineArgs
from llmsim.config.engine.rankings import RANKING, is_ranking, lists_of, native_ranking
from llmsim.config.engine.scheduler_kinds import KINDS
from llmsim.config.errors import InputError
from llmsim.config.plugin_calls import defined_at
from llmsim.config.plugins import guarded, parse_class
from llmsim.core import Workload
from llmsim.scheduling.base import RankView

if TYPE_CHECKING:
    from llmsim import _native

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
MOST_KEYS = 8
"""Most numbers of one request's key."""


def with_ranking(
    config: "_native.SchedulerConfig", engine: EngineArgs, workload: Workload
) -> "_native.SchedulerConfig":
    """A group's scheduler with a fresh object of its ranking; the same where there is none.

    Raises InputError for a ranking of running requests where the scheduler orders them itself.
    """
    from llmsim import _native

    if not is_ranking(engine.scheduling_policy):
        return config
    native = native_ranking(engine.scheduling_policy)
    if native is not None:
        name, parameters = native
        _check_lists(name, engine)
        ranked = config.with_policies(_native.Policies())
        ranked.sessions = _native.Sessions(workload.next_call)
        ranked.rank_by(name, parameters)
        return ranked
    name, make = parse_class(RANKING, engine.scheduling_policy)
    lists = _check_lists(name, engine)
    ranking = make()
    events = [
        guarded(RANKING, name, getattr(ranking, method)) if hasattr(ranking, method) else None
        for method in ("added", "scheduled", "executed", "left")
    ]
    policies = _native.Policies()
    policies.set_ranking(
        "waiting" in lists, "running" in lists, "victims" in lists, "pauses" in lists,
        places_by(name, ranking.keys), *events,
    )  # fmt: skip
    ranked = config.with_policies(policies)
    ranked.sessions = _native.Sessions(workload.next_call)
    return ranked


def _check_lists(name: str, engine: EngineArgs) -> frozenset[str]:
    """What the ranking orders; raises InputError where the engine's scheduler does that itself."""
    lists = lists_of(name)
    reason = KINDS[engine.scheduler].lacks.get("ranked_running")
    if reason is not None and lists != {"waiting"}:
        raise InputError(
            f"ranking {name} orders {', '.join(sorted(lists))}, but goes with the scheduler "
            f"{engine.scheduler} for the waiting queue alone: {reason}; choose another scheduler"
        )
    return lists


def places_by(name: str, keys: Callable[[Any, int], object]) -> Callable[[RankView, int], Places]:
    """Turns the keys of a ranking into places from 0; a lower key comes first, the row breaks ties.

    The function raises InputError for keys that are not finite numbers, one or several per request.
    """
    ask = guarded(RANKING, name, keys)

    def places(view: RankView, now_ps: int) -> Places:
        columns = _columns(name, keys, ask(view, now_ps), len(view))
        found = np.empty(len(view), np.int64)
        found[np.lexsort((view.row, *reversed(columns)))] = np.arange(len(view))
        return found

    return places


def _columns(
    name: str, keys: Callable[..., object], answer: object, count: int
) -> list[np.ndarray[Any, Any]]:
    """The numbers of the keys, a column each, the first one first."""

    def refused(reason: str) -> InputError:
        return InputError(f"ranking {name}: keys() {reason} ({defined_at(keys)})")

    try:
        array = np.asarray(answer)
    except ValueError:
        raise refused("answered rows of different lengths; one key per request is needed") from None
    if array.dtype.kind not in "biuf":
        raise refused(f"answered values of type {array.dtype}; integers or floats are needed")
    if array.ndim not in (1, 2) or len(array) != count:
        raise refused(f"answered shape {array.shape} for {count} requests; one key each is needed")
    if array.ndim == 2 and not 1 <= array.shape[1] <= MOST_KEYS:
        raise refused(f"answered {array.shape[1]} numbers per key; 1 to {MOST_KEYS} are possible")
    if array.dtype.kind == "f" and np.isnan(array).any():
        first = int(np.isnan(array).reshape(count, -1).any(axis=1).argmax())
        raise refused(f"answered NaN for request {first} of {count}")
    return [array] if array.ndim == 1 else list(array.T)
