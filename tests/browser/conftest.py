"""A browser at the page of the Flask example, and the example's server."""

from __future__ import annotations

import importlib.util
import select
import shutil
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import attrs
import pytest
from selenium.common import StaleElementReferenceException, TimeoutException
from selenium.webdriver import ActionChains, Chrome, ChromeOptions, ChromeService
from selenium.webdriver.common.by import By
from selenium.webdriver.support.wait import WebDriverWait
from werkzeug.serving import make_server

from tests.conftest import LIMIT
from toolnexus import AgentRuntime, Handle, LlmClient
from toolnexus.testing import ScriptedLlm

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

EXAMPLE = Path(__file__).resolve().parents[2] / "docs" / "examples" / "stream_to_browser.py"
MODEL = "gpt-4o-mini"
POLL_SECONDS = 0.02
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-proxy-server")


@attrs.frozen(eq=False)
class View:
    """One request for the events of a run, as the server has it."""

    thread: threading.Thread
    connection: socket.socket

    def wait_left(self) -> None:
        """Block until the browser has closed its end."""
        readable, _, _ = select.select([self.connection], [], [], LIMIT)
        assert readable, "the browser still listens"

    def break_off(self) -> None:
        """Break the connection, as networks do."""
        self.connection.shutdown(socket.SHUT_RDWR)

    def wait_over(self) -> None:
        """Block until the server's thread has ended."""
        self.thread.join(LIMIT)
        assert not self.thread.is_alive(), "the view holds its thread"


@attrs.frozen(eq=False)
class Site:
    """The served example. As a WSGI application it notes each view.

    Attributes:
        app: The application of the example.
        rt: Its runtime.
        views: Each view so far, the oldest first.
    """

    app: WSGIApplication
    rt: AgentRuntime
    views: list[View] = attrs.field(factory=list, init=False)

    def __call__(
        self, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        if environ["PATH_INFO"].endswith("/events"):
            view = View(threading.current_thread(), environ["werkzeug.socket"])
            self.views.append(view)
        return self.app(environ, start_response)

    def run(self, run_id: str) -> Handle:
        """Return the handle of a run."""
        handle = self.rt.handle(run_id)
        assert handle is not None, f"{run_id!r} is no run"
        return handle


@attrs.frozen
class Page:
    """What a person sees of the page, and does there."""

    driver: Chrome
    url: str

    def open(self, run_id: str = "") -> None:
        """Load the page, of a run if one is named."""
        self.driver.get(f"{self.url}/#{run_id}")

    def start(self) -> None:
        """Start a run."""
        self.press("Start")

    def press(self, label: str, *, clicks: int = 1) -> None:
        """Press a button once it is there; several clicks are one quick movement."""
        self._wait(lambda: label in self._buttons(), f"no button {label!r}")
        actions = ActionChains(self.driver, duration=0).move_to_element(self._buttons()[label])
        for _ in range(clicks):
            actions.click()
        actions.perform()

    def shows(self, **texts: str) -> None:
        """Wait until each element, named by its id, shows exactly this."""
        self._wait(lambda: all(self.text(part) == texts[part] for part in texts), f"no {texts}")

    def text(self, part: str) -> str:
        """Return what an element shows."""
        return self.driver.find_element(By.ID, part).text.strip()

    @property
    def run_id(self) -> str:
        """The run that the page's address names."""
        return self.driver.current_url.partition("#")[2]

    @contextmanager
    def in_new_tab(self) -> Iterator[None]:
        """Do what follows in another tab, and close that."""
        first = self.driver.current_window_handle
        self.driver.switch_to.new_window("tab")
        try:
            yield
        finally:
            self.driver.close()
            self.driver.switch_to.window(first)

    def _buttons(self) -> dict[str, Any]:
        return {one.text: one for one in self.driver.find_elements(By.TAG_NAME, "button")}

    def _wait(self, is_there: Callable[[], bool], problem: str) -> None:
        # A page that loads, or a question that is answered, takes its elements with it.
        waiting = WebDriverWait(
            self.driver, LIMIT, POLL_SECONDS, [StaleElementReferenceException]
        )
        try:
            waiting.until(lambda _: is_there())
        except TimeoutException:
            shown = self.driver.find_element(By.TAG_NAME, "body").text
            raise AssertionError(f"{problem} in the page:\n{shown}") from None


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("stream_to_browser", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def site(example: ModuleType, llm: ScriptedLlm) -> Iterator[Site]:
    options: dict[str, Any] = {"base_url": llm.base_url, "api_key": "test-key", "retries": 0}
    rt = AgentRuntime(default_model=MODEL, registry=[example.payments], **options)
    with rt, LlmClient(model=MODEL, **options) as client:
        yield Site(example.make_app(rt, client), rt)


@pytest.fixture
def url(site: Site) -> Iterator[str]:
    server = make_server("127.0.0.1", 0, site, threaded=True)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        server.shutdown()
        thread.join(LIMIT)
        server.server_close()


@pytest.fixture(scope="session")
def programs() -> tuple[str, str]:
    """Find the browser and its driver."""
    browser, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if browser is None or driver is None:
        pytest.skip("chromium or chromedriver is missing (Debian: chromium, chromium-driver)")
    return browser, driver


@pytest.fixture
def page(programs: tuple[str, str], url: str) -> Iterator[Page]:
    """Open the page in a browser that ends before its server does."""
    with started(*programs) as chrome:
        found = Page(chrome, url)
        found.open()
        yield found
        told: list[dict[str, Any]] = chrome.get_log("browser")  # type: ignore[no-untyped-call]
        assert [one for one in told if one["source"] == "javascript"] == []


@contextmanager
def started(browser: str, driver: str) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in FLAGS:
        options.add_argument(flag)
    chrome = Chrome(options, ChromeService(driver))
    try:
        yield chrome
    finally:
        chrome.quit()
