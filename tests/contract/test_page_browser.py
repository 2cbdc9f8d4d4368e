"""The page in a real browser: what people see, type and press, and what no model can make it do."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from support.browser import NAMES, Browser, Page, chromium, found
from support.gateway import Site, site
from support.routing import until
from support.script import Script
from support.tokens import Tokens

pytestmark = pytest.mark.skipif(not found(), reason=f"none of {', '.join(NAMES)} is installed")

MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>&amp;"
LOG = "document.getElementById('log').innerText"
TOLD = "document.getElementById('told').innerText"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def browser() -> AsyncGenerator[Browser]:
    async with chromium() as one:
        yield one


async def opened(browser: Browser, one: Site) -> Page:
    page = await browser.page()
    await page.look(1200, 800)
    await page.open(f"http://{one.address}/")
    return page


async def said(page: Page, text: str) -> None:
    """Write a message and send it, as a keyboard does."""
    await page.until("!document.getElementById('send').disabled")
    await page.evaluate("document.getElementById('message').focus()")
    await page.write(text)
    await page.press("Enter")


async def test_a_conversation_is_told_and_goes_on(browser: Browser) -> None:
    async with site(Script(reasons=2, tokens=6)) as one:
        page = await opened(browser, one)
        await page.until("document.getElementById('state').innerText.includes('1 of 1 models')")
        await page.evaluate("document.getElementById('max-tokens').value = 5")
        await said(page, "hi")
        await page.until(f"{TOLD} === 'The answer is there.'")
        shown = await page.evaluate(LOG)
        assert "hi\n" in shown
        assert "2 3 4" in shown
        assert "5 tokens" in shown
        thought = "document.querySelector('.turn.assistant details').textContent"
        assert await page.evaluate(thought) == "Reasoning0 1 "
        before = (await page.evaluate("document.querySelectorAll('.turn').length"), shown)
        await page.press("Enter")  # of nothing
        assert await page.evaluate("document.querySelectorAll('.turn').length") == before[0]
        await page.write("and")
        await page.press("Enter", shift=True)
        await page.write("more")
        await page.press("Enter")
        await page.until("document.querySelectorAll('.turn').length === 4")
        await page.until(f"{TOLD} === 'The answer is there.'")
        assert "and\nmore" in await page.evaluate(LOG)
        prompt = len("user: hi\nassistant: 2 3 4 \nuser: and\nmore\n")
        counted = "(await (await fetch('/status.json')).json()).models[0].prompt_tokens"
        tokens = await page.evaluate(f"(async () => {counted})()")
        assert tokens == len("user: hi\n") + prompt, "the whole conversation is sent"
        assert page.problems == []
        assert {url.split("/")[2] for url in page.asked} == {one.address}


async def test_what_a_model_says_is_text_alone(browser: Browser) -> None:
    async with site(Script(echo=True, tokens=200)) as one:
        page = await opened(browser, one)
        await said(page, MARKUP)
        await page.until(f"{TOLD} === 'The answer is there.'")
        answer = "document.querySelector('.turn.assistant > .text')"
        assert MARKUP in await page.evaluate(f"{answer}.textContent")
        assert await page.evaluate("document.querySelectorAll('#log img, #log script').length") == 0
        refused = (
            "new Promise(done => { const made = document.createElement('script');"
            "made.textContent = 'window.ran = true'; document.body.append(made);"
            "setTimeout(() => done(window.ran), 50) })"
        )
        assert await page.evaluate(refused) is None, "the policy lets no script of a page run"


async def test_escape_stops_and_a_failure_is_told(browser: Browser) -> None:
    async with site(Script(interval_s=0.05, tokens=2000)) as one:
        page = await opened(browser, one)
        worker = one.bench.node.workers["fake"]
        await said(page, "count")
        await page.until(f"{LOG}.includes('3 4')")
        await page.press("Escape")
        await page.until(f"{TOLD} === 'Stopped.'")
        await until(lambda: worker.running == 0)
        await page.evaluate("document.getElementById('max-tokens').value = 99999")
        await said(page, "again")
        await page.until(f"{TOLD}.startsWith('It failed: ')")
        assert "4096" in await page.evaluate(TOLD)
        assert await page.evaluate("document.getElementById('message').value") == "again"


async def test_a_key_is_asked_for_and_kept_for_the_tab_alone(
    browser: Browser, tmp_path: Path
) -> None:
    tokens = Tokens(tmp_path)
    tokens.add("ops")
    async with site(auth=tokens.settings) as one:
        page = await opened(browser, one)
        await page.until(
            "document.getElementById('notice').innerText === 'This cluster asks for a key.'"
        )
        assert await page.evaluate("document.getElementById('send').disabled")
        await page.evaluate("document.getElementById('key').focus()")
        await page.write(tokens.of["ops"])
        await page.press("Enter")
        await said(page, "hi")
        await page.until(f"{TOLD} === 'The answer is there.'")
        assert await page.evaluate("document.getElementById('notice').hidden")
        kept = await page.evaluate("[Object.values(sessionStorage), Object.keys(localStorage)]")
        assert kept == [[tokens.of["ops"]], []]
        assert await page.evaluate("document.cookie") == ""


@pytest.mark.parametrize("width", [320, 390, 820, 1400])
async def test_it_fits_narrow_and_wide_and_can_be_used_without_a_mouse(
    browser: Browser, shown: Page, width: int
) -> None:
    await shown.look(width, 800)
    wide = "document.documentElement.scrollWidth <= innerWidth"
    assert await shown.evaluate(wide)
    nameless = (
        "[...document.querySelectorAll('input, select, textarea')].filter(one =>"
        " !one.labels.length || !one.labels[0].innerText.trim()).map(one => one.id)"
    )
    assert await shown.evaluate(nameless) == []
    cut = (
        "[...document.querySelectorAll('button, input, select, textarea')].filter(one =>"
        " { const box = one.getBoundingClientRect();"
        " return box.left < 0 || box.right > innerWidth || !box.width }).map(one => one.id)"
    )
    assert await shown.evaluate(cut) == []


async def test_it_is_dark_where_people_like_it_dark(shown: Page) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    await shown.look(800, 600)
    light = await shown.evaluate(ground)
    await shown.look(800, 600, dark=True)
    dark = await shown.evaluate(ground)
    assert brightness(light) > 200
    assert brightness(dark) < 60
    assert brightness(await shown.evaluate("getComputedStyle(document.body).color")) > 200


def brightness(colour: str) -> float:
    parts = [int(part) for part in colour.removeprefix("rgb(").removesuffix(")").split(", ")]
    return sum(parts) / 3


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def shown(browser: Browser) -> AsyncGenerator[Page]:
    async with site() as one:
        yield await opened(browser, one)
