"""The page of the Flask example in a real browser: what it shows, and what leaving it does."""

from __future__ import annotations

import json
import threading

from tests.browser.conftest import MODEL, Page, Site
from tests.conftest import LIMIT
from toolnexus import State
from toolnexus.testing import Reply, ScriptedLlm, raw, text, tool_call

QUESTION = "Approve the $500 charge? Yes No"
CHARGE = tool_call("charge_card", {"amount": 500})


def held_in_the_middle(said: str) -> tuple[Reply, threading.Event]:
    """Return a reply whose stream stops after its first half."""
    gate = threading.Event()
    return text(said).paused_after(2, gate), gate


def test_the_page_shows_the_first_words_while_the_model_still_speaks(
    page: Page, llm: ScriptedLlm
) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    page.start()
    page.shows(said="Hello", state="running")
    gate.set()
    page.shows(said="Hello there.", state="done")


def test_a_yes_in_the_page_goes_on_to_the_final_text(page: Page, llm: ScriptedLlm) -> None:
    reply, gate = held_in_the_middle("It is paid.")
    llm.say(MODEL, CHARGE, reply)
    page.start()
    page.shows(question=QUESTION, state="pending")
    page.press("Yes")
    page.shows(question="", said="calls charge_card\ncharged $500\nIt is", state="running")
    gate.set()
    page.shows(said="calls charge_card\ncharged $500\nIt is paid.", state="done")
    assert list(llm.requests[-1].tool_results.values()) == ["charged $500"]


def test_a_double_click_is_one_answer(page: Page, site: Site, llm: ScriptedLlm) -> None:
    reply, gate = held_in_the_middle("It is paid.")
    llm.say(MODEL, CHARGE, reply)
    page.start()
    page.press("Yes", clicks=2)
    page.shows(question="", said="calls charge_card\ncharged $500\nIt is", state="running")
    gate.set()
    page.shows(said="calls charge_card\ncharged $500\nIt is paid.", state="done")
    assert len(site.views) == 2


def test_a_no_in_the_page_charges_nothing(page: Page, llm: ScriptedLlm) -> None:
    llm.say(MODEL, CHARGE, text("As you like."))
    page.start()
    page.press("No")
    page.shows(question="", state="done")
    assert page.text("said").endswith("As you like.")
    assert list(llm.requests[-1].tool_results.values()) == [
        "declined/expired: Approve the $500 charge?"
    ]


def test_what_was_said_before_a_question_stays_above_it(page: Page, llm: ScriptedLlm) -> None:
    gate = threading.Event()
    asks = tool_call("charge_card", {"amount": 500}, content="I must ask.")
    llm.say(MODEL, asks.paused_after(2, gate))
    page.start()
    page.shows(said="I must", question="", state="running")
    gate.set()
    page.shows(said="I must ask.\ncalls charge_card", question=QUESTION)


def test_a_reload_in_the_middle_shows_what_was_said_and_then_the_rest(
    page: Page, llm: ScriptedLlm
) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    page.start()
    page.shows(said="Hello")
    page.driver.refresh()
    page.shows(said="Hello", state="running")
    gate.set()
    page.shows(said="Hello there.", state="done")
    assert len(llm.requests) == 1


def test_a_reload_at_a_question_asks_it_again(page: Page, llm: ScriptedLlm) -> None:
    llm.say(MODEL, CHARGE, text("It is paid."))
    page.start()
    page.shows(question=QUESTION)
    page.driver.refresh()
    page.shows(question=QUESTION, state="pending")
    page.press("Yes")
    page.shows(question="", state="done")
    assert page.text("said").endswith("It is paid.")


def test_a_reload_after_the_end_shows_the_final_text(page: Page, llm: ScriptedLlm) -> None:
    llm.say(MODEL, text("Hello there."))
    page.start()
    page.shows(said="Hello there.", state="done")
    page.driver.refresh()
    page.shows(said="Hello there.", state="done")


