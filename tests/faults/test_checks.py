"""Each check finds what it is there for: a world that is well, and one thing broken in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from faults.checks import Kept, Record, check
from faults.seen import Seen, SeenResponse

USAGE = (10, 4, 7)
CALLS = ("call_1", "call_2", "call_3")


class World:
    def __init__(self) -> None:
        self.response = SeenResponse(
            "resp_1", True, list(range(9)), "completed", USAGE, "Done.", CALLS
        )
        self.lost = SeenResponse("resp_2", True, [0, 1])
        self.seen = Seen("grpc", {"resp_1": self.response, "resp_2": self.lost})
        self.seen.executed.update(CALLS)
        self.seen.finished.append(("Done.", CALLS))
        self.kept = {"resp_1": Kept("completed", USAGE, "Done.")}
        self.ledger = {
            "resp_1": Record("completed", USAGE),
            "resp_2": Record("interrupted", (0, 0, 0)),
        }
        self.open_records = 0

    def problems(self) -> list[str]:
        return check([self.seen], {"grpc": 1}, self.kept, self.ledger, self.open_records)


def test_a_world_that_is_well_has_no_problems() -> None:
    assert World().problems() == []


def _swapped_events(world: World) -> None:
    world.response.numbers[3:5] = [4, 3]


def _event_twice(world: World) -> None:
    world.response.numbers.insert(3, 2)


def _missing_event(world: World) -> None:
    del world.response.numbers[4]


def _tool_twice(world: World) -> None:
    world.seen.executed["call_1"] += 1


def _tool_never(world: World) -> None:
    del world.seen.executed["call_1"]


def _tool_too_many(world: World) -> None:
    world.seen.executed["call_9"] += 1


def _short_run(world: World) -> None:
    world.seen.finished[0] = ("Done.", CALLS[:2])
    del world.seen.executed["call_3"]


def _run_missing(world: World) -> None:
    world.seen.finished.clear()
    world.seen.losses.append("OutputLost")


def _not_stored(world: World) -> None:
    world.kept.clear()


def _stored_otherwise(world: World) -> None:
    world.kept["resp_1"] = replace(world.kept["resp_1"], text="Don")


def _not_billed(world: World) -> None:
    del world.ledger["resp_1"]


def _lost_not_billed(world: World) -> None:
    del world.ledger["resp_2"]


def _billed_otherwise(world: World) -> None:
    world.ledger["resp_1"] = Record("completed", (10, 4, 8))


def _record_open(world: World) -> None:
    world.open_records = 1


def _strange_status(world: World) -> None:
    world.ledger["resp_3"] = Record("running", (0, 0, 0))


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        (_swapped_events, "out of order"),
        (_event_twice, "out of order"),
        (_missing_event, "out of order"),
        (_tool_twice, "call_1 ran 2 times"),
        (_tool_never, "no tool ran"),
        (_tool_too_many, "call of no run"),
        (_short_run, "a run made 2 calls"),
        (_run_missing, "0 runs came to their end"),
        (_not_stored, "is not stored"),
        (_stored_otherwise, "stored as something else"),
        (_not_billed, "resp_1 was seen to end and is not in the ledger"),
        (_lost_not_billed, "resp_2 began and is not in the ledger"),
        (_billed_otherwise, "is in the ledger as"),
        (_record_open, "still open"),
        (_strange_status, "has the status 'running'"),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_one_thing_broken_is_found(breaks: Callable[[World], None], problem: str) -> None:
    world = World()
    breaks(world)
    problems = world.problems()
    assert any(problem in each for each in problems), problems
