from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import turnwire
from harness.client_events import call_item, call_turn, failed_turn, text_turn
from harness.client_wires import Script, scripted_grpc
from turnwire.v1.client_event_pb2 import ClientEvent
from turnwire.v1.server_event_pb2 import ServerEvent


@contextmanager
def served(script: Script) -> Iterator[str]:
    """Serve `script` over gRPC from a thread, as a script's server is elsewhere."""
    ready: list[str] = []
    started, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with scripted_grpc(script) as (url, _):
            ready.append(url)
            started.set()
            await asyncio.get_running_loop().run_in_executor(None, stop.wait, 20)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert started.wait(20)
        yield ready[0]
    finally:
        stop.set()
        thread.join(20)


def test_a_script_iterates_over_events_and_takes_the_response() -> None:
    with (
        served(lambda event: text_turn(event, "resp_1", "Hel", "lo")) as url,
        turnwire.connect_sync(url, model="m") as session,
    ):
        turn = session.create("Hi")
        assert "".join(event.delta or "" for event in turn) == "Hello"
        assert list(turn) == []
        assert turn.response().output_text == "Hello"
        assert turn.response_id == "resp_1"
        assert turn.stats is not None and turn.stats.bytes_down > 0
        assert session.bytes_up > 0 and session.is_open


def test_a_script_runs_an_agent_loop() -> None:
    def script(event: ClientEvent) -> list[ServerEvent]:
        if event.response_create.previous_response_id:
            return text_turn(event, "resp_2", "Done.")
        return call_turn(event, "resp_1", call_item("ping", "{}"))

    threads = []

    def ping() -> str:
        threads.append(threading.current_thread())
        return "pong"

    seen: list[str] = []
    with served(script) as url, turnwire.connect_sync(url, model="m") as session:
        result = session.run(
            "x", tools={"ping": ping}, on_event=lambda event: seen.append(event.type)
        )
    assert result.output_text == "Done."
    assert threads[0] not in (threading.main_thread(),)
    assert seen.count("response.completed") == 2


def test_errors_come_out_as_they_are() -> None:
    with (
        served(lambda event: failed_turn(event, "resp_1", "oops")) as url,
        turnwire.connect_sync(url, model="m") as session,
    ):
        with pytest.raises(turnwire.TurnFailed):
            list(session.create("x"))
        with pytest.raises(ValueError, match="temperature"):
            session.create("x", temperature="hot")  # type: ignore[arg-type]


def test_leaving_by_an_error_closes_the_session_and_ends_its_thread() -> None:
    with served(lambda event: []) as url:
        before = threading.active_count()
        with pytest.raises(KeyError), turnwire.connect_sync(url, model="m") as session:
            turn = session.create("x")
            raise KeyError
        assert threading.active_count() == before
        assert not session.is_open
        assert turn.stats is not None and turn.stats.status == "lost"


def test_a_connection_that_fails_leaves_no_thread() -> None:
    with served(lambda event: []) as url:
        pass
    before = threading.active_count()
    with pytest.raises(turnwire.ConnectionFailed), turnwire.connect_sync(url):
        pass
    assert threading.active_count() == before


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let SIGINT raise KeyboardInterrupt: a run in the background of a shell ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_cancels_what_runs_and_the_session_can_go_on() -> None:
    seen = []
    interrupted = threading.Event()

    def press() -> None:
        # Again after a second: an interrupt that meets a destructor is ignored by Python.
        for _ in range(10):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            if interrupted.wait(1):
                return

    def script(event: ClientEvent) -> list[ServerEvent]:
        seen.append(event.WhichOneof("event"))
        if event.response_create.input.text == "hang":
            # The turn has been asked for: now the user presses Ctrl-C.
            threading.Thread(target=press).start()
        if event.response_create.input.text != "x":
            return []
        return text_turn(event, "resp_2", "ok")

    with served(script) as url, turnwire.connect_sync(url, model="m") as session:
        with pytest.raises(KeyboardInterrupt):
            session.run("hang", stream_id="a")
        interrupted.set()
        assert session.create("x").response().output_text == "ok"
    assert seen == ["response_create", "response_cancel", "response_create"]


def test_a_callback_that_calls_the_session_is_told_so() -> None:
    with (
        served(lambda event: text_turn(event, "resp_1", "x")) as url,
        turnwire.connect_sync(url, model="m") as session,
        pytest.raises(RuntimeError, match="callback"),
    ):
        session.run("x", on_event=lambda event: session.models())


def test_a_lost_connection_is_reopened_for_a_script_too() -> None:
    with (
        served(lambda event: text_turn(event, "resp_1", "x")) as url,
        turnwire.connect_sync(url, model="m") as session,
    ):
        assert session.create("x").response().output_text == "x"

        async def cut() -> None:
            session._session._wire._call.cancel()  # type: ignore[attr-defined]

        session._portal.call(cut())
        assert session.create("y").response().output_text == "x"
        assert (session.reconnects, session.is_resumable) == (1, False)
