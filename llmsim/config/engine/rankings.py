"""Orders of requests that `scheduling_policy` may name: built-in ones, and rankings in Python."""

from typing import Any

from llmsim.config.errors import InputError, nearest
from llmsim.config.plugins import Kind, entry_points, found, parse_class

POLICIES = ("fcfs", "priority", "sjf", "slack")
"""Orders of the waiting queue that are built in."""
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
    """Whether a `scheduling_policy` is a ranking in Python."""
    return policy not in POLICIES


def check_policy(policy: str) -> None:
    """Raises InputError for a policy that is neither built in nor a usable class."""
    if policy in POLICIES:
        return
    points = entry_points(RANKING.group)
    if ":" not in policy and policy not in points:
        known = ", ".join((*POLICIES, *points))
        raise InputError(
            f'scheduling_policy is "{policy}"{nearest(policy, (*POLICIES, *points))}; it may be '
            f"{known}, or a class such as my_module:MyRanking"
        )
    name, maker = parse_class(RANKING, policy)
    lists_of(name)
    maker.check_arguments()


def lists_of(name: str) -> frozenset[str]:
    """What the ranking of that class orders; raises InputError where `orders` is something else."""
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
