"""What the log says of a bug: where it happened and of which type, never what it was about."""

from __future__ import annotations

import logging
import traceback

__all__ = ["log_bug"]


def log_bug(logger: logging.Logger, what: str, error: BaseException) -> None:
    """Log a bug with the frames that it passed, without its text.

    The text of an exception may quote a client: a key that was not found, a value that could not
    be encoded.

    Args:
        logger: Where to.
        what: What failed, with ids, without content.
        error: The exception.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    logger.error("%s error=%s\n%s", what, type(error).__qualname__, frames.rstrip())
