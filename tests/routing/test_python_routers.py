"""Routers written in Python: what they see, what happens when they are wrong, and how they are
found.
"""

import csv
import sys
from pathlib import Path
from typing import Any

import pytest
from routing_runs import MS, Run, python

from llmsim import _native
from llmsim.cli import run_main
from llmsim.config.errors import InputError
from llmsim.routing import parse_router
from llmsim.routing.python import entry_points

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster_config" / "h100_multi_instance.json"
TRACE = "synthetic:n=60,rate=60,input=lognormal:200,output=lognormal:60,seed=2"


class Recorder:
    def __init__(self) -> None:
        self.seen: list[Any] = []
        self.views: list[Any] = []

    def route(self, request: Any, groups: Any) -> int:
        self.views = [request, *groups]
        seen = ((g.index, g.running, g.waiting, g.free_blocks, g.total_blocks) for g in groups)
        self.seen.append(
            (request.row, request.tokens, request.session, request.model, request.now_ps, *seen)
        )
        return int(groups[0].index)


def test_the_views_show_the_request_and_its_groups() -> None:
    router = Recorder()
    requests = [(0, 32, 50), (20 * MS, 40, 1), (21 * MS, 50, 1)]
    run = Run(
        requests,
        groups=4,
        models=(0, 0, 1, 1),
        model_of=[0, 0, 1],
        session_id=["a", "", "b"],
        blocks=50,
    )
    assert run.routes(python(router)) == [0, 0, 2]
    assert router.seen == [
        (0, 32, "a", "m0", 0, (0, 0, 0, 49, 49), (1, 0, 0, 49, 49)),
        (1, 40, None, "m0", 20 * MS, (0, 1, 0, 46, 49), (1, 0, 0, 49, 49)),
        (2, 50, "b", "m1", 21 * MS, (2, 0, 0, 49, 49), (3, 0, 0, 49, 49)),
    ]


def test_views_live_only_during_the_call_and_cannot_be_changed() -> None:
    router = Recorder()
    Run([(0, 32, 5), (1, 32, 5)]).routes(python(router))
    for view, name in ((router.views[0], "tokens"), (router.views[1], "running")):
        with pytest.raises(RuntimeError, match="only during the call"):
            getattr(view, name)
        with pytest.raises(AttributeError):
            setattr(view, name, 3)


def test_it_is_not_asked_where_there_is_no_choice() -> None:
    router = Recorder()
    Run([(0, 32, 5), (1, 32, 5)], groups=2, models=(0, 1), model_of=[0, 1]).routes(python(router))
    assert router.seen == []


class Constant:
    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def route(self, request: Any, groups: Any) -> Any:
        return self.answer


@pytest.mark.parametrize("answer", [7, -1, None, "1", 0.5, 1 << 70])
def test_an_answer_that_is_no_group_is_named(answer: Any) -> None:
    with pytest.raises(
        _native.BadRoute, match=r"for request 0; the index of one of the groups is needed: 0, 1$"
    ):
        Run([(0, 32, 5)]).routes(python(Constant(answer)))


def test_an_index_of_another_kind_of_integer_will_do() -> None:
    import numpy as np

    assert Run([(0, 32, 5)]).routes(python(Constant(np.int64(1)))) == [1]


