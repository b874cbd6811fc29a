"""The chat page in Debian's chromium, with a server on 127.0.0.1 whose answers tests write."""

import pytest
from browser import open_browser
from chat_page import ChatPage
from fake_chat_server import Answer, FakeChatServer, Refusal


@pytest.fixture(scope="session")
def browser():
    driver = open_browser()
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def downloads(browser, tmp_path_factory: pytest.TempPathFactory):
    """Where the browser puts what a test downloads."""
    folder = tmp_path_factory.mktemp("files")
    browser.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    return folder


@pytest.fixture(scope="session")
def chat_server():
    server = FakeChatServer()
    yield server
    server.stop()


class ScriptedPage(ChatPage):
    """The page, and the server whose answers a test writes."""

    def __init__(self, driver, server: FakeChatServer) -> None:
        super().__init__(driver, server.address)
        self.server = server

    def send(self, text: str, *answers: Answer | Refusal) -> None:
        self.server.script.extend(answers)
        super().send(text)

    def ask(self, text: str, *answers: Answer | Refusal) -> None:
        self.server.script.extend(answers)
        super().ask(text)


@pytest.fixture
def page(browser, chat_server):
    """The page as a browser has it that was never here. Nothing may be in its console that a test does not
    expect, and nothing asked from elsewhere.
    """
    chat_server.reset()
    found = ScriptedPage(browser, chat_server)
    found.open()
    chat_server.paths.clear()
    yield found
    found.check_console()
    found.check_addresses()
