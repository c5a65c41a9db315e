"""Pictures stay legible: names that would lie over each other, many groups, few requests."""

import pytest

import llmsim
from llmsim.api.pictures.front import MOST_NAMES, Figure, Point, draw_front
from llmsim.api.sweep_table import VARIED, SweepTable, apart

FigureCanvasAgg = pytest.importorskip("matplotlib.backends.backend_agg").FigureCanvasAgg

AXES = Figure("speed", True), Figure("throughput", True)
CLUSTER = llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", instances=7)


def named(points: list[Point]) -> tuple[list[str], list[str]]:
    """The texts beside the points, and the lines of the horizontal axis."""
    ax = draw_front(points, *AXES)
    return [text.get_text() for text in ax.texts], ax.get_xlabel().splitlines()


def test_names_stand_beside_points_that_are_apart() -> None:
    points = [Point("slow", 1, 9), Point("middle", 5, 6), Point("quick", 9, 1), Point("bad", 1, 1)]
    assert named(points) == (["slow", "middle", "quick"], ["speed"])


def test_names_that_would_lie_over_each_other_are_numbers() -> None:
    points = [Point("a", 1, 9), Point("b", 1.01, 8.99), Point("c", 1.02, 8.98), Point("d", 9, 1)]
    beside, below = named(points)
    assert beside == ["1 to 3", "4"]
    assert below == ["speed", "", "1  a", "2  b", "3  c", "4  d"]


def test_a_long_front_names_the_first() -> None:
    points = [Point(f"p{at}", at, 100 - at) for at in range(40)]
    beside, below = named(points)
    assert (beside[0], beside[-1]) == ("1 to 2", "39 to 40")
    assert len(below) == MOST_NAMES + 3 and below[-1] == f"and {40 - MOST_NAMES} more"


def test_one_point_and_none() -> None:
    assert named([Point("only", 3, 3)]) == (["only"], ["speed"])
    assert named([]) == ([], ["speed"])


LONG = "synthetic:n=1000,rate={},input=lognormal:300,output=lognormal:60,burst=poisson"


@pytest.mark.parametrize("places", [((1, 9), (5, 6), (9, 1)), ((1, 1), (5, 5), (9, 9)), ((3, 3),)])
@pytest.mark.parametrize("length", [30, 60, 90, 300])
def test_no_name_leaves_the_picture(places: tuple[tuple[int, int], ...], length: int) -> None:
    names = [(LONG.format(at) * 4)[:length] for at in range(len(places))]
    ax = draw_front([Point(name, *at) for name, at in zip(names, places, strict=True)], *AXES)
    figure = ax.figure
    FigureCanvasAgg(figure).draw()
    for text in (*ax.texts, ax.xaxis.label):
        box = text.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1, text.get_text()
    written = "".join(ax.get_xlabel().split("  ", 1)[-1].split()) if len(names) == 1 else ""
    assert names[0].replace(" ", "") in (written, ax.texts[0].get_text()) or len(names) > 1


def test_workloads_of_a_sweep_are_told_apart_by_what_differs() -> None:
    one, other = (LONG.format(rate) for rate in (8, 20))
    assert apart([one, other]) == ["rate=8", "rate=20"]
    assert apart([one, one]) == [one, one]
    assert apart(["a.json", "b.json"]) == ["a.json", "b.json"]
    assert apart(["x,1", "x,1,2"]) == ["x,1", "x,1,2"]
    assert apart([]) == []
    table = SweepTable(
        {
            "workload": [one, other],
            "tp": [1, 1],
            "mean_tpot_ms": [1.0, 2.0],
            "output_throughput": [1, 2],
        }
    )
    table.attrs[VARIED] = ["workload", "tp"]
    assert [text.get_text() for text in table.plot.pareto().texts] == [
        "workload=rate=8",
        "workload=rate=20",
    ]
    table.attrs[VARIED] = ["workload"]
    assert [text.get_text() for text in table.plot.pareto().texts] == ["rate=8", "rate=20"]


def test_many_groups_are_a_mean_and_a_band() -> None:
    load = "synthetic:n=60,rate=20,input=400,output=20,seed=1"
    result = llmsim.run(CLUSTER, load)
    ax = result.plot.kv_cache()
    assert ax.get_legend_handles_labels()[1] == ["least to most", "groups, mean of 7"]
    used = result.series.groupby("time_ps")["kv_blocks_used"].mean().to_numpy(float)
    blocks = result.summary["kv_cache"][0]["num_blocks"] - 1
    assert ax.lines[0].get_ydata() == pytest.approx(100 * used / blocks)
    few = llmsim.run(llmsim.Cluster.build("Qwen/Qwen3-8B", "H100", instances=2), load)
    assert few.plot.kv_cache().get_legend_handles_labels()[1] == ["group 0", "group 1"]


def test_axes_count_requests_in_whole_numbers() -> None:
    result = llmsim.run(CLUSTER, "synthetic:n=2,rate=1,input=100,output=2,seed=1")
    for ax in (result.plot.load(), result.plot.timeline()):
        assert all(float(tick).is_integer() for tick in ax.get_yticks())
    assert result.plot.load().get_ylim()[0] == 0
    assert result.plot.timeline(most=1).get_ylabel() == "request (the first 1 of 2)"


def test_texts_of_percentiles_stay_in_the_picture() -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    load = "synthetic:n=60,rate=20,input=400,output=20,seed=1"
    ax = llmsim.run(CLUSTER, load).plot.latency_cdf("ttft")
    renderer = FigureCanvasAgg(ax.figure).get_renderer()
    inside = ax.get_window_extent(renderer)
    assert [text.get_text()[:3] for text in ax.texts] == ["p50", "p99"]
    for text in ax.texts:
        box = text.get_window_extent(renderer)
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1
