"""The answer to a sizing question: as values, as JSON and as text."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmsim.config.errors import InputError
from llmsim.model import load_model
from llmsim.model.hardware import YOUR_OWN
from llmsim.plurals import counted, grouped, plural
from llmsim.results.error_bars import shown
from llmsim.sizing.bounds import COMPUTE, LENGTH, REASONS, TPOT, TTFT
from llmsim.sizing.load import CONCURRENCY, RATE, shown_level
from llmsim.sizing.measure import Measured
from llmsim.sizing.plan import Plan
from llmsim.sizing.search.found import NEXT, Candidate, Found
from llmsim.sizing.search.question import Costs
from llmsim.sizing.targets import INF, METRICS, Targets, beyond_target, class_of, label

if TYPE_CHECKING:
    from llmsim.sizing.pictures import AnswerPlots

MOSTLY = 0.5
"""The share of a deployment's time from which it counts as measured."""
DIGITS = 6
PERCENTILES = (50.0, 95.0, 99.0)


@dataclass(frozen=True)
class Answer:
    """What `llmsim.size` gives: the best deployment, the next ones, and what limits them."""

    found: Found
    prices: Mapping[str, float | None]
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Of the best: a metric and the range of its percentile over other draws of the load."""
    seeds: int = 0
    real_servers: Mapping[str, Any] | None = None
    """Of the best: what nine in ten real servers have of each mean, as `system_error` of a run."""

    @property
    def best(self) -> Candidate | None:
        """The cheapest deployment that meets every target; None where nothing does."""
        return self.found.meeting[0] if self.found.meeting else None

    @property
    def run_arguments(self) -> list[str]:
        """What follows the cluster file of `llmsim run` for the figures of the best deployment."""
        best = self.best
        if best is None or best.run is None:
            return []
        return self.found.question.load.run_arguments(best.run.requests)

    def emit(self, folder: str | PathLike[str]) -> list[Path]:
        """Writes the files of `llmsim size --emit` for the best deployment into a folder; raises
        InputError where nothing meets the targets, or the folder cannot be written.
        """
        from llmsim.sizing.emit import emit

        if self.best is None:
            raise InputError(
                "nothing meets the targets, so that there is no deployment to write; relax the "
                "targets, or raise max_devices"
            )
        return emit(self.best.plan, Path(folder), self.run_arguments)

    @property
    def next(self) -> list[tuple[Candidate, str]]:
        """The next best three, each with what it misses by."""
        best = self.best
        if best is None:
            return [(one, _missed(one, self)) for one in self.found.shown_missing]
        chosen = [*self.found.shown_missing, *self.found.meeting[1:]][:NEXT]
        return [(one, _missed(one, self)) for one in chosen]

    @property
    def headroom(self) -> float | None:
        """By how much the load may grow, as a share of it."""
        if self.found.beyond is None or not self.found.beyond.level:
            return None
        return max(0.0, self.found.beyond.level / self.found.question.load.level - 1)

    @property
    def binding(self) -> dict[str, Any] | None:
        """The target that is missed first when the load grows; None where none is found."""
        beyond = self.found.beyond
        if beyond is None or not beyond.misses or beyond.beyond is None:
            worst = self.found.missing[0].misses if self.found.missing else ()
            if self.best is None and worst:
                found = {"metric": worst[0].metric, "found_ms": _round(worst[0].found_ms)}
                return found | _class_field(worst[0].key)
            return None
        miss = beyond.misses[0]
        return {
            "metric": miss.metric,
            "target_ms": miss.most_ms,
            "at_level": _round(beyond.beyond.level),
            "found_ms": _round(miss.found_ms),
        } | _class_field(miss.key)

    def as_json(self) -> dict[str, Any]:
        """The keys of `llmsim size --json`."""
        question = self.found.question
        return {
            "schema_version": 1,
            "model": question.model,
            "load": {"kind": question.load.kind, "level": question.load.level},
            **_stated(question.targets),
            "percentile": question.targets.percentile,
            "best": None if self.best is None else self._candidate(self.best, best=True),
            "next": [
                {**self._candidate(one, best=False), "misses": text} for one, text in self.next
            ],
            "binding": self.binding,
            "pruned": dict(self.found.pruned.counts),
            "fits": {device: split.devices for device, split in self.found.fitting.items()},
            "evaluated": self.found.evaluated,
            "without_price": list(self.without_price),
            "too_long_requests": self._too_long,
            "pareto": self.pareto(),
            "note": self.note,
        }

    @property
    def better_known(self) -> Candidate | None:
        """Where most of the best deployment's time rests on no measurement: the next one most of
        whose time does; None where there is none.
        """
        best = self.best
        if best is None or best.sources is None or best.sources.known >= MOSTLY:
            return None
        others = (*self.found.meeting[1:], *self.found.missing)
        known = (one for one in others if one.sources is not None and one.sources.known >= MOSTLY)
        return next(known, None)

    @property
    def note(self) -> str | None:
        """What to know before the best deployment is believed; None: nothing."""
        best, other = self.best, self.better_known
        if best is None or best.sources is None or other is None or other.sources is None:
            return None
        return (
            f"the times of {best.plan.device} are {best.sources.words}; most of those of "
            f"{_named(other.plan)} rest on measurements ({_missed(other, self)})."
        )

    @property
    def _too_long(self) -> int:
        """Requests of the best deployment's run whose prompts no deployment serves."""
        best = self.best
        return 0 if best is None or best.run is None else best.run.too_long

    @property
    def plot(self) -> "AnswerPlots":
        """Pictures of the answer (needs matplotlib)."""
        from llmsim.sizing.pictures import AnswerPlots

        return AnswerPlots(self)

    def __repr__(self) -> str:
        return text(self).splitlines()[0]

    def _repr_html_(self) -> str:
        """The answer for notebooks."""
        from html import escape

        return f"<pre>{escape(text(self))}</pre>"

    def _candidate(self, one: Candidate, *, best: bool) -> dict[str, Any]:
        price = self.price(one.plan)
        fields: dict[str, Any] = {
            "device": one.plan.device,
            "devices": one.plan.devices,
            "layout": one.plan.label,
            "architecture": one.plan.architecture,
            "options": dict((*one.plan.server, *one.plan.engine)),
            "ttft_ms": _percentiles(one.run, "ttft"),
            "tpot_ms": _percentiles(one.run, "tpot"),
            "e2el_ms": _percentiles(one.run, "e2el"),
            **_of_classes(one.run, self.found.question.targets),
            "output_tok_s": _output_tok_s(one.run),
            "usd_per_h": None if price is None else _round(price),
            "cost_sources": None if one.sources is None else one.sources.as_json(),
        }
        if best:
            headroom = self.headroom
            fields["headroom"] = None if headroom is None else _round(headroom)
            fields["interval"] = {
                f"{name}_ms": [_round(low), _round(high)]
                for name, (low, high) in self.intervals.items()
            } | {"seeds": self.seeds}
            fields["system_error"] = self.real_servers
        return fields

    def price(self, plan: Plan) -> float | None:
        """USD per hour; None where the device has no price."""
        each = self.prices.get(plan.device)
        return None if each is None else each * plan.devices

    @property
    def without_price(self) -> tuple[str, ...]:
        """Devices that neither a data sheet nor the list gives a price; then devices count."""
        return tuple(name for name, price in self.prices.items() if price is None)

    def pareto(self) -> list[dict[str, Any]]:
        """Deployments that no other beats in both speed for a user and tokens per device."""
        percentile = self.found.question.targets.percentile
        points = [
            (1000 / tpot, one.run.output_tok_s / one.plan.devices, one)
            for one in (*self.found.meeting, *self.found.missing)
            if one.run and one.run.level == self.found.question.load.level
            if (tpot := one.run.at(percentile).get("tpot"))
        ]
        front: list[dict[str, Any]] = []
        highest = -math.inf
        for speed, tokens, one in sorted(points, key=lambda point: (-point[0], -point[1])):
            if tokens > highest:
                highest, plan = tokens, one.plan
                front.append(
                    {
                        "device": plan.device,
                        "layout": plan.label,
                        "options": dict((*plan.server, *plan.engine)),
                        "tok_s_per_user": _round(speed),
                        "output_tok_s_per_device": _round(tokens),
                        "misses": [label(miss.key) for miss in one.misses],
                    }
                )
        return front


