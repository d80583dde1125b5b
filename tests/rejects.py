"""How tests say that a call is refused: with this type of error, and these words."""

import re
from typing import Any

import pytest


def rejects(error: type[Exception], words: str) -> Any:
    """Return a context in which an error must be raised whose message has the words as they are."""
    return pytest.raises(error, match=re.escape(words))
