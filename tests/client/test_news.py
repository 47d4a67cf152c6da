from __future__ import annotations

import asyncio

from turnwire._news import News


async def waited(news: News) -> None:
    await news.wait()


async def test_all_that_wait_are_woken_once() -> None:
    news = News()
    news.tell()
    async with asyncio.timeout(20):
        waiting = [asyncio.create_task(waited(news)) for _ in range(3)]
        await asyncio.sleep(0)
        late = asyncio.create_task(waited(news))
        news.tell()
        await asyncio.gather(*waiting)
        assert not late.done()
        news.tell()
        await late


async def test_a_wait_that_was_cancelled_is_not_kept_past_the_next() -> None:
    news = News()
    async with asyncio.timeout(20):
        for _ in range(3):
            waiting = asyncio.create_task(waited(news))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            assert len(news.waiters) == 1
        waiting = asyncio.create_task(waited(news))
        other = asyncio.create_task(waited(news))
        await asyncio.sleep(0)
        news.tell()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert waiting.cancelled()
        await other
