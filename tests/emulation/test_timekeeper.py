"""The virtual clock: it never passes anybody's time, and nothing is left under way."""

from hypothesis import given
from hypothesis import strategies as st

from llmsim.emulation.timekeeping.timekeeper import Doing, Timekeeper, Turn


def test_the_clock_moves_to_the_least_time_when_everybody_waits() -> None:
    keeper = Timekeeper()
    engine, clients = keeper.join("engine core 0"), keeper.join("the clients")
    keeper.waits(engine, 70)
    assert keeper.woken() == []  # the clients work
    keeper.waits(clients, 30)
    assert keeper.woken() == [clients]
    assert (keeper.now_ps, keeper.jumps) == (30, 1)
    keeper.waits(clients, None)
    assert keeper.woken() == [engine]
    assert keeper.now_ps == 70


def test_messages_under_way_hold_the_clock() -> None:
    keeper = Timekeeper()
    engine = keeper.join("engine core 0")
    keeper.waits(engine, 5)
    keeper.requests_under_way = 1
    assert keeper.woken() == []
    assert keeper.blockers() == "1 request has not reached the engine"
    keeper.requests_under_way = 0
    keeper.tokens_under_way = 2
    assert keeper.woken() == []
    keeper.tokens_under_way = 0
    assert keeper.woken() == [engine]


def test_who_settles_goes_on_at_the_present_time_after_those_that_are_due() -> None:
    keeper = Timekeeper()
    engine, clients = keeper.join("engine core 0"), keeper.join("the clients")
    keeper.settles(engine)
    keeper.waits(clients, 0)
    assert keeper.woken() == [clients]
    keeper.waits(clients, 9)
    assert keeper.woken() == [engine]
    assert (keeper.now_ps, keeper.jumps) == (0, 0)


def test_nobody_goes_on_where_everybody_waits_for_a_message() -> None:
    keeper = Timekeeper()
    engine = keeper.join("engine core 0")
    keeper.waits(engine, None)
    assert keeper.woken() == []
    assert keeper.blockers() == "everybody waits for a message"
    keeper.leave(engine)
    assert keeper.woken() == []


def test_of_one_time_steps_end_before_clients_send_and_followers_come_last() -> None:
    keeper = Timekeeper()
    follower, clients = keeper.join("f", Turn.FOLLOWER), keeper.join("c", Turn.CLIENT)
    engine = keeper.join("e")
    for actor in (follower, clients, engine):
        keeper.waits(actor, 5)
    assert keeper.woken() == [engine]
    keeper.settles(engine)  # its next step begins when clients have sent what belongs to this time
    assert keeper.woken() == [clients]
    keeper.waits(clients, 9)
    assert keeper.woken() == [engine]
    keeper.waits(engine, 7)
    assert (keeper.woken(), keeper.now_ps) == ([follower], 5)
    keeper.reports_under_way = 1
    keeper.waits(follower, 6)
    assert keeper.woken() == []
    keeper.reports_under_way = 0
    assert (keeper.woken(), keeper.now_ps) == ([follower], 6)


def test_the_clock_does_not_move_for_followers_alone() -> None:
    keeper = Timekeeper()
    follower, engine = keeper.join("f", Turn.FOLLOWER), keeper.join("e")
    keeper.waits(follower, 5)
    keeper.waits(engine, None)
    assert (keeper.woken(), keeper.now_ps) == ([], 0)
    keeper.waits(engine, 8)
    assert (keeper.woken(), keeper.now_ps) == ([follower], 5)


@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=6), min_size=1, max_size=4))
def test_everybody_goes_on_at_its_own_times_in_order(waits: list[list[int]]) -> None:
    """Each actor waits for its times in turn; past ones are the present."""
    keeper = Timekeeper()
    actors = [keeper.join(str(number)) for number in range(len(waits))]
    left = [list(times) for times in waits]
    asked = dict.fromkeys(actors, 0)
    before = 0
    for actor, times in zip(actors, left, strict=True):
        asked[actor] = times.pop(0)
        keeper.waits(actor, asked[actor])
    while woken := keeper.woken():
        assert keeper.now_ps >= before
        before = keeper.now_ps
        for actor in woken:
            assert actor.doing is Doing.WORKS
            assert keeper.now_ps >= asked[actor]
            times = left[actors.index(actor)]
            if times:
                asked[actor] = times.pop(0)
                keeper.waits(actor, asked[actor])
            else:
                keeper.leave(actor)
    assert not keeper.actors
    assert keeper.now_ps == max(max(times) for times in waits)
