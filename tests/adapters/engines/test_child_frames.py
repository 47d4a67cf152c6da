from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame

MESSAGES = st.lists(
    st.tuples(st.text(max_size=5), st.lists(st.integers(0, 2**32), max_size=5), st.none()),
    max_size=4,
)


@given(MESSAGES, st.lists(st.integers(0, 200), max_size=6))
def test_messages_come_out_whole_however_the_bytes_are_cut(messages, cuts):
    data = b"".join(pack_frame(*message) for message in messages)
    reader = FrameReader()
    received = []
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for start, end in itertools.pairwise(borders):
        received += list(reader.feed(data[start:end]))
    assert received == messages
