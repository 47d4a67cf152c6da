from __future__ import annotations

import struct

import pytest

from harness.gguf_files import tiny_metadata, write_gguf
from turnwire_server.adapters.renderers.gguf import GgufFailure, GgufTensor, read_gguf


def test_metadata_and_tensors_come_back(tmp_path):
    metadata = {
        "general.architecture": "llama",
        "an.integer": 7,
        "a.float": 0.5,
        "a.truth": True,
        "texts": ["a", "ü"],
        "numbers": [1, 2, 3],
        "nested": [[1, 2], [3]],
    }
    path = write_gguf(tmp_path / "a.gguf", metadata, [("w", "Q5_0", (64, 2)), ("b", "F32", (1,))])
    gguf = read_gguf(path)
    assert gguf.metadata == metadata
    assert gguf.tensors == (GgufTensor("w", "Q5_0", (64, 2)), GgufTensor("b", "F32", (1,)))
    assert gguf.architecture == "llama"
    assert gguf.integers("numbers") == [1, 2, 3]
    assert gguf.texts("texts") == ["a", "ü"]
    assert gguf.text("none", "x") == "x"


def test_a_tensor_type_that_is_not_known_has_its_number_as_name(tmp_path):
    path = write_gguf(tmp_path / "a.gguf", {}, [("w", "type 99", (64,))])
    assert read_gguf(path).tensors[0].type_name == "type 99"


def test_a_value_that_is_missing_or_of_another_type_is_named(tmp_path):
    gguf = read_gguf(write_gguf(tmp_path / "a.gguf", {"n": 1, "t": "x", "l": ["x"], "b": True}))
    for read, key, words in (
        (gguf.text, "none", "has no metadata key none"),
        (gguf.text, "n", "key n is not text"),
        (gguf.integer, "t", "key t is not an integer"),
        (gguf.integer, "b", "key b is not an integer"),
        (gguf.texts, "t", "key t is not an array of texts"),
        (gguf.integers, "l", "key l is not an array of integers"),
    ):
        with pytest.raises(GgufFailure, match=words):
            read(key)


def test_a_file_cut_anywhere_is_refused_with_one_sentence(tmp_path):
    tensors = [("weight", "Q8_0", (64, 2))]
    whole = write_gguf(tmp_path / "a.gguf", {"k": "v", "l": [1, 2], "t": ["a"]}, tensors)
    data = whole.read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(len(data)):
        cut.write_bytes(data[:length])
        with pytest.raises(GgufFailure) as failed:
            read_gguf(cut)
        assert "cut.gguf" in str(failed.value)
        assert str(failed.value).endswith(".")
    assert len(read_gguf(whole).tensors) == 1


def test_any_one_byte_changed_is_read_or_refused_and_nothing_else(tmp_path):
    tensors = [("weight", "Q8_0", (64, 2))]
    data = write_gguf(tmp_path / "a.gguf", {"k": "v", "l": [1, 2]}, tensors).read_bytes()
    changed = tmp_path / "changed.gguf"
    for position in range(len(data)):
        for value in (0, 0x7F, 0xFF):
            changed.write_bytes(data[:position] + bytes((value,)) + data[position + 1 :])
            try:
                read_gguf(changed)
            except GgufFailure:
                pass


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"PK\x03\x04" + bytes(40), "does not begin with 'GGUF'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 2**60), "too short for its 1152921504606846976"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "too short for its 1152921504606846976"),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 2**40) + bytes(64),
            "1099511627776 bytes long",
        ),
        (
            b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1) + b"k" + b"\x63" * 64,
            "value of unknown type",
        ),
    ],
)
def test_a_file_that_lies_about_itself_is_refused(tmp_path, data, words):
    path = tmp_path / "lies.gguf"
    path.write_bytes(data)
    with pytest.raises(GgufFailure, match=words):
        read_gguf(path)


def test_a_folder_or_nothing_is_named(tmp_path):
    with pytest.raises(GgufFailure, match="no model file at"):
        read_gguf(tmp_path / "none.gguf")
    with pytest.raises(GgufFailure, match="cannot be read"):
        read_gguf(tmp_path)


def test_a_vocabulary_is_read_whole(tmp_path):
    metadata = tiny_metadata()
    gguf = read_gguf(write_gguf(tmp_path / "tiny.gguf", metadata))
    assert gguf.texts("tokenizer.ggml.tokens") == metadata["tokenizer.ggml.tokens"]
