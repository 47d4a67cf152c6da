from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest

from turnwire._response import Response
from turnwire.v1 import response_pb2


def late(made: list[str]) -> Response:
    """Return a response that notes when its message is made."""

    def make() -> response_pb2.Response:
        made.append("message")
        return response_pb2.Response(id="resp_1", status=response_pb2.RESPONSE_STATUS_COMPLETED)

    return Response.late(make)


def pickled(response: Response) -> Response:
    restored = pickle.loads(pickle.dumps(response))
    assert isinstance(restored, Response)
    return restored


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
@pytest.mark.parametrize("is_looked_at", [False, True])
def test_a_copy_is_equal_and_independent(
    copied: Callable[[Response], Response], is_looked_at: bool
) -> None:
    made: list[str] = []
    response = late(made)
    if is_looked_at:
        assert response.id == "resp_1"
    other = copied(response)
    assert other.message == response.message
    other.message.id = "changed"
    assert response.id == "resp_1"
    assert made == ["message"]


def test_a_shallow_copy_shares_the_message() -> None:
    response = late([])
    assert copy.copy(response).message is response.message


def test_a_message_that_is_set_takes_the_place_of_one_that_was_not_made() -> None:
    made: list[str] = []
    response = late(made)
    response.message = response_pb2.Response(id="resp_2")
    assert (response.id, made) == ("resp_2", [])
