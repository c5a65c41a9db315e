"""Which roles of a deployment may take cheaper devices (Frontier, section 6.2).

With Price(g) the hourly price of allocation g and T(g) its token throughput, against the baseline
g0 of every role's first device: spend ratio SR = Price(g0) / Price(g), cost efficiency CE = (T(g) /
Price(g)) / (T(g0) / Price(g0)). An allocation passes three gates in order:

1. Alignment. A role that has left its first device must not be compute-bound. Its operators are,
   where arithmetic limits more than `compute_share` of their time in the matched run: the same
   allocation with this role on its first device. So is a role that this move slows down by more
   than it saves: device time per token times price rises.
2. Latency: the 95th percentiles of TTFT and TPOT.
3. Efficiency: CE above `min_ce`.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from llmsim.api.cluster import LINK_LATENCY_NS, NODE_LATENCY_NS, NODE_LINK_GB_PER_S, Cluster
from llmsim.api.run import run
from llmsim.config.errors import InfeasibleError, InputError
from llmsim.model.hardware import data_sheet
from llmsim.plurals import plural
from llmsim.results.devices.operator_limits import COMPUTE, LINKS, MEMORY
from llmsim.study.hetero_file import LETTERS, HeteroFile, Question, Role

MOST_ALLOCATIONS = 4096
GATES = ("fits", "alignment", "latency", "efficiency")
"""In the order in which they are asked; `fits`: the model has room, and all that the baseline
serves is served.
"""


@dataclass(frozen=True)
class Allocation:
    """How many instances of each role, on which device."""

    split: int
    counts: Mapping[str, int]
    devices: Mapping[str, str]

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two allocations one run."""
        return (tuple(self.counts.items()), tuple(self.devices.items()))

    def moved(self, role: str, device: str) -> "Allocation":
        """The same with one role on another device."""
        return Allocation(self.split, self.counts, {**self.devices, role: device})


@dataclass(frozen=True)
class RoleFigures:
    """What a role did in one run."""

    limits: Mapping[str, float]
    """Share of its operators' time that arithmetic, memory and links limit; sums to 1."""
    device_s_per_token: float
    """Device-seconds of steps with requests, over the tokens that they computed."""

    @property
    def bound(self) -> str:
        """What limits most of its operators' time."""
        return max(self.limits, key=lambda name: self.limits[name])


@dataclass(frozen=True)
class Outcome:
    """One run; `problem` is a sentence where there was none to speak of."""

    completed: int = 0
    """Requests that were served; the workload may have longer ones than the model takes."""
    tokens_per_s: float = 0.0
    p95_ttft_ms: float | None = None
    p95_tpot_ms: float | None = None
    roles: Mapping[str, RoleFigures] = field(default_factory=dict)
    problem: str = ""


@dataclass(frozen=True)
class Row:
    """One allocation with its scores and the first gate that it failed."""

    allocation: Allocation
    label: str
    usd_per_hour: float
    spend_ratio: float
    cost_efficiency: float | None
    classes: Mapping[str, str]
    compute_share: Mapping[str, float]
    """Of each role in its matched run, on its first device."""
    slowdown: Mapping[str, float]
    """Device time per token over that of the matched run; 1 on the first device."""
    outcome: Outcome
    gate_failed: str | None
    why: str
    baseline: bool = False

    def as_json(self) -> dict[str, Any]:
        """The row of `--json`."""
        return {
            "label": self.label,
            "allocation": dict(self.allocation.devices),
            "instances": dict(self.allocation.counts),
            "baseline": self.baseline,
            "usd_per_hour": self.usd_per_hour,
            "sr": self.spend_ratio,
            "ce": self.cost_efficiency,
            "tokens_per_s": self.outcome.tokens_per_s,
            "classes": dict(self.classes),
            "compute_share": dict(self.compute_share),
            "slowdown": dict(self.slowdown),
            "p95": {"ttft_ms": self.outcome.p95_ttft_ms, "tpot_ms": self.outcome.p95_tpot_ms},
            "gate_failed": self.gate_failed,
            "why": self.why,
        }


