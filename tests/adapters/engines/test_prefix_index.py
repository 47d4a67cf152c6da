from __future__ import annotations

import gc

import pytest

from turnwire_server.adapters.engines.prefix_index import PrefixIndex
from turnwire_server.session.tokens import TokenIds


def turn(index: PrefixIndex, ids: TokenIds, generated: list[int] | None = None) -> int:
    match = index.look_up(ids)
    index.prefilled(match, ids)
    index.generated(match, ids, generated or [])
    return match.cached


def test_an_unknown_prompt_has_nothing_cached() -> None:
    assert turn(PrefixIndex(), TokenIds(range(300))) == 0


def test_a_prompt_that_grew_from_one_seen_has_all_of_that_cached() -> None:
    index = PrefixIndex()
    ids = TokenIds(range(100))
    turn(index, ids, [7, 8, 9])
    assert turn(index, ids.extended([1, 2, 3])) == 100
    longer = TokenIds(range(1000))
    turn(index, longer, [7, 8, 9])
    assert turn(index, longer.extended([7, 8, 3])) == 1002


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    index = PrefixIndex()
    ids = TokenIds(range(128))
    turn(index, ids)
    assert turn(index, ids) == 127
    assert turn(index, TokenIds(range(128))) == 127


def test_another_buffer_is_found_by_whole_blocks() -> None:
    index = PrefixIndex()
    turn(index, TokenIds(range(200)))
    assert turn(index, TokenIds([*range(150), 0, 0, *range(100)])) == 128
    assert turn(index, TokenIds([5, *range(1, 200)])) == 0


def test_what_was_generated_is_found_by_another_buffer() -> None:
    index = PrefixIndex()
    turn(index, TokenIds(range(100)), list(range(100, 300)))
    assert turn(index, TokenIds(range(280))) == 256


def test_a_chain_of_turns_is_found_by_another_buffer() -> None:
    index = PrefixIndex()
    ids = TokenIds()
    for start in range(0, 1000, 100):
        ids = ids.extended(range(start, start + 100))
        turn(index, ids)
    assert turn(index, TokenIds(range(1000))) == 960


def test_a_fork_shares_what_came_before_it() -> None:
    index = PrefixIndex()
    base = TokenIds(range(128))
    turn(index, base)
    left, right = base.extended([1] * 64), base.extended([2] * 64)
    assert turn(index, left) == 128
    assert turn(index, right) == 128


def test_a_prompt_that_was_not_prefilled_is_not_cached() -> None:
    index = PrefixIndex()
    ids = TokenIds(range(128))
    index.look_up(ids)
    assert index.look_up(ids).cached == 0
    assert turn(index, TokenIds(range(128))) == 0


def test_blocks_and_buffers_are_bounded() -> None:
    index = PrefixIndex(max_tokens=640, max_buffers=2)
    kept = [TokenIds([seed] * 320) for seed in range(5)]
    for ids in kept:
        turn(index, ids)
    assert len(index._blocks) == 10
    assert len(index._buffers) == 2
    assert turn(index, TokenIds([0] * 320)) == 0
    assert turn(index, TokenIds([4] * 320)) == 319


def test_no_ids_are_kept_alive() -> None:
    index = PrefixIndex()
    ids = TokenIds(range(128))
    turn(index, ids)
    index.catch_up()
    reference = ids.buffer_reference()
    del ids
    gc.collect()
    assert reference() is None


def test_what_was_generated_is_remembered_when_it_is_asked_for_or_when_there_is_time() -> None:
    index = PrefixIndex()
    match = index.look_up(ids := TokenIds(range(64)))
    index.prefilled(match, ids)
    index.generated(match, ids, range(64, 128))
    assert len(index._blocks) == 1
    index.catch_up()
    assert len(index._blocks) == 2
    index.generated(match, ids, range(64, 192))
    assert index.look_up(TokenIds(range(300))).cached == 192


def test_what_cannot_be_remembered_is_not_tried_again() -> None:
    index = PrefixIndex()
    match = index.look_up(ids := TokenIds(range(64)))
    index.prefilled(match, ids)
    index.generated(match, ids, [1 << 32])  # no id
    with pytest.raises(OverflowError):
        index.look_up(ids)
    assert index.look_up(TokenIds(range(65))).cached == 64


def test_an_older_view_of_a_longer_buffer_is_cached_too() -> None:
    index = PrefixIndex()
    short = TokenIds(range(100))
    long = short.extended(range(100, 300))
    turn(index, long)
    assert turn(index, short) == 99
    assert turn(index, long) == 299


def test_a_conversation_that_is_gone_is_forgotten() -> None:
    index = PrefixIndex()
    gone, kept = TokenIds(range(128)), TokenIds(range(200, 400))
    turn(index, gone)
    turn(index, gone.extended([1]))
    turn(index, kept)
    del gone
    assert len(index._buffers) == 1
    assert turn(index, kept.extended([1])) == 200