def _class_field(key: str) -> dict[str, str]:
    """`slo_class` of a target, where it is that of a class."""
    return {"slo_class": class_of(key)} if class_of(key) else {}


def _stated(targets: Targets) -> dict[str, Any]:
    """`targets_ms` of all requests, and of each class where they differ."""
    by_class = targets.by_class()
    everyone = by_class.pop("", {})
    return {"targets_ms": everyone} | ({"classes_targets_ms": by_class} if by_class else {})


def _of_classes(run: Measured | None, targets: Targets) -> dict[str, Any]:
    """The latencies of each class, where targets differ by class."""
    names = [name for name in targets.by_class() if name]
    if not names:
        return {}
    return {
        "classes": {
            name: {f"{one}_ms": _percentiles(run, f"{name}.{one}") for one in METRICS}
            for name in names
        }
    }


def _percentiles(run: Measured | None, metric: str) -> dict[str, float | None] | None:
    values = {} if run is None else dict(dict(run.latency_ms).get(metric, ()))
    return {f"p{q:g}": _round(value) for q, value in values.items()} or None


def _output_tok_s(run: Measured | None) -> float | None:
    """None also where the run was given up before its end."""
    return None if run is None or run.is_given_up else _round(run.output_tok_s)


def _round(value: float) -> float | None:
    return None if math.isinf(value) else round(value, DIGITS)