@dataclass(frozen=True)
class Study:
    """The answer: a row for each allocation, the baseline first."""

    question: Question
    rows: tuple[Row, ...]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        file = self.question.file
        return {
            "description": file.description,
            "sla": {"p95_ttft_ms": file.sla.p95_ttft_ms, "p95_tpot_ms": file.sla.p95_tpot_ms},
            "min_ce": file.min_ce,
            "prices": dict(self.question.usd_per_hour),
            "rows": [row.as_json() for row in self.rows],
        }


Runner = Callable[[Allocation], Outcome]


def study(question: Question, runner: Runner | None = None) -> Study:
    """Runs every allocation and the matched runs of gate 1, each once.

    `runner` takes the place of the simulator. Raises InputError for what no run takes.
    """
    outcomes: dict[tuple[Any, ...], Outcome] = {}
    simulated = runner or (lambda allocation: _simulated(question, allocation))

    def outcome_of(allocation: Allocation) -> Outcome:
        if allocation.key not in outcomes:
            outcomes[allocation.key] = simulated(allocation)
        return outcomes[allocation.key]

    every = list(_allocations(question))
    baseline = every[0]
    if problem := outcome_of(baseline).problem:
        raise InfeasibleError(f"{question.path}: the baseline cannot run: {problem}")
    judge = _Judge(question, baseline, outcome_of)
    return Study(question, tuple(judge.row(allocation) for allocation in every))


def _allocations(question: Question) -> Iterator[Allocation]:
    roles = question.file.roles
    number = len(question.splits)
    for role in roles:
        number *= len(role.devices)
    if number > MOST_ALLOCATIONS:
        raise InputError(
            f"{question.path}: {number} allocations are more than {MOST_ALLOCATIONS}; give fewer "
            "splits or devices"
        )
    for i, counts in enumerate(question.splits):
        for devices in itertools.product(*(role.devices for role in roles)):
            names: list[str] = [role.role for role in roles]
            ordered: dict[str, int] = {role.role: counts[role.role] for role in roles}
            yield Allocation(i, ordered, dict(zip(names, devices, strict=True)))


