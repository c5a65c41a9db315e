"""How a rule between several fields is reported: the field to blame, and one sentence that ends its
line.
"""

import json
from typing import Any

from pydantic_core import PydanticCustomError


def broken_rule(field: str | tuple[str | int, ...], sentence: str) -> PydanticCustomError:
    """An error for a model validator to raise; `field` is relative to the model, `sentence` follows
    its path.
    """
    location = (field,) if isinstance(field, str) else field
    # Passed as context: the template language of pydantic would read braces inside the sentence.
    return PydanticCustomError(
        "broken_rule", "{sentence}", {"sentence": sentence, "field": location}
    )


def shown(value: Any) -> str:
    """A value as the file would write it, cut where it gets long."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
