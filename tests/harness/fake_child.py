"""A child of the openvino engine without a model; the first prompt id says how it behaves."""

from __future__ import annotations

import os
import socket
import sys
import time
from array import array

from turnwire_server.adapters.engines.child_frames import FrameReader, pack_frame

__all__ = ["CANCELLED_KEYS", "COUNT", "DIE", "ECHO", "FLOOD", "HANG", "OPTIONS"]

ECHO, COUNT, HANG, DIE, FLOOD, CANCELLED_KEYS, OPTIONS = range(1, 8)


def _serve(channel: socket.socket, how: str) -> None:
    frames = FrameReader()
    cancelled: list[int] = []

    def send(*message: object) -> None:
        channel.sendall(pack_frame(*message))

    def generate(key: int, prompt: array[int], options: dict[str, object]) -> None:
        match prompt[0]:
            case 1:  # ECHO
                send("steps", [(key, list(prompt[1:]), "stop", 32)])
            case 2:  # COUNT
                send("steps", [(key, [], None, 0)])
                send("steps", [(key, [7], None, None)])
                send("steps", [(key, [8, 9], "length", None)])
            case 4:  # DIE
                os._exit(9)
            case 5:  # FLOOD
                send("steps", [(key, list(range(100)), None, 0)])
            case 6:  # CANCELLED_KEYS
                send("steps", [(key, cancelled, "stop", 0)])
            case 7:  # OPTIONS
                temperature = int(options["temperature"] * 10)
                penalty = int(options["repetition_penalty"] * 10)
                said = [options["max_tokens"], options["seed"] or 0, temperature, penalty]
                send("steps", [(key, [*said, int(options["loop_stop"])], "stop", 0)])
            case _:  # HANG
                pass

    while data := channel.recv(1 << 16):
        for message in frames.feed(data):
            match message:
                case ("start", _):
                    if how == "fail":
                        send("failed", "its tensors are made of cheese")
                        return
                    if how == "die":
                        os._exit(5)
                    if how == "sleep":
                        while channel.recv(1 << 16):
                            pass
                        return
                    send("ready", {"capacity": 1_000_000})
                case ("generate", key, ids, options):
                    prompt = array("I")
                    prompt.frombytes(ids)
                    generate(key, prompt, options)
                case ("cancel", key):
                    cancelled.append(key)


if __name__ == "__main__":
    if sys.argv[1] == "stubborn":
        # Reads on after the parent is gone: what `stop` must kill.
        _serve(socket.socket(fileno=int(sys.argv[2])), "")
        while True:
            time.sleep(60)
    _serve(socket.socket(fileno=int(sys.argv[2])), sys.argv[1])