class _Judge:
    """Scores and gates of one study."""

    def __init__(
        self, question: Question, baseline: Allocation, outcome_of: Callable[[Allocation], Outcome]
    ) -> None:
        self._question, self._baseline, self._outcome_of = question, baseline, outcome_of
        self._first: dict[str, str] = {role.role: role.devices[0] for role in question.file.roles}
        self._sizes: dict[str, int] = {role.role: devices_of(role) for role in question.file.roles}

    def price(self, allocation: Allocation) -> float:
        """USD per hour of all devices."""
        return sum(
            count * self._sizes[role] * self._question.usd_per_hour[allocation.devices[role]]
            for role, count in allocation.counts.items()
        )

    def row(self, allocation: Allocation) -> Row:
        """The allocation beside the baseline."""
        outcome = self._outcome_of(allocation)
        spend_ratio = self.price(self._baseline) / self.price(allocation)
        throughput = self._outcome_of(self._baseline).tokens_per_s
        efficiency = None
        if not outcome.problem and throughput:
            efficiency = spend_ratio * outcome.tokens_per_s / throughput
        shares, slowdown = self._matched(allocation)
        failed, why = self._gates(allocation, outcome, efficiency, shares, slowdown)
        return Row(
            allocation=allocation,
            label=label(allocation, self._first),
            usd_per_hour=self.price(allocation),
            spend_ratio=spend_ratio,
            cost_efficiency=efficiency,
            classes=self._classes(allocation, shares, slowdown),
            compute_share=shares,
            slowdown=slowdown,
            outcome=outcome,
            gate_failed=failed,
            why=why,
            baseline=allocation.key == self._baseline.key,
        )

    def _matched(self, allocation: Allocation) -> tuple[dict[str, float], dict[str, float]]:
        shares: dict[str, float] = {}
        slowdown: dict[str, float] = {}
        for role, device in allocation.devices.items():
            there = self._outcome_of(allocation.moved(role, self._first[role])).roles.get(role)
            here = self._outcome_of(allocation).roles.get(role)
            if there is None:
                continue
            shares[role] = there.limits[COMPUTE]
            if here is not None and there.device_s_per_token:
                moved = device != self._first[role]
                ratio = here.device_s_per_token / there.device_s_per_token
                slowdown[role] = ratio if moved else 1.0
        return shares, slowdown

    def _saving(self, allocation: Allocation, role: str) -> float:
        """Price of the role's first device over that of the one it has."""
        prices = self._question.usd_per_hour
        return prices[self._first[role]] / prices[allocation.devices[role]]

    def _classes(
        self, allocation: Allocation, shares: Mapping[str, float], slowdown: Mapping[str, float]
    ) -> dict[str, str]:
        classes = {}
        for role in shares:
            matched = self._outcome_of(allocation.moved(role, self._first[role])).roles[role]
            bound = matched.bound if matched.bound != COMPUTE else MEMORY
            regresses = slowdown.get(role, 1.0) > max(self._saving(allocation, role), 1.0)
            limited = shares[role] > self._question.file.compute_share
            classes[role] = COMPUTE if limited or regresses else bound
        return classes

    def _gates(
        self,
        allocation: Allocation,
        outcome: Outcome,
        efficiency: float | None,
        shares: Mapping[str, float],
        slowdown: Mapping[str, float],
    ) -> tuple[str | None, str]:
        if outcome.problem:
            return "fits", outcome.problem
        served = self._outcome_of(self._baseline).completed
        if outcome.completed < served:
            are = plural(outcome.completed, "request is", "requests are")
            ended = f"{outcome.completed} {are} served"
            return "fits", f"{ended}, {served} by the baseline"
        for role, device in allocation.devices.items():
            if device == self._first[role] or role not in shares:
                continue
            if sentence := self._misaligned(allocation, role, shares, slowdown):
                return "alignment", sentence
        if sentence := _too_slow(self._question.file, outcome):
            return "latency", sentence
        if allocation.key == self._baseline.key:
            return None, "baseline"
        least = self._question.file.min_ce
        if efficiency is None or efficiency <= least:
            found = "unknown" if efficiency is None else f"{efficiency:.3f}"
            return "efficiency", f"CE is {found}, not above {least:g}"
        return None, "accepted"

    def _misaligned(
        self,
        allocation: Allocation,
        role: str,
        shares: Mapping[str, float],
        slowdown: Mapping[str, float],
    ) -> str:
        limit, saving = self._question.file.compute_share, self._saving(allocation, role)
        first = self._first[role]
        if shares[role] > limit:
            return (
                f"{role} is compute-bound: arithmetic limits {100 * shares[role]:.0f} % of its "
                f"operators' time on {first}, more than {100 * limit:.0f} %"
            )
        if slowdown.get(role, 1.0) > max(saving, 1.0):
            return (
                f"{role} takes {slowdown[role]:.2f} times the device time per token of {first}, "
                f"whose price is only {saving:.2f} times as high"
            )
        return ""


def _too_slow(file: HeteroFile, outcome: Outcome) -> str:
    for name, found in (("p95_ttft_ms", outcome.p95_ttft_ms), ("p95_tpot_ms", outcome.p95_tpot_ms)):
        target = getattr(file.sla, name)
        if target and (found is None or found > target):
            told = "unknown" if found is None else f"{found:.1f} ms"
            return f"{name} is {told}, above {target:g} ms"
    return ""


def label(allocation: Allocation, first: Mapping[str, str]) -> str:
    """`P:D 4:4, D on H20`."""
    letters = ":".join(LETTERS[role] for role in allocation.counts)
    counts = ":".join(str(count) for count in allocation.counts.values())
    moved = [
        f"{LETTERS[role]} on {device}"
        for role, device in allocation.devices.items()
        if device != first[role]
    ]
    everywhere = "all " + "/".join(dict.fromkeys(first.values()))
    return f"{letters} {counts}, {', '.join(moved) or everywhere}"


def devices_of(role: Role) -> int:
    """Devices of one instance of a role, all data-parallel ranks of its attention together."""
    named = {"hardware": "H100", **_role_keys(role), **role.instance}
    fields = {"link_bw": 1, "link_latency": 0, "nodes": [{"instances": [named]}]}
    _, parsed = next(iter(Cluster.of(fields, "roles").parsed().instances()))
    return parsed.layout.num_devices * parsed.layout.replicas