def _missed(one: Candidate, answer: Answer) -> str:
    """What a deployment misses by: its targets, or what it costs more than the best."""
    if one.problem:
        return one.problem
    if one.run is not None and not one.run.complete and not one.run.is_given_up:
        return f"{one.run.unfinished:,} of {grouped(one.run.requests, 'request')} did not end"
    if one.misses:
        question = answer.found.question
        missed = "; ".join(f"p{question.targets.percentile:g} {miss.text}" for miss in one.misses)
        if one.run is not None and one.run.level < question.load.level:
            return f"even at {shown_level(question.load.kind, one.run.level, 4)} {missed}"
        return missed
    if answer.best is None or one.run is None:
        return "requests did not end"
    return _costs_more(one, answer.best, answer)


def _costs_more(one: Candidate, best: Candidate, answer: Answer) -> str:
    """What a deployment that meets the targets has more than the best."""
    more = one.plan.devices - best.plan.devices
    price, least = answer.price(one.plan), answer.price(best.plan)
    dollars = "" if price is None or least is None else f", {price - least:+.2f} USD/h"
    costs = Costs(answer.prices)
    if costs(one.plan) == costs(best.plan):
        return "costs as much, with less room below its targets"
    return f"meets the targets with {more:+d} device{'s' * (abs(more) != 1)}{dollars}"


def text(answer: Answer) -> str:
    """The headline, the next best, the constraint, and the front as a picture of characters."""
    question = answer.found.question
    load = shown_level(question.load.kind, question.load.level)
    lines = []
    best = answer.best
    if best is None or best.run is None:
        lines.append(
            f"Nothing serves {question.model} at {load} within {question.targets.text} on up to "
            f"{counted(question.max_devices, 'device')}."
        )
    else:
        lines += _headline(answer, best, best.run, load)
    if answer.next:
        lines.append("Next best:" if best else "Nearest:")
        lines += [f"  {_named(one.plan)}: {missed}{_known(one)}" for one, missed in answer.next]
    lines += _constraint(answer)
    lines += [] if answer.note is None else [f"Note: {answer.note}"]
    lines += _nothing_runs(answer)
    if answer.without_price:
        lines.append(_counted(answer.without_price))
    counts = answer.found.pruned.counts
    pruned = "; ".join(
        f"{REASONS.get(reason, reason)} ({count})" for reason, count in counts.most_common()
    )
    lines.append(f"{answer.found.evaluated} evaluated; pruned without a run: {pruned or 'none'}.")
    front = answer.pareto()
    return "\n".join([*lines, *(_picture(front) if len(front) > 1 else [])]) + "\n"


def _nothing_runs(answer: Answer) -> list[str]:
    """Where nothing comes near: options that let the model fit, and what ruled the rest out."""
    found, question = answer.found, answer.found.question
    if answer.best is not None or answer.next:
        return []
    lines = []
    for device, split in found.fitting.items():
        if split.devices > question.max_devices:
            lines.append(f"It fits {split.devices} {device}: give --max-devices {split.devices}.")
    for reason in (LENGTH, TPOT, TTFT, COMPUTE):
        if reason in found.pruned.examples:
            sentence = REASONS[reason][0].upper() + REASONS[reason][1:]
            lines.append(f"{sentence} ({found.pruned.examples[reason]}).")
    return lines


def _counted(without_price: Sequence[str]) -> str:
    """Says that devices were counted, and how a device gets a price."""
    have = "has" if len(without_price) == 1 else "have"
    return (
        f"{', '.join(without_price)} {have} no price, so devices were counted, not USD; "
        f"price_per_device_hour of a data sheet of your own gives one ({YOUR_OWN})."
    )


def _known(one: Candidate) -> str:
    """How much of a deployment's times rests on data."""
    return "" if one.sources is None else f"; times {one.sources.words}"


def _by(plan: Plan) -> str:
    """The engine that was asked for."""
    profile = dict(plan.server).get("engine_profile")
    return f" with {profile}" if profile else ""


def _named(plan: Plan) -> str:
    return f"{plan.devices} {plan.device} as {plan.label}{_in_brackets(dict(plan.engine))}"


