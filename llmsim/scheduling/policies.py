"""The policies of a run that are not the engine's own: what the command line names, and how they
are put in.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from llmsim.config.engine.scheduler_kinds import KINDS
from llmsim.config.errors import InputError
from llmsim.config.plugins import Kind, Maker, found, guarded, parse_class, split_options
from llmsim.core import Workload
from llmsim.routing.spec import session_names
from llmsim.scheduling.base import EngineLimits
from llmsim.scheduling.python_scheduler import StepScheduler

if TYPE_CHECKING:
    from llmsim import _native

QUEUE_ORDER = Kind(
    "queue order",
    "--queue-order",
    "llmsim.queue_orders",
    {"key": "key(request), which orders the waiting queue"},
    "my_module:MyOrder:weight=3",
)
VICTIM = Kind(
    "preemption victim", "--preemption-victim", "llmsim.preemption_victims",
    {"choose": "choose(running, needy), which chooses an index"}, "my_module:MyVictim:weight=3",
)  # fmt: skip
EVICTION = Kind(
    "cache eviction", "--cache-eviction", "llmsim.cache_evictions",
    {
        "evict": "evict(count), which chooses blocks",
        "freed": "freed(blocks), which hears of cached blocks",
        "reused": "reused(blocks), which hears of blocks that are held again",
    }, "my_module:MyEviction:weight=3",
)  # fmt: skip
ADMISSION = Kind(
    "admission",
    "--admission",
    "llmsim.admissions",
    {"admit": "admit(request, group), which says yes or no"},
    "QUEUE_LIMIT:requests=100",
)
SCHEDULER = Kind(
    "scheduler",
    "--scheduler",
    "llmsim.schedulers",
    {
        name: f"{name}(...) of llmsim.scheduling.base.StepPolicy"
        for name in ("add", "build", "complete", "abort")
    },
    "my_module:MyScheduler:chunk=256",
)
QUEUE_LIMIT = "QUEUE_LIMIT"
MAX_QUEUE = (1 << 31) - 1


class Policy(Struct, frozen=True):
    """A class that was found: `make` makes a fresh object of it."""

    name: str
    make: Maker

    def position(self, sentence: str = "") -> str:
        """`file:line` of the method that a sentence is about."""
        return self.make.kind.position(found(self.make.kind, self.name), sentence)


class PolicySpecs(Struct, frozen=True):
    """Every policy of a run; None leaves the decision to the engine."""

    queue_order: Policy | None = None
    victim: Policy | None = None
    eviction: Policy | None = None
    admission: Policy | None = None
    queue_limit: int | None = None
    """vLLM's max_num_queued_reqs: requests beyond are turned away."""
    scheduler: Policy | None = None

    def applied(self, config: "_native.SchedulerConfig") -> "_native.SchedulerConfig":
        """A group's scheduler with fresh objects of the policies; the same where there are none."""
        from llmsim import _native

        if self.queue_order is None and self.victim is None and self.eviction is None:
            return config
        for feature, policy in (("queue_order", self.queue_order), ("ranked_running", self.victim)):
            reason = KINDS[config.scheduler].lacks.get(feature)
            if policy is not None and reason is not None:
                raise InputError(
                    f"{policy.make.kind.option} {policy.name} does not go with the scheduler "
                    f"{config.scheduler}: {reason}; remove the option, or choose another scheduler"
                )
        policies = _native.Policies()
        if self.queue_order is not None:
            order = self.queue_order.make()
            first = bool(getattr(order, "preempted_first", True))
            policies.set_queue_order(guarded(QUEUE_ORDER, self.queue_order.name, order.key), first)
        if self.victim is not None:
            policies.set_victim(guarded(VICTIM, self.victim.name, self.victim.make().choose))
        if self.eviction is not None:
            chosen, name = self.eviction.make(), self.eviction.name
            methods = (
                guarded(EVICTION, name, getattr(chosen, method))
                for method in ("freed", "reused", "evict")
            )
            policies.set_eviction(*methods)
        return config.with_policies(policies)

    def steps(self, config: "_native.SchedulerConfig", workload: Workload) -> StepScheduler | None:
        """A group's whole scheduler in Python, if there is one."""
        if self.scheduler is None:
            return None
        kv = config.kv
        limits = EngineLimits(
            config.max_num_seqs,
            config.max_num_scheduled_tokens,
            kv.max_model_len,
            kv.block_size,
            kv.num_blocks - 1,
        )
        policy = self.scheduler.make(limits)
        return StepScheduler(policy, self.scheduler.name, limits, workload)

    def native_admission(
        self, models: Sequence[str], workload: Workload
    ) -> "_native.AdmissionMaker | None":
        """What makes the simulation's admission policy; None takes every request in."""
        from llmsim import _native

        if self.admission is not None:
            admit = guarded(ADMISSION, self.admission.name, self.admission.make().admit)
            return _native.python_admission(admit, session_names(workload), tuple(models))
        return None if self.queue_limit is None else _native.queue_limit(self.queue_limit)

    def named(self, sentence: str) -> str:
        """A sentence of the core that begins with the kind of a policy, with the policy's name and
        place put in.
        """
        policies = (
            (QUEUE_ORDER, self.queue_order),
            (VICTIM, self.victim),
            (EVICTION, self.eviction),
            (ADMISSION, self.admission),
        )
        for kind, policy in policies:
            if policy is not None and sentence.startswith(kind.word):
                rest = sentence.removeprefix(kind.word)
                return f"{kind.word} {policy.name}{rest} ({policy.position(rest)})"
        return sentence


def parse_policies(
    *,
    queue_order: str | None,
    victim: str | None,
    eviction: str | None,
    admission: str | None,
    scheduler: str | None,
) -> PolicySpecs:
    """Checks what the command line names; raises InputError for a class that cannot be found, made
    or used.
    """
    limit = None
    if admission is not None:
        name, given = split_options(ADMISSION.option, admission, ADMISSION.example)
        if name.upper() == QUEUE_LIMIT:
            limit, admission = _limit(admission, given), None
    return PolicySpecs(
        queue_order=_policy(QUEUE_ORDER, queue_order),
        victim=_policy(VICTIM, victim),
        eviction=_policy(EVICTION, eviction),
        admission=_policy(ADMISSION, admission),
        queue_limit=limit,
        scheduler=_policy(SCHEDULER, scheduler, EngineLimits(1, 1, 1, 1, 1)),
    )


def _policy(kind: Kind, text: str | None, *arguments: object) -> Policy | None:
    if text is None:
        return None
    name, make = parse_class(kind, text)
    if arguments:  # those of the run are not known yet
        make.check_arguments(*arguments)
    else:
        make.try_early()
    return Policy(name, make)


def _limit(text: str, given: dict[str, str]) -> int:
    value = given.pop("requests", "")
    if given or not (value.isdecimal() and len(value) < 20) or not 1 <= int(value) <= MAX_QUEUE:
        raise InputError(
            f"{ADMISSION.option} {text}: {QUEUE_LIMIT} needs requests=N, a whole number from 1"
        )
    return int(value)
