from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from harness.families import FAMILIES, template_source, write_folder
from turnwire_server.adapters.renderers.chat_model import ChatModelFailure
from turnwire_server.adapters.renderers.hf_folder import read_folder


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path / "tiny", "qwen")


def change(path: Path, name: str, **members) -> None:
    value = json.loads((path / name).read_text("utf-8"))
    (path / name).write_text(json.dumps(value | members), "utf-8")


def test_a_folder_says_what_a_gguf_file_says(folder):
    model = read_folder(folder)
    tokenizer = model.tokenizer
    assert model.name == model.file_name == "tiny"
    assert model.template == template_source("qwen")
    assert (model.bos, model.eos, model.adds_bos) == ("", "<|im_end|>", False)
    assert model.stop_ids == {tokenizer.special_id("<|im_end|>")}
    assert model.known_stop_ids() == {
        tokenizer.special_id(text) for text in ("<|im_end|>", "<|endoftext|>")
    }
    assert tokenizer.token_bytes(tokenizer.special_id("<|im_end|>")) == b""
    assert tokenizer.token_bytes(tokenizer.special_id("<tool_call>")) == b"<tool_call>"


@pytest.mark.parametrize("family", FAMILIES)
def test_markup_becomes_the_ids_that_the_library_gives(tmp_path, family):
    path = write_folder(tmp_path, family)
    tokenizer = read_folder(path).tokenizer
    library = Tokenizer.from_file(str(path / "tokenizer.json"))
    control, visible, _, _ = FAMILIES[family]
    pieces = st.sampled_from([*control, *visible, "hello world", " ", "\n", "é🙂", "<|", "12"])

    @given(st.lists(pieces).map("".join))
    def check(text):
        assert tokenizer.encode_markup(text) == library.encode(text, add_special_tokens=False).ids

    check()


@given(text=st.text())
def test_ordinary_text_never_becomes_a_special_token(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "ordinary"
    tokenizer = read_folder(path if path.exists() else write_folder(path, "qwen")).tokenizer
    ids = tokenizer.encode(text + "<|im_end|><tool_call>")
    assert not any(map(tokenizer.is_special, ids))
    assert b"".join(map(tokenizer.token_bytes, ids)).decode() == text + "<|im_end|><tool_call>"


def test_the_template_may_be_in_the_settings(tmp_path):
    path = write_folder(tmp_path / "a", "qwen", in_settings=True)
    assert read_folder(path).template == template_source("qwen")
    named = [{"name": "rag", "template": "x"}, {"name": "default", "template": "y"}]
    change(path, "tokenizer_config.json", chat_template=named)
    assert read_folder(path).template == "y"


def test_more_ends_may_be_in_the_generation_settings(folder):
    (folder / "generation_config.json").write_text('{"eos_token_id": [5, 7]}', "utf-8")
    assert read_folder(folder).stop_ids >= {5, 7}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("tokenizer.json", None, r"tokenizer\.json cannot be read: No such file"),
        ("tokenizer.json", "{", "is not JSON"),
        ("tokenizer.json", "[]", "is not an object"),
        ("tokenizer.json", '{"model": {"type": "Unigram"}}', "no model of type BPE"),
        ("tokenizer.json", '{"model": {"type": "BPE"}}', "not of a byte-level vocabulary"),
        ("tokenizer_config.json", "7", "is not an object"),
        ("chat_template.jinja", None, "there is neither chat_template.jinja nor a chat_template"),
    ],
)
def test_a_folder_that_cannot_be_used_is_named_with_the_reason(folder, name, text, words):
    (folder / name).unlink()
    if text is not None:
        (folder / name).write_text(text, "utf-8")
    with pytest.raises(ChatModelFailure, match=f"tiny is not a model folder .*{words}"):
        read_folder(folder)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"added_tokens": [{"content": "x"}]}, "added tokens that are none"),
        ({"added_tokens": [{"content": "x", "id": -1, "special": True}]}, "ids that are none"),
        ({"pre_tokenizer": {"type": "Unheard"}}, "cannot be used by the tokenizers library"),
        ({"model": {"type": "BPE", "vocab": 7}}, "no vocabulary"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_named_with_the_reason(folder, members, words):
    change(folder, "tokenizer.json", **members)
    with pytest.raises(ChatModelFailure, match=words):
        read_folder(folder)


def test_tokenizers_are_told_apart(tmp_path):
    digests = {
        read_folder(write_folder(tmp_path / family, family)).tokenizer.digest
        for family in ("qwen", "llama3", "mistral")
    }
    assert len(digests) == 3
