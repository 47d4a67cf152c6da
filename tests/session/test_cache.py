from __future__ import annotations

from turnwire_server.session.cache import CachedResponse, ResponseCache
from turnwire_server.session.conversation import EMPTY


def entry(response_id: str, lane: str | None = None, *, warm_up: bool = False) -> CachedResponse:
    return CachedResponse(response_id, EMPTY, lane=lane, warm_up=warm_up)


def cache(*entries: CachedResponse, max_warm_ups: int = 2) -> ResponseCache:
    filled = ResponseCache(max_warm_ups)
    for each in entries:
        filled.put(each)
    return filled


def test_a_lane_keeps_its_newest_response_only():
    filled = cache(entry("r1", "a"), entry("r2", "a"))
    assert filled.find("r1", "a") is None
    assert filled.find("r2", "a").response_id == "r2"
    assert len(filled) == 1


def test_lanes_do_not_push_each_other_out():
    filled = cache(entry("r1", "a"), entry("r2", "b"), entry("r3", None))
    assert len(filled) == 3


def test_the_newest_of_another_lane_is_found_too():
    filled = cache(entry("r1", "a"), entry("r2", "b"))
    assert filled.find("r1", "b").response_id == "r1"
    assert filled.find("r1", "never used").response_id == "r1"


def test_a_failed_continuation_on_the_same_lane_evicts():
    filled = cache(entry("r1", "a"))
    filled.evict("r1", "a")
    assert filled.find("r1", "a") is None
    assert filled.find("r1", "b") is None


def test_a_failed_fork_leaves_the_parent_to_its_lane():
    filled = cache(entry("r1", "a"))
    filled.evict("r1", "b")
    assert filled.find("r1", "a").response_id == "r1"


def test_evicting_an_older_parent_spares_the_lane_s_newest():
    filled = cache(entry("r1", "a"), entry("r2", "a"))
    filled.evict("r1", "a")
    assert filled.find("r2", "a").response_id == "r2"


def test_evicting_what_is_not_there_changes_nothing():
    filled = cache(entry("r1", "a"))
    filled.evict("r9", "a")
    filled.evict("r9", "b")
    assert len(filled) == 1


def test_a_warm_up_outlives_newer_responses_of_its_lane():
    filled = cache(entry("w1", "a", warm_up=True), entry("r2", "a"), entry("r3", "a"))
    assert filled.find("w1", "a").response_id == "w1"
    assert filled.find("w1", "b").response_id == "w1"


def test_a_failed_continuation_on_its_lane_evicts_a_warm_up_from_everywhere():
    filled = cache(entry("w1", "a", warm_up=True))
    filled.evict("w1", "a")
    assert filled.find("w1", "a") is None
    assert len(filled) == 0


def test_a_failed_fork_from_a_warm_up_leaves_it():
    filled = cache(entry("w1", "a", warm_up=True), entry("r2", "a"))
    filled.evict("w1", "b")
    assert filled.find("w1", "b").response_id == "w1"


def test_the_warm_up_that_was_used_longest_ago_goes_first():
    filled = cache(entry("w1", "a", warm_up=True), entry("w2", "a", warm_up=True))
    filled.find("w1", "b")
    filled.put(entry("w3", "a", warm_up=True))
    assert [filled.find(each, "a") is not None for each in ("w1", "w2", "w3")] == [
        True,
        False,
        True,
    ]


def test_a_session_may_keep_no_extra_warm_ups():
    filled = cache(entry("w1", "a", warm_up=True), max_warm_ups=0)
    assert filled.find("w1", "a").response_id == "w1"
    filled.put(entry("r2", "a"))
    assert filled.find("w1", "a") is None


def test_nothing_is_left_after_clearing():
    filled = cache(entry("w1", "a", warm_up=True), entry("r2"))
    filled.clear()
    assert filled.entries() == []
