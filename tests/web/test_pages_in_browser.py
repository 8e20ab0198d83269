"""The pages of both examples, and the admin, in a real browser: a person starts and answers."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.common import TimeoutException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.browser.conftest import POLL_SECONDS, started
from tests.conftest import LIMIT
from tests.web.sites import DJANGO, FLASK, MODEL, Framework, served
from toolnexus.testing import ScriptedLlm, text, tool_call

ATTACK = "<img src=x onerror=\"document.title='taken'\">"
ASKED = tool_call("refund", {"amount": 80, "customer": ATTACK})
ADMIN = "/admin/toolnexus/openrequest/"

Place = Callable[[Framework], Path]


class Person:
    """Somebody at a browser."""

    def __init__(self, chrome: Chrome) -> None:
        self.chrome = chrome

    def open(self, url: str) -> None:
        self.chrome.get(url)

    def log_in(self) -> None:
        self.write("username", "ann")
        self.write("password", "ann")
        self._find(By.CSS_SELECTOR, "[type=submit]").click()

    def press(self, label: str) -> None:
        self._find(By.XPATH, f"//button[normalize-space()='{label}']").click()

    def write(self, field: str, words: str) -> None:
        self._find(By.NAME, field).send_keys(words)

    def _find(self, by: str, what: str) -> WebElement:
        """Wait for the page that has it: a click returns before the next page is there."""
        waiting = WebDriverWait(self.chrome, LIMIT, POLL_SECONDS)
        return waiting.until(lambda chrome: chrome.find_element(by, what))

    def reads(self, words: str, *, reloads: bool = False) -> None:
        """Wait until the page says so; it changes only when it is loaded again."""

        def look(_: object) -> bool:
            if reloads:
                self.chrome.refresh()
            return words in self._text()

        waiting = WebDriverWait(self.chrome, LIMIT, POLL_SECONDS)
        try:
            waiting.until(look)
        except TimeoutException:
            raise AssertionError(f"no {words!r} in the page:\n{self._text()}") from None
        assert "taken" not in self.chrome.title

    def _text(self) -> str:
        """Return what the page shows; asked in one step, for it may be about to go."""
        script = "return document.body ? document.body.innerText : ''"
        return str(self.chrome.execute_script(script))


@pytest.fixture(scope="module")
def chrome() -> Iterator[Chrome]:
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium or chromedriver is missing (Debian: chromium, chromium-driver)")
    with started(browser, driver) as found:
        yield found


@pytest.mark.parametrize("framework", [FLASK, DJANGO], ids=["flask", "django"])
def test_a_person_starts_a_run_and_answers(
    llm: ScriptedLlm, place: Place, chrome: Chrome, framework: Framework
) -> None:
    llm.say(MODEL, ASKED, text("As you wish."), ASKED, text("Done."))
    with served(framework, llm, place(framework), "-k", "gthread", "--threads", "4") as site:
        person = Person(chrome)
        person.open(f"{site.url}/")
        if framework is DJANGO:
            person.log_in()
        for answer in ("No", "Yes"):
            person.press("Start")
            person.reads("started root/desk.")
            person.reads(f"Refund $80 to {ATTACK}?", reloads=True)
            person.write("reason", "because")
            person.press(answer)
            person.reads("Nothing is open.")
            llm.wait_asked(MODEL, 2 if answer == "No" else 4)
        assert site.refunds() == [(ATTACK, 80)]


def test_a_person_answers_in_the_admin(llm: ScriptedLlm, place: Place, chrome: Chrome) -> None:
    llm.say(MODEL, ASKED, text("Done."))
    with served(DJANGO, llm, place(DJANGO), "-k", "gthread", "--threads", "4") as site:
        chrome.delete_all_cookies()
        person = Person(chrome)
        person.open(f"{site.url}{ADMIN}")
        person.log_in()
        person.reads("Nothing is open.")
        site.visitor().start()
        person.reads(f"Refund $80 to {ATTACK}?", reloads=True)
        person.write("data", '{"args": {"amount": 5, "customer": "Ann"}}')
        person.press("Yes")
        person.reads("Answered.")
        person.reads("Nothing is open.")
        llm.wait_asked(MODEL, 2)
        assert site.refunds() == [("Ann", 5)]