def test_a_connection_that_breaks_is_opened_again_and_nothing_is_shown_twice(
    page: Page, site: Site, llm: ScriptedLlm
) -> None:
    reply, gate = held_in_the_middle("Hello there.")
    llm.say(MODEL, reply)
    page.start()
    page.shows(said="Hello", state="running")
    site.views[-1].break_off()
    page.shows(said="Hello", state="connecting again")
    page.shows(said="Hello", state="running")
    gate.set()
    page.shows(said="Hello there.", state="done")


def test_a_closed_tab_frees_its_thread_and_the_turn_goes_on(
    page: Page, site: Site, llm: ScriptedLlm
) -> None:
    goes_on, ends = threading.Event(), threading.Event()
    words = [f"word{number} " for number in range(50)]
    llm.say(MODEL, streamed(words).paused_after(1, goes_on).paused_after(len(words), ends))
    with page.in_new_tab():
        page.open()
        page.start()
        page.shows(said="word0")
        run = site.run(page.run_id)
    [view] = site.views
    view.wait_left()
    # The server writes the second word, and the third, to a browser that is gone: it notices.
    goes_on.set()
    view.wait_over()
    assert run.state is State.RUNNING
    ends.set()
    assert site.rt.wait_on(run, LIMIT).text == "".join(words)
    page.open(run.id)
    page.shows(said="".join(words).strip(), state="done")


def streamed(words: list[str]) -> Reply:
    """Return a reply in one event for each word, then the end of the stream."""
    chunks = [{"choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    events = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    events.append('data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n')
    body = "".join([*events, "data: [DONE]\n\n"])
    return raw(body, headers={"content-type": "text/event-stream"})


def test_the_next_run_takes_the_page_over(page: Page, site: Site, llm: ScriptedLlm) -> None:
    first, gate = held_in_the_middle("Hello there.")
    second, other_gate = held_in_the_middle("Good day.")
    llm.say(MODEL, first, second)
    page.start()
    page.shows(said="Hello")
    page.start()
    page.shows(said="Good")
    site.views[0].wait_left()
    gate.set()
    other_gate.set()
    page.shows(said="Good day.", state="done")
    page.driver.back()
    page.shows(said="Hello there.", state="done")


def test_a_question_goes_and_comes_with_its_run(page: Page, llm: ScriptedLlm) -> None:
    reply, gate = held_in_the_middle("Good day.")
    llm.say(MODEL, CHARGE, reply, text("It is paid."))
    page.start()
    page.shows(question=QUESTION)
    page.start()
    page.shows(question="", said="Good", state="running")
    page.driver.back()
    page.press("Yes")
    page.shows(question="", state="done")
    assert page.text("said").endswith("It is paid.")
    gate.set()
    page.driver.forward()
    page.shows(said="Good day.", state="done")


def test_an_answer_that_comes_too_late_is_refused_and_the_page_goes_on(
    page: Page, llm: ScriptedLlm
) -> None:
    llm.say(MODEL, CHARGE, text("As you like."))
    page.start()
    page.shows(question=QUESTION)
    run_id = page.run_id
    with page.in_new_tab():
        page.open(run_id)
        page.press("No")
        page.shows(state="done")
    page.press("Yes")
    page.shows(said="As you like.", question="", state="done")
    assert "was answered before" in page.text("problem")


def test_the_page_of_no_run_says_so(page: Page) -> None:
    page.open("root/payments.9")
    page.shows(said="", state="there is no such run")


def test_a_long_word_does_not_break_the_layout(page: Page, llm: ScriptedLlm) -> None:
    word = "o" * 500
    llm.say(MODEL, text(word))
    page.driver.set_window_size(500, 600)
    page.start()
    page.shows(state="done")
    root = "document.documentElement"
    assert page.text("said") == word
    assert page.driver.execute_script(f"return {root}.scrollWidth <= {root}.clientWidth")
