from __future__ import annotations

import asyncio
import logging

from turnwire_server.runtime.afterwork import AfterWork


async def test_jobs_run_beside_their_caller_and_each_other():
    afterwork = AfterWork()
    gate, order = asyncio.Event(), []

    async def waits() -> None:
        await gate.wait()
        order.append("waits")

    async def opens() -> None:
        order.append("opens")
        gate.set()

    afterwork.add(waits, response_id="resp_1")
    afterwork.add(opens, response_id="resp_2")
    assert order == []
    async with asyncio.timeout(20):
        await afterwork.finish(5)
    assert order == ["opens", "waits"]


async def test_a_job_that_fails_is_logged_with_its_response_and_hurts_nobody(caplog):
    afterwork = AfterWork()
    done = []

    async def breaks() -> None:
        raise ValueError("what a client said")

    async def works() -> None:
        done.append(True)

    afterwork.add(breaks, response_id="resp_1")
    afterwork.add(works, response_id="resp_2")
    async with asyncio.timeout(20):
        await afterwork.finish(5)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert "resp_1" in record.getMessage()
    assert "ValueError" in record.getMessage() and "in breaks" in record.getMessage()
    assert "error=ValueError\n" in record.getMessage()  # the type, and not its text
    assert done == [True]


async def test_a_job_that_waits_for_nothing_runs_after_its_caller_and_before_the_end(caplog):
    afterwork, done = AfterWork(), []

    def breaks() -> None:
        raise ValueError("what a client said")

    afterwork.soon(breaks, response_id="resp_1")
    afterwork.soon(lambda: done.append(True), response_id="resp_2")
    assert done == []
    async with asyncio.timeout(20):
        await afterwork.finish(NEVER_S)
    assert done == [True]
    (record,) = caplog.records
    assert "resp_1" in record.getMessage() and "error=ValueError\n" in record.getMessage()


async def test_without_jobs_there_is_nothing_to_wait_for():
    async with asyncio.timeout(20):
        await AfterWork().finish(NEVER_S)


async def test_a_job_that_is_over_is_not_waited_for_again():
    afterwork = AfterWork()
    over = asyncio.Event()

    async def works() -> None:
        over.set()

    afterwork.add(works, response_id="resp_1")
    await over.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await afterwork.finish(NEVER_S)


async def test_jobs_beyond_the_grace_are_cancelled_and_waited_for(caplog):
    afterwork = AfterWork()
    cleaned_up = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned_up.append(True)

    for index in range(2):
        afterwork.add(hangs, response_id=f"resp_{index}")
    async with asyncio.timeout(20):
        await afterwork.finish(0.01)
    assert cleaned_up == [True, True]
    assert [record.getMessage() for record in caplog.records] == ["after work cut jobs=2"]


NEVER_S = 60.0
