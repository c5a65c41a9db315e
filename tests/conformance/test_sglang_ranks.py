"""What ranks of SGLang in processes of their own tell each other during a comparison."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from llmsim.scheduling.conformance.sglang.loops.dp_ranks import close, exchanges, with_ranks


def test_every_rank_hears_all_values_in_the_order_of_ranks() -> None:
    ranks = exchanges(3)
    with ThreadPoolExecutor(3) as threads:
        for turn in range(20):
            said = [[turn, rank, "x" * rank] for rank in range(3)]
            heard = list(
                threads.map(lambda rank, said=said: ranks[rank].agreed(said[rank]), [0, 1, 2])
            )
            assert heard == [said, said, said]
    for rank in ranks:
        rank.close()


def test_the_end_of_a_rank_is_heard_of_and_nobody_waits_for_ever() -> None:
    first, second = with_ranks({"config": {"dp_size": 2}})
    close([second])
    with pytest.raises((EOFError, BrokenPipeError)):
        first["exchange"].agreed(1)
    close([first])


def test_one_rank_needs_nobody() -> None:
    case = {"config": {}}
    assert with_ranks(case) == [case]
    close([case])
