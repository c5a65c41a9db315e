"""A column is declared once: a half-declared one fails by name, an added one is in every output."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from package import package_sources

from llmsim import _native, columns
from llmsim.columns import CORE_TABLES, FILES, Int64, RequestColumns, Table, check_agreement, column
from llmsim.core import COMPONENTS
from llmsim.export import parquet
from llmsim.export.columns_page import columns_page

ROOT = Path(__file__).resolve().parents[2]
CORE = {name: dict(types) for name, types in _native.column_types().items()}


def test_a_column_without_a_meaning_is_named() -> None:
    with pytest.raises(
        TypeError, match="the column end_ps of Steps is half declared: it has no meaning"
    ):

        class Steps(Table):
            start_ps: Int64 = column("ps", "Start of the step.")
            end_ps: Int64


def test_a_column_without_a_type_is_named() -> None:
    with pytest.raises(
        TypeError, match="the column end_ps of Steps is half declared: it has no type"
    ):

        class Steps(Table):
            end_ps = column("ps", "End of the step.")


@pytest.mark.parametrize("name", CORE_TABLES)
def test_a_column_that_one_side_lacks_is_named(name: str) -> None:
    check_agreement(CORE)
    for lost in CORE[name]:
        fewer = {one: dtype for one, dtype in CORE[name].items() if one != lost}
        with pytest.raises(
            TypeError, match=f"the column {lost} of .* is not in the core's table {name}"
        ):
            check_agreement(CORE | {name: fewer})
        other = CORE[name] | {lost: "float16"}
        with pytest.raises(TypeError, match=f"the column {lost} of .* and float16 in the core"):
            check_agreement(CORE | {name: other})
    with pytest.raises(TypeError, match=r"the column hue of .* is in the core and not here"):
        check_agreement(CORE | {name: CORE[name] | {"hue": "int32"}})


def test_every_meaning_is_a_sentence_and_every_file_has_each_name_once() -> None:
    tables = [*(table.COLUMNS for table in CORE_TABLES.values()), *FILES.values()]
    for one in (one for table in tables for one in table):
        assert one.meaning[0].isupper() and one.meaning.endswith("."), one.name
        assert len(one.meaning.split()) <= 30, one.name
    for shown in FILES.values():
        assert len({one.name for one in shown}) == len(shown)
    assert COMPONENTS == ("accelerators", "cpu", "dram", "links", "nics", "storage", "other")


def test_the_reference_page_is_that_of_the_tables() -> None:
    page = ROOT / "docs" / "reference" / "columns.md"
    command = "llmsim schema --columns > docs/reference/columns.md"
    assert page.read_text(encoding="utf-8") == columns_page(), command


MEMBER = "std::vector<std::int32_t> emitted_tokens"
ROW = 'column("preemptions", &R::preemptions, 0, SaidBy::kSum),'
DECLARED = "\n\nclass RequestSizes(Table):"
PROGRAM = """
#include <cstdio>
#include "request/request_progress.h"
using namespace llmsim;
int main() {
  RequestProgress answers(2), prompts(2);
  answers.parked = {3, 5};
  prompts.parked = {4, 7};
  answers.begin_with(prompts, 1);
  each_column(answers, [](const char* name, const auto& values) {
    std::printf("%s %lld %lld\\n", name, (long long)values[0], (long long)values[1]);
  });
}
"""


def test_a_column_of_requests_is_a_member_a_row_and_a_declaration(
    tmp_path: Path, build: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Adds `parked` to copies of the core's header and of columns.py: nothing else has to know."""
    _check_core(tmp_path)
    extended = _extended_columns()
    names = [one.name for one in extended.FILES["requests.parquet"]]
    assert names.index("parked") == names.index("preemptions") + 1
    with pytest.raises(
        TypeError, match=r"the column parked of RequestColumns .* not in the core's table requests"
    ):
        extended.check_agreement(CORE)
    extended.check_agreement(CORE | {"requests": CORE["requests"] | {"parked": "int32"}})
    for name in ("FILES", "RequestColumns"):
        monkeypatch.setattr(parquet, name, getattr(extended, name))
    results = build(20)
    counts = np.arange(20, dtype=np.int32)
    results.requests = extended.RequestColumns(**vars(results.requests), parked=counts)
    parquet.write_requests(results, tmp_path / "requests.parquet")
    written = pq.read_table(tmp_path / "requests.parquet")
    assert written["parked"].to_pylist() == counts.tolist()
    assert (
        written.schema.field("parked").metadata[b"meaning"] == b"How often the request was parked."
    )


def _check_core(folder: Path) -> None:
    native = package_sources("llmsim/native")
    (folder / "request").mkdir()
    for name in ("request_progress.h", "request_progress.cpp"):
        shutil.copy(native / "request" / name, folder / "request" / name)
    header = folder / "request" / "request_progress.h"
    whole = header.read_text(encoding="utf-8")
    assert MEMBER in whole and ROW in whole
    whole = whole.replace(MEMBER, f"std::vector<std::int32_t> parked;\n{MEMBER}")
    program, binary = folder / "main.cpp", folder / "main"
    program.write_text(PROGRAM, encoding="utf-8")
    sources = [str(program), str(folder / "request" / "request_progress.cpp")]
    command = ["c++", "-std=c++20", f"-I{folder}", f"-I{native}", *sources, "-o", str(binary)]
    header.write_text(whole, encoding="utf-8")
    half = subprocess.run(command, capture_output=True, text=True, check=False)
    assert half.returncode and "columns() lacks a member" in half.stderr
    added = 'column("parked", &R::parked, 0, SaidBy::kSum),'
    header.write_text(whole.replace(ROW, f"{ROW}\n{added}"), encoding="utf-8")
    subprocess.run(command, check=True)
    said = subprocess.run([str(binary)], capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[-1] == "parked 3 12"
    assert (
        len(said.splitlines()) == len(RequestColumns.COLUMNS) - 2 + 1
    )  # without status and arrival


def _extended_columns() -> ModuleType:
    text = Path(columns.__file__).read_text(encoding="utf-8")
    assert text.count(DECLARED) == 1
    added = '    parked: Int32 = column("", "How often the request was parked.")\n'
    module = ModuleType("extended_columns")
    sys.modules[module.__name__] = module  # dataclasses look their module up
    exec(text.replace(DECLARED, added + DECLARED), vars(module))
    return module
