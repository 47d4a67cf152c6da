from __future__ import annotations

import pytest

from turnwire._transcript import Transcript, as_made
from turnwire.v1.client_event_pb2 import Input
from turnwire.v1.content_pb2 import Content
from turnwire.v1.item_pb2 import CompactionItem, Item, MessageItem


def said(text: str) -> Item:
    return Item(message=MessageItem(role="user", content=Content(text=text)))


def texts(whole: Input) -> list[str]:
    return [item.message.content.text or "compaction" for item in whole.items.items]


def add(
    transcript: Transcript,
    name: str,
    parent: str | None = None,
    *,
    lane: str | None = None,
    is_stored: bool = False,
    is_warm_up: bool = False,
    made: list[Item] | None = None,
) -> None:
    transcript.add(
        name,
        parent_id=parent,
        lane=lane,
        given=[said(f"q {name}")],
        made=as_made([said(f"a {name}")] if made is None else made),
        is_stored=is_stored,
        session=0,
        is_warm_up=is_warm_up,
    )


def whole(transcript: Transcript, name: str) -> list[str]:
    entry = transcript.find(name)
    assert entry is not None
    return texts(transcript.whole(entry))


def test_a_conversation_is_told_from_its_beginning_with_forks_apart() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1", is_stored=True)
    add(transcript, "2", "1", lane="a")
    add(transcript, "3", "1", lane="b")
    assert whole(transcript, "2") == ["q 1", "a 1", "q 2", "a 2"]
    assert whole(transcript, "3") == ["q 1", "a 1", "q 3", "a 3"]


def test_a_lane_that_goes_on_elsewhere_forgets_what_was_not_stored() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1", lane="a")
    add(transcript, "2", "1", lane="a")
    add(transcript, "3", lane="a")
    assert transcript.find("1") is None and transcript.find("2") is None
    assert len(transcript) == 1


@pytest.mark.parametrize("kept", [{"is_stored": True}, {"is_warm_up": True}])
def test_what_the_server_keeps_is_kept_when_its_lane_goes_on(kept: dict[str, bool]) -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1", **kept)  # type: ignore[arg-type]
    add(transcript, "2")
    assert whole(transcript, "1") == ["q 1", "a 1"]


def test_the_bound_drops_what_was_not_touched_for_longest() -> None:
    sizes = Transcript(1 << 20)
    add(sizes, "1")
    transcript = Transcript(3 * sizes.bytes)
    for name in "1234":
        add(transcript, name, lane=name, is_stored=True)
    assert transcript.find("1") is None
    assert transcript.bytes == 3 * sizes.bytes
    add(transcript, "5", "2", lane="2")
    assert transcript.find("3") is None
    assert whole(transcript, "5") == ["q 2", "a 2", "q 5", "a 5"]


def test_a_conversation_over_the_bound_is_not_kept_at_all() -> None:
    sizes = Transcript(1 << 20)
    add(sizes, "1")
    transcript = Transcript(2 * sizes.bytes)
    add(transcript, "1")
    add(transcript, "2", "1")
    add(transcript, "3", "2")
    add(transcript, "4", "3")
    assert (len(transcript), transcript.bytes) == (0, 0)


def test_a_conversation_of_which_the_beginning_is_unknown_is_not_kept() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1", lane="a")
    add(transcript, "3", "2", lane="a")
    assert len(transcript) == 0


def test_nothing_is_kept_without_room() -> None:
    transcript = Transcript(0)
    add(transcript, "1")
    assert len(transcript) == 0


def test_a_compaction_stands_for_what_was_before_it() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1")
    compaction = Item(compaction=CompactionItem(id="cmp_1", encrypted_content="x"))
    add(transcript, "2", "1", made=[said("old"), compaction, said("new")])
    assert whole(transcript, "2") == ["compaction", "new"]
    assert len(transcript) == 1


def test_many_conversations_are_bounded_by_their_number() -> None:
    transcript = Transcript(1 << 30)
    for number in range(100):
        add(transcript, str(number), is_stored=True)
    assert len(transcript) == 64


def test_forgetting_takes_along_what_continues_it() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1", is_stored=True)
    add(transcript, "2", "1", lane="a")
    add(transcript, "3", lane="b")
    transcript.forget("1")
    transcript.forget("1")
    assert transcript.find("1") is None and transcript.find("2") is None
    assert whole(transcript, "3") == ["q 3", "a 3"]
    assert len(transcript) == 1


def test_a_response_is_found_by_the_id_of_one_that_it_took_over_from() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "2")
    transcript.rename(["0", "1"], "2")
    assert whole(transcript, "0") == ["q 2", "a 2"]
    assert (transcript.name("1"), transcript.name("7")) == ("2", "7")


def test_messages_that_wait_are_told_once_behind_their_response() -> None:
    transcript = Transcript(1 << 20)
    add(transcript, "1")
    transcript.steer("1", [said("quickly")])
    transcript.steer("unknown", [said("x")])
    assert whole(transcript, "1") == ["q 1", "a 1", "quickly"]
    add(transcript, "2", "1")
    assert whole(transcript, "2") == ["q 1", "a 1", "quickly", "q 2", "a 2"]