def _headline(answer: Answer, best: Candidate, run: Measured, load: str) -> list[str]:
    question = answer.found.question
    percentile = question.targets.percentile
    price = answer.price(best.plan)
    figures = []
    classes = any(map(class_of, dict(question.targets.most_ms)))
    for name, value in run.at(percentile).items():
        if bool(class_of(name)) != classes or (classes and question.targets.at_key(name) == INF):
            continue
        low, high = answer.intervals.get(name, (value, value))
        spread = f" ({low:,.1f} to {high:,.1f})" if high > low else ""
        figures.append(f"p{percentile:g} {label(name)} {value:,.1f} ms{spread}")
    serves = "serves" if best.plan.devices == 1 else "serve"
    lines = [
        f"{_named(best.plan)} {serves} {question.model}{_by(best.plan)} at {load} within "
        f"{question.targets.text}.",
        f"  {', '.join(figures)}",
        f"  {_tokens_per_s(run.output_tok_s)} output tok/s"
        + ("" if price is None else f", {price:,.2f} USD/h")
        + _growth(answer),
        *([] if best.sources is None else [f"  Times: {best.sources.words}"]),
        *_beyond_context(question.model, run),
    ]
    if answer.real_servers is not None:
        lines.append(f"  9 in 10 real servers: {shown(answer.real_servers)}")
    if answer.seeds:
        lines.append(
            f"  Ranges cover {answer.seeds} draws of the load, not the error of operator times."
        )
    beyond = [
        label(name)
        for name, (_, high) in answer.intervals.items()
        if high > question.targets.at_key(name)
    ]
    if beyond:
        lines.append(f"  Other draws of the load miss {' and '.join(beyond)}; add room for bursts.")
    return lines


def _tokens_per_s(value: float) -> str:
    """A throughput; a small one with the digits that tell it from nothing."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _beyond_context(model: str, run: Measured) -> list[str]:
    """How many requests of the load no deployment of the model can serve."""
    if not run.too_long:
        return []
    context = load_model(model).max_position_embeddings
    return [
        f"  {run.too_long:,} of {grouped(run.requests, 'prompt')} "
        f"{plural(run.too_long, 'is', 'are')} too long for {model}, which serves "
        f"{context:,} tokens; the figures are those of the others."
    ]


def _growth(answer: Answer) -> str:
    """How far the load may grow."""
    if answer.headroom is None:
        return ""
    more = "at least " if answer.binding is None else ""
    return f"; the load may grow by {more}{answer.headroom:.0%}"


def _constraint(answer: Answer) -> list[str]:
    binding = answer.binding
    if binding is None:
        return []
    named = " ".join(filter(None, (binding.get("slo_class"), binding["metric"].upper())))
    if "at_level" not in binding:
        return [f"Binding: {named}."]
    shown = shown_level(answer.found.question.load.kind, binding["at_level"], 4)
    found_ms = beyond_target(binding["found_ms"], binding["target_ms"])
    return [
        f"Binding: {named}, which is {found_ms} ms at {shown} (target {binding['target_ms']:g})."
    ]


WIDTH, HEIGHT = 56, 10


def _picture(front: list[dict[str, Any]]) -> list[str]:
    """Tokens per device over speed for a user; letters name the points below."""
    across = [one["tok_s_per_user"] for one in front]
    up = [one["output_tok_s_per_device"] for one in front]
    grid = [[" "] * (WIDTH + 1) for _ in range(HEIGHT + 1)]
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    for i, (x, y) in enumerate(zip(across, up, strict=True)):
        column = _position(x, across, WIDTH)
        row = HEIGHT - _position(y, up, HEIGHT)
        grid[row][column] = letters[i % len(letters)]
    lines = ["Output tok/s per device (up) over tok/s for a user (right):"]
    for i, row_cells in enumerate(grid):
        value = max(up) if i == 0 else min(up)
        mark = f"{value:>9,.0f} |" if i in (0, HEIGHT) else f"{'':9} |"
        lines.append(mark + "".join(row_cells).rstrip())
    lines.append(f"{'':9} +{'-' * (WIDTH + 1)}")
    left, right = f"{min(across):,.0f}", f"{max(across):,.0f}"
    lines.append(f"{'':11}{left}{right:>{WIDTH + 1 - len(left)}}")
    lines += [f"  {letters[i % len(letters)]}  {front_name(one)}" for i, one in enumerate(front)]
    return lines


def front_name(one: Mapping[str, Any]) -> str:
    """Device, layout and engine options of a deployment of the front, and the targets it misses."""
    missed = f" (misses {', '.join(one['misses'])})" if one["misses"] else ""
    return f"{one['device']} {one['layout']}{_in_brackets(one['options'])}{missed}"


def _in_brackets(options: Mapping[str, Any]) -> str:
    named = ", ".join(f"{name} {value}" for name, value in options.items())
    return f" ({named})" if named else ""


def _position(value: float, values: list[float], size: int) -> int:
    low, high = min(values), max(values)
    return 0 if high == low else round((value - low) / (high - low) * size)


__all__ = ["CONCURRENCY", "RATE", "Answer", "text"]
