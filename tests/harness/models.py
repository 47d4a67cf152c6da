"""The small real model of the test suite."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from turnwire_server.adapters.models import CATALOGUE, pull

__all__ = ["smollm2_path"]


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF of SmolLM2 in the user's cache; fetched if scripts/test did not do so before."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return pull(CATALOGUE["smollm2"], cache / "turnwire" / "models")
