"""The chat page with the real server, and a tiny model that says random bytes."""

import json

import pytest
import serving
from chat_page import ChatPage, wait
from selenium.webdriver.common.keys import Keys

from airllm.engine.scheduling.requests import Limits

SETTINGS = "localStorage.setItem('airllm.settings', JSON.stringify(arguments[0]))"
RECORDS = "return Object.entries(localStorage).filter(([n]) => n.startsWith('airllm.conversation.'))"


def open_page(browser, server, **settings) -> ChatPage:
    page = ChatPage(browser, f"{server.address}/")
    page.open()
    page.run(SETTINGS, settings)
    page.reload()
    return page


def contents(page: ChatPage) -> list[str]:
    """What was said, as it came: the page shows it as Markdown."""
    ((_, record),) = page.run(RECORDS)
    return [each["content"] for each in json.loads(record)["messages"].values()]


def test_the_answer_is_the_one_that_any_client_gets(browser, server):
    page = open_page(browser, server, temperature=0, max_tokens=24, system="Be brief.")
    page.ask("Hello there")
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello there"}]
    with server.client() as client:
        answer = client.chat.completions.create(
            model=serving.NAME, messages=messages, temperature=0, max_completion_tokens=24
        )
    assert contents(page) == ["Hello there", answer.choices[0].message.content]
    assert page.find("#model").text == serving.NAME
    assert "24 tokens · " in page.messages[1]["footer"] and "limit of tokens" in page.messages[1]["footer"]
    page.check_console()
    page.check_addresses()


def test_stop_frees_the_place(browser, server):
    page = open_page(browser, server, temperature=0, max_tokens=1000)
    server.scheduler.pause = 0.02
    try:
        page.send("Hello there")
        wait(lambda: len(contents(page)) == 2 and contents(page)[1], "the first words")
        page.press(Keys.ESCAPE)
        server.wait_until_idle(2)
    finally:
        server.scheduler.pause = 0.0
    assert "You stopped it" in page.messages[1]["footer"]
    page.check_console()


def test_a_prompt_too_long(browser, server):
    page = open_page(browser, server)
    page.run("document.getElementById('prompt').value = 'word '.repeat(2000)")
    page.send("")
    page.wait_for_notice("This conversation is too long for the model")
    assert str(serving.CONTEXT) in page.notice


def test_a_full_queue_and_a_key(browser, model):
    limits = Limits(max_running=1, max_waiting=0)
    with serving.serve(model, limits, keys=(serving.KEY,)) as server:
        page = open_page(browser, server, temperature=0, max_tokens=1000, system="Be brief.")
        wait(lambda: page.find("#key").is_displayed(), "the page asks for a key")
        page.press(serving.KEY)
        page.press(Keys.ENTER)
        wait(lambda: page.find("#model").text == serving.NAME, "the key is right")
        server.scheduler.pause = 0.05
        page.send("Hello there")
        wait(lambda: len(contents(page)) == 2 and contents(page)[1], "the first words")
        page.click("#new")
        page.send("Me too")
        page.wait_for_notice("The server is busy")
        assert "The page tries again in" in page.notice
        page.open_nothing()
        server.wait_until_idle(2)


@pytest.fixture(autouse=True)
def quiet(browser):
    """What one test leaves in the console is not the next one's."""
    yield
    browser.get_log("browser")
