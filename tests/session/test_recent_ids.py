from __future__ import annotations

from turnwire_server.session.recent_ids import RecentIds


def test_the_oldest_ids_are_forgotten():
    ids = RecentIds(2)
    for one in ("a", "b", "c"):
        ids.add(one)
    assert [one in ids for one in ("a", "b", "c", None)] == [False, True, True, False]
