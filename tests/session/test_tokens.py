from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.session.tokens import TokenIds

ids_lists = st.lists(st.integers(0, 2**32 - 1), max_size=6)


def test_extending_the_newest_view_appends_in_place():
    parent = TokenIds([1, 2])
    child = parent.extended([3])
    assert child.shares_buffer_with(parent)
    assert (list(parent), list(child)) == ([1, 2], [1, 2, 3])


def test_a_fork_of_an_older_view_copies_and_disturbs_nobody():
    parent = TokenIds([1, 2])
    first = parent.extended([3])
    second = parent.extended([4, 5])
    assert not second.shares_buffer_with(parent)
    assert [list(view) for view in (parent, first, second)] == [[1, 2], [1, 2, 3], [1, 2, 4, 5]]


def test_a_view_can_be_extended_by_itself():
    ids = TokenIds([1, 2])
    assert list(ids.extended(ids)) == [1, 2, 1, 2]


def test_an_id_that_does_not_fit_leaves_every_view_as_it_was():
    parent = TokenIds([1])
    with pytest.raises(OverflowError):
        parent.extended([7, 2**32])
    assert list(parent) == [1]
    assert list(parent.extended([2])) == [1, 2]


def test_a_view_shows_its_own_length_only():
    parent = TokenIds([10, 11, 12])
    parent.extended([13, 14])
    assert len(parent) == 3
    assert (parent[0], parent[2], parent[-1], parent[-3]) == (10, 12, 12, 10)
    assert parent[1:] == array("I", [11, 12])
    assert parent[::-1] == array("I", [12, 11, 10])
    assert parent.as_array() == array("I", [10, 11, 12])
    assert parent.as_array(1, 9) == array("I", [11, 12])
    assert parent.as_array(-1) == array("I", [12])
    assert parent.as_array(0, -1) == array("I", [10, 11])
    for outside in (3, -4):
        with pytest.raises(IndexError):
            parent[outside]


def test_an_array_is_a_copy():
    ids = TokenIds([1, 2])
    ids.as_array()[0] = 9
    assert list(ids) == [1, 2]


def test_views_are_compared_by_content():
    parent = TokenIds([1, 2])
    child = parent.extended([3])
    assert parent == TokenIds([1, 2])
    assert child != parent
    assert parent != TokenIds([1, 3])
    assert child.extended([]) == child
    assert parent != [1, 2]
    with pytest.raises(TypeError):
        hash(parent)


def test_the_representation_shows_no_content():
    assert repr(TokenIds([1, 2, 3])) == "TokenIds(<3 ids>)"


def test_a_buffer_reference_is_the_same_for_all_views_and_keeps_nothing_alive():
    parent = TokenIds([1])
    child = parent.extended([2])
    reference = parent.buffer_reference()
    assert child.buffer_reference() is reference
    assert reference() is not None
    del parent, child
    assert reference() is None


@given(st.lists(st.tuples(st.integers(0, 30), ids_lists), max_size=30))
def test_a_tree_of_views_reads_like_a_tree_of_lists(steps):
    views, lists = [TokenIds()], [[]]
    for parent, ids in steps:
        parent %= len(views)
        views.append(views[parent].extended(ids))
        lists.append([*lists[parent], *ids])
    assert [list(view) for view in views] == lists


def test_ids_are_the_same_while_they_are_compressed_and_after():
    parent = TokenIds(range(2_000))
    child = parent.extended([7])
    reference = child.buffer_reference()
    child.pack()
    child.pack()
    assert len(parent._buffer._packed) not in (0, 8_004)
    assert len(parent) == 2_000
    assert parent[1_999] == 1_999
    assert parent._buffer._packed == b""
    child.pack()
    assert child[-2:] == array("I", [1_999, 7])
    child.pack()
    grown = child.extended([8])
    assert grown.shares_buffer_with(parent)
    assert grown.buffer_reference() is reference
    grown.pack()
    fork = parent.extended([9])
    assert list(fork) == [*range(2_000), 9]
    assert list(grown) == [*range(2_000), 7, 8]


def test_few_ids_are_not_compressed():
    ids = TokenIds([1, 2])
    ids.pack()
    assert ids._buffer._packed == b""
    assert list(ids) == [1, 2]
