"""Base64 is left out of texts; what only looks long stays as it is."""

from __future__ import annotations

import base64
import random
from collections.abc import Callable

import pytest

from toolnexus.parts.media import without_base64

PATHS = [
    "/srv/data/projects/toolbox/releases/2026/november/artifacts/linux/x86_64/python/lib/"
    "site-packages/package/module",
    "https://files.example/Users/anna/Documents/Reports/2026/Quarter/Fourth/Draft/Summary/"
    "Appendix/Tables/Figures/Notes/final",
    r"C:\\Users\\Anna\\Documents\\Reports\\2026\\Quarter\\Fourth\\Draft\\Summary\\Appendix\\Tables"
    r"\\Figures\\Notes",
    r"C:\Users\Anna\Documents\Reports\2026\Quarter\Fourth\Draft\Summary\Appendix\Tables\Figures"
    r"\Notes\Final",
    "com/example/Application/Internal/Services/Authentication/Providers/OpenId/Connect/"
    "Discovery/Document/Reader/Tests",
    "some-very-long-branch-name-that-a-team-gave-to-its-work-on-the-Import-of-bank-statements-"
    "in-the-second-quarter",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_long_path_is_left_alone(path: str) -> None:
    assert len(path) > 100

    assert without_base64(f"cannot open {path}: no such file") == (
        f"cannot open {path}: no such file"
    )


@pytest.mark.parametrize("size", [75, 300, 3_000, 30_000])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_random_bytes_are_left_out(size: int, encode: Callable[[bytes], bytes]) -> None:
    for seed in range(50):
        run = encode(random.Random(seed).randbytes(size)).decode()

        assert without_base64(f"a {run} b") == f"a [base64, {len(run):,} characters] b"
