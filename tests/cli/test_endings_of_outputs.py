"""Names of outputs that end in another format than the file's are refused before any work."""

from pathlib import Path

import pytest

from llmsim.cli import main

CLUSTER = Path(__file__).resolve().parents[2] / "cluster_config" / "h100_llama31_8b.json"
RUN = [
    "run",
    "--cluster-config",
    str(CLUSTER),
    "--dataset",
    "synthetic:n=2,rate=1,input=9,output=3",
    "--cost-source",
    "roofline",
]
INIT = ["init", "--model", "meta-llama/Llama-3.1-8B", "--device", "H100"]
MADE = ["cluster", "meta-llama/Llama-3.1-8B", "H100"]
CSV = (
    "its name ends in .csv or .txt; --run-dir writes Parquet and JSON, and llmsim export other "
    "formats"
)
JSON = "its name ends in .json, .yaml or .yml"


@pytest.mark.parametrize(
    ("words", "name", "known"),
    [
        (RUN, "o.foo", CSV),
        (RUN, "o.parquet", CSV),
        (RUN, "o.json", CSV),
        (RUN, "o.csv.gz", CSV),
        (INIT, "c.toml", JSON),
        (MADE, "c.foo", JSON),
    ],
)
def test_another_format_is_refused(
    words: list[str],
    name: str,
    known: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / name
    assert main([*words, "--output", str(path)]) == 2
    said = f"--output {path}: {path.suffix} is no format of this file; {known}"
    assert capsys.readouterr().err == f"llmsim: error: {said}\n"
    assert not path.exists()


@pytest.mark.parametrize("name", ["o.csv", "o.CSV", "o.txt", "o", "rate0.5", "run.2"])
def test_names_that_say_csv_or_nothing_are_csv(name: str, tmp_path: Path) -> None:
    assert main([*RUN, "--output", str(tmp_path / name)]) == 0
    assert (tmp_path / name).read_text(encoding="utf-8").startswith("instance id,request id,")


@pytest.mark.parametrize("name", ["c.json", "c.yaml", "c.yml", "c"])
def test_cluster_files_may_be_json_or_yaml(name: str, tmp_path: Path) -> None:
    for words in (INIT, MADE):
        path = tmp_path / words[0] / name
        assert main([*words, "--output", str(path)]) == 0
        assert main([*RUN[:2], str(path), *RUN[3:]]) == 0
