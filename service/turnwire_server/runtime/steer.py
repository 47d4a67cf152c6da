"""Listening to a turn that was steered: up to the end of the item that the model is writing."""

from __future__ import annotations

from collections.abc import Sequence

from turnwire_server.ports.renderer import OutputParser
from turnwire_server.runtime.run import TurnRun
from turnwire_server.session.output import CallEnded

__all__ = ["hear_item"]


def hear_item(run: TurnRun, parser: OutputParser, ids: Sequence[int]) -> bool:
    """Take what was sampled until the open item is over, then cut the turn off.

    A turn that ends there by itself is not cut off. Ids are taken one by one: what is kept for
    the next turn must end where the item does.

    Returns:
        Whether there is room for more events.
    """
    assembler, stop_ids = run.assembler, run.renderer.stop_ids
    if not run.is_steered:
        run.is_steered = True
        # Between two items the model may have begun what is not to be heard any more.
        run.ends_with_item = not run.sampled
        assembler.end_after_item()
    has_room = True
    for token in ids:
        if parser.done or run.cut_reason is not None:
            break
        if assembler.is_stopped and token not in stop_ids:
            run.is_exact = run.ends_with_item
            run.cut_off("steered")
            break
        run.sampled.append(token)
        pieces = parser.feed((token,))
        has_room = run.say(pieces)
        if pieces:
            run.ends_with_item = isinstance(pieces[-1], CallEnded)
    return has_room
