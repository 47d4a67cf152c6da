from __future__ import annotations

import base64
import secrets
import stat
import string
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.sealing import (
    KeyFailure,
    RingSealer,
    load_or_create_keys,
    new_key,
    parse_key,
)
from turnwire_server.ports.sealer import SealBroken

ALPHABET = string.ascii_letters + string.digits + "-_"
KEY = bytes(range(32))
OTHER = bytes(range(1, 33))


def broken(sealer: RingSealer, text: str, kind: str = "reasoning") -> bool:
    try:
        sealer.open(kind, text)
    except SealBroken:
        return True
    return False


@given(st.binary(max_size=400), st.text(max_size=20))
def test_what_was_sealed_opens_as_it_was(payload, kind):
    sealer = RingSealer([KEY])
    assert sealer.open(kind, sealer.seal(kind, payload)) == payload


def test_the_payload_cannot_be_read_and_no_two_seals_are_alike():
    sealer = RingSealer([KEY])
    texts = {sealer.seal("reasoning", b"a secret thought") for _ in range(20)}
    assert len(texts) == 20
    assert all(set(text) <= set(ALPHABET) for text in texts)
    tokens = [base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) for text in texts]
    assert not any(b"secret" in token for token in tokens)


# Three lengths, so that the last character of base64 carries 6, 4 and 2 bits.
@pytest.mark.parametrize("length", [0, 1, 2, 3])
def test_any_other_character_at_any_place_is_refused(length):
    sealer = RingSealer([KEY])
    text = sealer.seal("reasoning", b"x" * length)
    changed = [
        text[:place] + other + text[place + 1 :]
        for place in range(len(text))
        for other in ALPHABET
        if other != text[place]
    ]
    assert [one for one in changed if not broken(sealer, one)] == []


def test_what_is_cut_longer_or_no_token_at_all_is_refused():
    sealer = RingSealer([KEY])
    text = sealer.seal("reasoning", b"thought")
    assert not broken(sealer, text)
    cut = [text[:length] for length in range(len(text))]
    longer = [text + more for more in ("A", "AAAA", "=", "==", "\n", " ", "é", "\0")]
    assert [
        one for one in (*cut, *longer, " " + text, "é", "x" * 5000) if not broken(sealer, one)
    ] == []


def test_a_seal_opens_as_its_own_kind_only():
    sealer = RingSealer([KEY])
    assert broken(sealer, sealer.seal("compaction", b"thought"), kind="reasoning")


def test_after_a_rotation_old_seals_open_and_new_ones_use_the_new_key():
    old, new = RingSealer([KEY]), RingSealer([OTHER, KEY])
    assert new.open("reasoning", old.seal("reasoning", b"before")) == b"before"
    after = new.seal("reasoning", b"after")
    assert broken(old, after)
    assert RingSealer([OTHER]).open("reasoning", after) == b"after"


def test_a_seal_of_a_key_that_is_gone_is_refused():
    assert broken(RingSealer([OTHER]), RingSealer([KEY]).seal("reasoning", b"thought"))


@pytest.mark.parametrize("keys", [[], [b"short"], [KEY, b""]])
def test_a_ring_needs_whole_keys(keys):
    with pytest.raises(ValueError, match="32 bytes"):
        RingSealer(keys)


def test_a_refusal_tells_nothing():
    with pytest.raises(SealBroken) as caught:
        RingSealer([KEY]).open("reasoning", "private text")
    assert str(caught.value) == ""


# Keys.


def test_the_key_file_is_made_for_its_owner_alone_and_read_again(tmp_path):
    path = tmp_path / "data" / "sealing.keys"
    keys = load_or_create_keys(path)
    assert load_or_create_keys(path) == keys
    assert [len(key) for key in keys] == [32]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_of_many_that_make_the_file_at_once_all_get_the_same_key(tmp_path):
    path = tmp_path / "sealing.keys"
    with ThreadPoolExecutor(8) as threads:
        rings = list(threads.map(lambda _: load_or_create_keys(path), range(16)))
    assert len(set(rings)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def test_a_key_file_holds_a_ring_in_order(tmp_path):
    first, second = new_key(), base64.b64encode(OTHER).decode()
    path = write(tmp_path / "keys", f"# newest first\n\n {first} \n{second}\n")
    assert load_or_create_keys(path) == (parse_key(first), OTHER)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_file_that_others_may_use_is_refused(tmp_path, mode):
    path = write(tmp_path / "keys", new_key(), mode)
    with pytest.raises(KeyFailure, match="chmod 600"):
        load_or_create_keys(path)


def test_a_key_file_that_cannot_be_used_says_where_and_not_what(tmp_path):
    secret = secrets.token_hex(5)
    path = write(tmp_path / "keys", f"# one\n{secret}\n")
    with pytest.raises(KeyFailure, match="line 2") as caught:
        load_or_create_keys(path)
    assert secret not in str(caught.value)


@pytest.mark.parametrize("text", ["", "# nothing\n", "# long\n" + "#" * 70_000 + "\n"])
def test_a_key_file_without_keys_or_without_end_is_refused(tmp_path, text):
    with pytest.raises(KeyFailure, match="1 key or more"):
        load_or_create_keys(write(tmp_path / "keys", text))


def test_a_place_where_no_file_can_be_is_refused_in_one_sentence(tmp_path):
    write(tmp_path / "file", "x")
    with pytest.raises(KeyFailure, match=r"cannot be read or made: .+\.$"):
        load_or_create_keys(tmp_path / "file" / "keys")


@pytest.mark.parametrize(
    "text",
    ["", "short", "é" * 43, new_key()[:-1], new_key() + "AAAA"],
    ids=["empty", "short", "not ASCII", "cut", "too long"],
)
def test_what_is_no_key_is_refused(text):
    with pytest.raises(KeyFailure, match="32 random bytes"):
        parse_key(text)