def _role_keys(role: Role) -> dict[str, str]:
    """The keys that a role gives its instances; one afd_group holds all where none is named."""
    if role.role == "colocated":
        return {}
    apart = role.role in ("attention", "ffn")
    return {"pd_type": role.role, **({"afd_group": "layers"} if apart else {})}


def cluster_fields(question: Question, allocation: Allocation) -> dict[str, Any]:
    """The cluster file of an allocation: nodes of one role each; the slowest device's links."""
    file = question.file
    sheets = [data_sheet(name) for role in file.roles for name in role.devices]
    link = min(sheet.intra_node_link_bytes_per_s for sheet in sheets) / 1e9
    cards = [
        sheet.network_card_bytes_per_s / 1e9 for sheet in sheets if sheet.network_card_bytes_per_s
    ]
    between = min(cards, default=NODE_LINK_GB_PER_S)
    nodes: list[dict[str, Any]] = []
    for role in file.roles:
        instance = _instance(question, role, allocation.devices[role.role])
        per_node = max(1, file.devices_per_node // devices_of(role))
        count = allocation.counts[role.role]
        nodes += [
            {"instances": [instance] * min(per_node, count - first)}
            for first in range(0, count, per_node)
        ]
    return {
        "link_bw": [link, link, between],
        "link_latency": [LINK_LATENCY_NS, LINK_LATENCY_NS, NODE_LATENCY_NS],
        **file.cluster,
        "nodes": nodes,
    }


def _instance(question: Question, role: Role, device: str) -> dict[str, Any]:
    sheet = data_sheet(device)
    memory = {
        "mem_size": round(sheet.memory_bytes / (1 << 30), 3),
        "mem_bw": sheet.memory_bandwidth_bytes_per_s / 1e9,
    }
    price = {"price_per_device_hour": question.usd_per_hour[device]}
    return {"npu_mem": memory, **_role_keys(role), **role.instance, "hardware": device, **price}


def _simulated(question: Question, allocation: Allocation) -> Outcome:
    cluster = Cluster.of(cluster_fields(question, allocation), str(question.path))
    try:
        result = run(
            cluster, question.workload, steps=False, series=False, **_options(question.file)
        )
    except InfeasibleError as error:
        return Outcome(problem=str(error))
    summary = result.summary
    return Outcome(
        completed=summary["completed"],
        tokens_per_s=summary["total_token_throughput"] or 0.0,
        p95_ttft_ms=summary["p95_ttft_ms"],
        p95_tpot_ms=summary["p95_tpot_ms"],
        roles=_role_figures(result),
        problem="" if summary["completed"] else "no request was served",
    )


def _options(file: HeteroFile) -> dict[str, Any]:
    return {
        name.removeprefix("--").replace("-", "_"): value for name, value in file.options.items()
    }


def _batches_of(groups: Any, role: str) -> Any:
    """The groups whose batches a role computes: FFN instances have those of attention ones."""
    return groups[groups["role"] == ("attention" if role == "ffn" else role)]


def _role_figures(result: Any) -> dict[str, RoleFigures]:
    limits = result.operator_limits
    groups = result.groups
    figures = {}
    for role, rows in groups.groupby("role", sort=False):
        own = limits[limits["group"].isin(rows["group"])]
        devices = own["group"].map(rows.set_index("group")["devices"])
        total = float((own["time_ps"] * devices).sum())
        compute = float((own["compute_ps"] * devices).sum())
        linked = own["limit"] == LINKS
        links = float((own["time_ps"] * devices)[linked].sum())
        shares = {COMPUTE: compute, MEMORY: total - compute - links, LINKS: links}
        tokens = int(_batches_of(groups, str(role))["scheduled_tokens"].sum())
        serving_ps = rows["computing_ps"] - rows["dummy_ps"]
        busy = float((serving_ps * rows["devices"]).sum()) / 1e12
        figures[str(role)] = RoleFigures(
            {name: part / total if total else 0.0 for name, part in shares.items()},
            busy / tokens if tokens else 0.0,
        )
    return figures
