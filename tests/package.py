"""Where the package under test lies: in this checkout, or installed beside one without its folder
(`make test-wheel`).
"""

from pathlib import Path

import pytest

import llmsim

PACKAGE = Path(llmsim.__file__).parent
PRESETS = PACKAGE / "presets"
_CHECKOUT = Path(__file__).resolve().parents[1]


def package_sources(part: str = "llmsim") -> Path:
    """A folder of the package's sources in the checkout; skips where an installed package is
    tested, which has none.
    """
    folder = _CHECKOUT / part
    if not folder.is_dir():
        pytest.skip(f"the checkout has no folder {part}", allow_module_level=True)
    return folder
