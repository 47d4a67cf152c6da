from __future__ import annotations

from turnwire_server.session.packed import PackableItems, packable

ITEMS = (b"a" * 3_000, b"", b"bc" * 1_000)


def test_items_are_the_same_while_they_are_compressed_and_after() -> None:
    items = PackableItems(ITEMS)
    items.pack()
    items.pack()
    assert len(items) == 3
    assert list(items) == list(ITEMS)
    items.pack()
    assert (items[0], items[-1], items[1:]) == (ITEMS[0], ITEMS[2], ITEMS[1:])
    items.pack()
    assert list(reversed(items)) == list(ITEMS[::-1])


def test_items_that_are_compressed_take_less() -> None:
    items = PackableItems(ITEMS)
    items.pack()
    assert len(items._packed) < 100
    assert items._items == ()
    assert items[0] == ITEMS[0]
    assert items._packed == b""


def test_items_are_compared_by_content() -> None:
    items, same = PackableItems(ITEMS), PackableItems(ITEMS)
    items.pack()
    assert items == same
    assert items == ITEMS
    assert items != PackableItems(ITEMS[:2])


def test_short_items_stay_as_they_are() -> None:
    assert packable([b"abc"]) == (b"abc",)
    assert isinstance(packable([b"abc"]), tuple)
    assert isinstance(packable(ITEMS), PackableItems)


def test_what_takes_long_to_compress_is_left_as_it_is() -> None:
    assert isinstance(packable([b"x" * 100_000]), PackableItems)
    assert isinstance(packable([b"x" * 200_000, b"y" * 100_000]), tuple)
