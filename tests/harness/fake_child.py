"""A child of the openvino engine without a model; the first prompt id says how it behaves."""

from __future__ import annotations

import os
import socket
import sys
import time
from array import array
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any

from turnwire_server.adapters.engines.child_loop import ChildLoop, Key, Ready

__all__ = ["BREAK", "CANCELLED_KEYS", "COUNT", "DIE", "ECHO", "FLOOD", "HANG", "OPTIONS", "PID"]

ECHO, COUNT, HANG, DIE, FLOOD, CANCELLED_KEYS, OPTIONS, PID, BREAK = range(1, 10)


class FakePipeline:
    """Says at once what the prompt asks for."""

    capacity = 1_000_000

    def __init__(self, options: Mapping[str, Any], *, how: str) -> None:
        if how == "fail":
            raise ValueError("some detail\nits tensors are made of cheese")
        if how == "die":
            os._exit(5)
        if how == "sleep":
            time.sleep(60)
        self._ready: deque[Ready] = deque()
        self._cancelled: list[int] = []

    @property
    def is_busy(self) -> bool:
        return bool(self._ready)

    def cancel(self, key: Key) -> None:
        self._cancelled.append(key[1])
        self._ready = deque(one for one in self._ready if one[0] != key)

    def step(self) -> list[Ready]:
        ready = self._ready.popleft()
        if ready[2] == "broken":
            raise RuntimeError("its cheese has melted")
        return [ready]

    def add(self, key: Key, ids: bytes, options: Mapping[str, Any]) -> None:
        prompt = array("I")
        prompt.frombytes(ids)
        say = self._ready.append
        match prompt[0]:
            case 1:  # ECHO
                say((key, list(prompt[1:]), "stop", 32))
            case 2:  # COUNT
                say((key, [], None, 0))
                say((key, [7], None, None))
                say((key, [8, 9], "length", None))
            case 4:  # DIE
                os._exit(9)
            case 5:  # FLOOD
                say((key, list(range(100)), None, 0))
            case 6:  # CANCELLED_KEYS
                say((key, self._cancelled, "stop", 0))
            case 7:  # OPTIONS
                temperature = int(options["temperature"] * 10)
                penalty = int(options["repetition_penalty"] * 10)
                said = [options["max_tokens"], options["seed"] or 0, temperature, penalty]
                say((key, [*said, int(options["loop_stop"])], "stop", 0))
            case 8:  # PID
                say((key, [os.getpid()], "stop", 0))
            case 9:  # BREAK
                say((key, [], "broken", 0))
            case _:  # HANG
                pass


class StubbornLoop(ChildLoop):
    """Lives on when nobody is left: what must be killed."""

    def end(self, status: int) -> None:
        while True:
            time.sleep(60)


if __name__ == "__main__":
    how = sys.argv[1]
    kind = StubbornLoop if how == "stubborn" else ChildLoop
    kind(socket.socket(fileno=int(sys.argv[2])), partial(FakePipeline, how=how)).run()
