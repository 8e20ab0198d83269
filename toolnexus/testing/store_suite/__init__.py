"""The parts of `toolnexus.testing.store_contract`, by subject."""

from __future__ import annotations

from typing import Final

import pytest

_PARTS: Final = ("asking", "base", "changing", "keeping", "owning", "racing")

# Before they are imported: an assertion of theirs that fails shows its values.
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))
