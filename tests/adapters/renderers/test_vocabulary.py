from __future__ import annotations

import socket

import pytest

from turnwire_server.adapters.renderers import vocabulary as module
from turnwire_server.adapters.renderers.vocabulary import VocabularyFailure, o200k_base


def test_ids_are_those_of_the_published_encoding() -> None:
    assert o200k_base().encode("hello world") == [24912, 2375]
    assert o200k_base().size == 199_998


def test_the_vocabulary_is_loaded_once() -> None:
    assert o200k_base() is o200k_base()


def test_loading_needs_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    assert module._read_ranks()[b"hello"] == 24912


def test_other_data_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SHA256", "0" * 64)
    with pytest.raises(VocabularyFailure, match="not the published file"):
        module._read_ranks()


def test_markers_in_text_are_plain_text() -> None:
    text = "<|endoftext|><|im_start|>system"
    ids = o200k_base().encode(text)
    assert len(ids) > 2
    assert o200k_base().decode(ids) == text


def test_a_million_blanks_are_encoded() -> None:
    text = " " * 1_000_000
    assert o200k_base().decode(o200k_base().encode(text)) == text


def test_bytes_become_one_id_each() -> None:
    ids = o200k_base().encode_bytes("😀".encode())
    assert len(ids) == 4
    assert o200k_base().decode(ids) == "😀"


def test_an_unknown_id_has_no_bytes() -> None:
    assert o200k_base().token_bytes(250_000) == b""
    assert o200k_base().token_bytes(2**40) == b""