MODULE = """
from llmsim.routing import GroupView, RequestView


class Shortest:
    def __init__(self, bias=0, label=""):
        self.bias, self.label = bias, label

    def route(self, request, groups):
        return min(groups, key=lambda g: (g.waiting + g.running) + self.bias * g.index).index


class Lost:
    def route(self, request, groups):
        return 99


class Broken:
    def route(self, request, groups):
        if request.row == 3:
            raise KeyError("no such\\nqueue")
        return groups[0].index


class Picky:
    def __init__(self):
        raise ValueError("not today")

    def route(self, request, groups):
        return 0


class Idle:
    pass


nothing = 5
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_routers.py").write_text(MODULE, encoding="utf-8")
    (tmp_path / "my_broken.py").write_text("import no_such_thing_at_all\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    entry_points.cache_clear()
    yield tmp_path  # type: ignore[misc]
    entry_points.cache_clear()
    for name in ("my_routers", "my_broken"):
        sys.modules.pop(name, None)


def run(policy: str, output: Path | None = None) -> int:
    arguments = ["--cluster-config", str(CLUSTER), "--dataset", TRACE, "--cost-source", "roofline"]
    arguments += ["--request-routing-policy", policy, "--json"]
    return run_main(arguments + ([] if output is None else ["--output", str(output)]))


def test_a_class_of_my_own_runs_from_the_command_line_and_equals_its_twin(folder: Path) -> None:
    for name, policy in (
        ("a", "my_routers:Shortest"),
        ("b", "LOR"),
        ("c", "my_routers:Shortest:bias=1000,label=x"),
    ):
        assert run(policy, folder / f"{name}.csv") == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    groups = {
        row["instance id"] for row in csv.DictReader((folder / "c.csv").open(encoding="utf-8"))
    }
    assert groups == {"0"}


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ("my_routers:Lost", "router my_routers:Lost answered 99 for request 0"),
        ("my_routers:Broken", "router my_routers:Broken failed at request 3: KeyError: 'no such"),
        ("my_routers:Picky", "router my_routers:Picky cannot be made: ValueError: not today"),
        (
            "my_routers:Shortest:bia=1",
            "router my_routers:Shortest cannot be made with bia=1: TypeError",
        ),
        ("my_routers:Idle", "router my_routers:Idle has no method route"),
        ("my_routers:nothing", "router my_routers:nothing is not a class"),
        (
            "my_routers:Shortst",
            'my_routers has no Shortst (did you mean "Shortest"?); its classes are ',
        ),
        ("my_router:Shortest", "there is no module my_router in"),
        (
            "my_broken:Any",
            (
                "my_broken cannot be imported: ModuleNotFoundError: No module named "
                "'no_such_thing_at_all'"
            ),
        ),
        (":Any", "module:Class"),
        ("my_routers:", "module:Class"),
        ("a b:C", "no module a b"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(
    folder: Path, policy: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(policy) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("llmsim: error: "), lines
    assert words in lines[0]


def test_entry_points_are_found_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    info = folder / "my_routers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: my-routers\nVersion: 1.0\n", encoding="utf-8"
    )
    (info / "entry_points.txt").write_text(
        "[llmsim.routers]\nshortest = my_routers:Shortest\ngone = my_routers:Gone\n",
        encoding="utf-8",
    )
    sys.path.append(str(folder))
    assert run("shortest", folder / "a.csv") == 0
    assert run("LOR", folder / "b.csv") == 0
    assert (folder / "a.csv").read_bytes() == (folder / "b.csv").read_bytes()
    capsys.readouterr()
    assert run("gone") == 2
    assert "entry point my_routers:Gone" in capsys.readouterr().err
    assert run("shortes") == 2
    assert 'did you mean "shortest"?' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("best", "LOAD, RR or RAND"),
        ("RRR", 'did you mean "RR"?'),
        ("CUSTOM", "my_module:MyRouter"),
        ("RR:weight=1", "RR has no options"),
        ("PREFIX:wieght=1", 'did you mean "weight"?'),
        ("PREFIX:weight=-1", "weight is -1, but must be a number from 0"),
        ("PREFIX:weight=much", "weight is much, but must be a number"),
        ("PREFIX:weight=nan", "weight is nan"),
        ("PREFIX:weight=1,weight=2", "given twice"),
        ("PREFIX:weight=1,delay", '"delay" is not key=value'),
        ("PREFIX:weight=", "is not key=value"),
        ("", "it may be"),
    ],
)
def test_specifications_are_checked(text: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_router(text)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_names_are_not_case_sensitive_and_options_are_numbers() -> None:
    spec = parse_router("prefix:weight=2.5,delay_ms=50")
    assert (spec.name, dict(spec.options), spec.python) == (
        "PREFIX",
        {"weight": 2.5, "delay_ms": 50.0},
        None,
    )
    assert parse_router("load").name == "LOAD"
