"""The HTML report: complete, self-contained, small, and without an error in a browser."""

import html
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from llmsim.cli import main
from llmsim.export.html_report.charts import Axis, Line, line_chart, number_text
from llmsim.export.html_report.page import SECTIONS

ROOT = Path(__file__).resolve().parents[2]
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
VOID = ("meta", "br")


class Balanced(html.parser.HTMLParser):
    """Checks that tags close in order, and collects ids, links and addresses."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            if name == "href":
                self.links.append(str(value))
            if name in ("src", "srcset", "data", "action"):
                self.loads.append(str(value))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report")
    for name, cluster in (("one", "single_node_power_instance"), ("apart", "h100_llama31_8b_pd")):
        arguments = ["run", "--cluster-config", str(ROOT / "cluster_config" / f"{cluster}.json")]
        arguments += ["--dataset", "synthetic:n=40,rate=8,input=200,output=lognormal:30,seed=2"]
        arguments += ["--cost-source", "roofline", "--goodput", "ttft:100,tpot:20", "--json"]
        assert main([*arguments, "--run-dir", str(folder / name)]) == 0
    return folder


def report(runs: Path, *names: str, title: str | None = None) -> str:
    path = runs / "report.html"
    words = ["report", *(str(runs / name) for name in names), "-o", str(path)]
    assert main([*words, *(["--title", title] if title else [])]) == 0
    return path.read_text()


@pytest.mark.parametrize("names", [("one",), ("one", "apart")])
def test_a_report_has_every_section_and_loads_nothing(runs: Path, names: tuple[str, ...]) -> None:
    text = report(runs, *names, title="A <b>title</b> & more")
    parser = Balanced()
    parser.feed(text)
    assert not parser.open
    assert [key for key, _, _ in SECTIONS] == [one for one in parser.ids if one]
    assert {link[1:] for link in parser.links} == set(parser.ids)
    assert not parser.loads and "url(" not in text and "@import" not in text
    assert "A &lt;b&gt;title&lt;/b&gt; &amp; more" in text
    assert not re.search(r"\b(nan|NaN|inf|None)\b", re.sub(r"<pre>.*?</pre>", "", text, flags=re.S))
    assert text.count("<svg") >= 12
    assert "TTFT within 100 ms" in text and "Energy by component" in text
    if len(names) > 1:
        assert "KV moved (GB)" in text and "(+" in text


def test_the_report_says_why(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `llmsim why` says of each run, and how to ask where nothing was tested."""
    text = report(runs, "one", "apart")
    section = re.sub(r".*<section id=\"why\">(.*?)</section>.*", r"\1", text, flags=re.S)
    for name in ("one", "apart"):
        capsys.readouterr()
        assert main(["why", str(runs / name), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert f"<h3>{name}</h3><p>TTFT at percentile 99 is " in section
        for one in (*found["causes"], *found["what_ifs"]):
            assert html.escape(one.get("name") or one["change"]) in section
    assert "What they wait for" in section
    words = ["report", str(runs / "one"), "-o", str(runs / "none.html"), "--why"]
    assert main([*words, "none"]) == 0
    text = (runs / "none.html").read_text()
    assert "<code>llmsim why " in text and "TTFT at percentile" not in text
    assert main([*words, "ttf"]) == 2
    assert '--why is "ttf" (did you mean "ttft"?)' in capsys.readouterr().err


def test_equal_runs_give_equal_reports(runs: Path) -> None:
    assert report(runs, "one", "apart") == report(runs, "one", "apart")


def test_charts_are_thinned_and_numbers_short() -> None:
    x = np.linspace(0, 1, 200_000)
    chart = line_chart("t", [Line("a", x, x**2, 0)], Axis("s"), Axis("W"))
    assert len(chart) < 20_000
    assert line_chart("t", [Line("a", x[:0], x[:0], 0)], Axis("s"), Axis("W")) == ""
    texts = [number_text(value) for value in (None, 0, 100, 12345.6, 0.5, 1.234, 1e-6, -20)]
    assert texts == ["-", "0", "100", "12,346", "0.5", "1.23", "1.00e-06", "-20"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere", "-o", "x.html"], "nowhere does not exist; name a folder"),
        (["one", "-o", "x.txt"], "ends in .html"),
        (["one"] * 9 + ["-o", "x.html"], "at most 8 runs"),
    ],
)
def test_wrong_arguments_are_one_sentence(
    runs: Path,
    words: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(runs)
    assert main(["report", *words]) == 2
    err = capsys.readouterr().err
    assert said in err and err.count("\n") == 1


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_it_without_an_error(runs: Path, tmp_path: Path) -> None:
    text = report(runs, "one", "apart")
    check = (
        "<script>window.onerror=function(m){document.title='ERROR '+m};"
        "window.addEventListener('load',function(){"
        "var svg=document.querySelector('svg[data-chart]'),box=svg.getBoundingClientRect();"
        "svg.dispatchEvent(new MouseEvent('mousemove',"
        "{clientX:box.left+box.width/2,clientY:box.top+9}));"
        "var n=performance.getEntriesByType('resource').length;"
        "document.title='DONE '+n+' '+document.querySelector('.tip').textContent})</script>"
    )
    page = tmp_path / "page.html"
    page.write_text(text.replace("<style>", f"{check}<style>", 1))
    command = [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=3000"]
    found = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120
    )
    title = re.search(r"<title>(.*?)</title>", found.stdout)
    assert title is not None and title[1].startswith("DONE 0 "), title
    assert "one: " in title[1] and "% of requests" in title[1]
