"""Orders of requests that `scheduling_policy` may name: built-in ones, and rankings in Python."""

from collections.abc import Mapping
from typing import Any

from llmsim import _native
from llmsim.config.errors import InputError, nearest
from llmsim.config.plugins import Kind, entry_points, found, parse_class, split_options

POLICIES = ("fcfs", "priority", "sjf", "slack")
"""Orders of the waiting queue that are built in."""
NATIVE = ("h2q_br", "slo_age", "inverted-slo", "reverse-priority")
"""Rankings of the core: names that may have parameters, as in h2q_br:L=4096,C=8192,B=32."""
LISTS = ("waiting", "running", "victims", "pauses")
"""What a ranking may decide, as its class attribute `orders` says."""
RANKING = Kind(
    "ranking",
    "--scheduling-policy",
    "llmsim.rankings",
    {"keys": "keys(view, now_ps), which gives a key to each request"},
    "my_module:MyRanking:weight=3",
)


def is_ranking(policy: str) -> bool:
    """Whether a `scheduling_policy` is a ranking, of the core or in Python."""
    return policy not in POLICIES


def native_ranking(policy: str) -> tuple[str, Mapping[str, int]] | None:
    """The ranking of the core that a `scheduling_policy` names, with the parameters that it gives;
    None for others. Raises InputError for parameters that do not exist or are out of range.
    """
    name = policy.partition(":")[0]
    if name not in NATIVE:
        return None
    option = RANKING.option
    example = f"{NATIVE[0]}:L=4096,C=8192,B=32"
    if policy != name and "=" not in policy:
        raise InputError(f'{option} {policy}: "{policy[len(name) + 1 :]}" is not key=value; an '
                         f"example is {example}")  # fmt: skip
    _, given = split_options(option, policy, example)
    known = {one: rest for one, *rest in _native.rankings()[name]}
    values = {}
    for key, text in given.items():
        if key not in known:
            has = f"{name} has {', '.join(known)}" if known else f"{name} has no parameters"
            raise InputError(f'{option} {policy}: unknown parameter "{key}"{nearest(key, known)}; '
                             f"{has}")  # fmt: skip
        _, low, high = known[key]
        number = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else -1
        if not low <= number <= high:
            raise InputError(
                f"{option} {policy}: {key} is {text!r:.40}, but must be an integer from {low} to "
                f"{high}"
            )
        values[key] = number
    return name, values


def check_policy(policy: str) -> None:
    """Raises InputError for a policy that is neither built in nor a usable class."""
    if policy in POLICIES or native_ranking(policy) is not None:
        return
    points = entry_points(RANKING.group)
    if ":" not in policy and policy not in points:
        named = (*POLICIES, *NATIVE, *points)
        known = ", ".join(named)
        raise InputError(
            f'scheduling_policy is "{policy}"{nearest(policy, named)}; it may be '
            f"{known}, or a class such as my_module:MyRanking"
        )
    name, maker = parse_class(RANKING, policy)
    lists_of(name)
    maker.check_arguments()


def lists_of(name: str) -> frozenset[str]:
    """What the ranking of that name orders; raises InputError where a class has `orders` that are
    something else.
    """
    if name in NATIVE:
        return frozenset(_native.ranking_orders(name))
    make: Any = found(RANKING, name)
    orders = getattr(make, "orders", ("waiting",))
    known = f'of {", ".join(LISTS)}, such as ("waiting",)'
    if isinstance(orders, str) or not all(one in LISTS for one in orders) or not orders:
        raise InputError(f"ranking {name}: orders is {orders!r:.80}; it must be a tuple {known}")
    lists = frozenset(orders)
    if "pauses" in lists and lists != frozenset(LISTS):
        raise InputError(
            f'ranking {name}: orders has "pauses" without {", ".join(sorted({*LISTS} - lists))}; '
            "a ranking that pauses requests orders all lists"
        )
    return lists
