"""The chat page in a real browser, as a user has it."""

import time
import urllib.request
from collections.abc import Callable
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

PATIENCE = 15  # seconds, on a busy machine
# What a reader sees of each message.
MESSAGES = """
return [...document.querySelectorAll("#messages > article")].map((each) => ({
  role: each.classList.contains("user") ? "user" : "assistant",
  text: each.querySelector(":scope > .text")?.innerText.trim() ?? "",
  footer: each.querySelector("footer").innerText.replace(/\\s+/g, " ").trim(),
}));
"""
KNOWN = "return document.querySelector('#model:not(:empty), dialog[open]') !== null"
# Also what a page that is left would still write.
FORGET = "localStorage.clear(); sessionStorage.clear(); Storage.prototype.setItem = () => {}"
TITLES = "return [...document.querySelectorAll('#conversations .open')].map((each) => each.innerText)"
# Buttons, links and fields that a user can reach, and that have no name for a screen reader.
NAMELESS = """
return [...document.querySelectorAll("button, a[href], input, textarea, summary")]
  .filter((each) => each.checkVisibility({ visibilityProperty: true }))
  .filter((each) => !(each.ariaLabel || each.innerText?.trim() || each.labels?.length))
  .map((each) => each.outerHTML);
"""


def wait(condition: Callable[[], Any], what: str) -> Any:
    """What the condition returns once that is true."""
    end = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < end, f"{PATIENCE} s have passed, and still not: {what}"
        time.sleep(0.02)
    return found


def wait_for_server(address: str) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address).close()
            return
        except OSError:
            assert time.monotonic() < end, f"{address} does not answer"
            time.sleep(0.1)


class ChatPage:
    def __init__(self, driver: webdriver.Chrome, address: str) -> None:
        self.driver = driver
        self.address = address
        self.expected: list[str] = []  # what the console may say

    # ---------------------------------------------------------------------------------------- opening

    def open(self, width: int = 1280, height: int = 800, scheme: str = "light") -> None:
        """The page as a browser has it that was never here."""
        if not self.driver.current_url.startswith(self.address):
            self.driver.get(f"{self.address}icon.svg")
        self.run(FORGET)
        self.resize(width, height)
        self.prefer(scheme)
        self.driver.get(self.address)
        self.wait_for_model()
        self.driver.get_log("browser")

    def open_nothing(self) -> None:
        """Leaves the page, and with it its answers."""
        self.run(FORGET)
        self.driver.get("about:blank")

    def reload(self) -> None:
        self.driver.refresh()
        self.wait_for_model()

    def wait_for_model(self) -> None:
        wait(lambda: self.run(KNOWN), "the page shows the model, or what it lacks")

    def resize(self, width: int, height: int) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, scheme: str) -> None:
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    # ---------------------------------------------------------------------------------------- reading

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def run_module(self, script: str, *arguments: Any) -> Any:
        """What an async function returns that may `await import("/js/...")`."""
        whole = f"const done = arguments[arguments.length - 1]; (async (args) => {{ {script} }})(arguments)"
        script = f"{whole}.then(done, (error) => done(`failed: ${{error}}`))"
        answer = self.driver.execute_async_script(script, *arguments)
        assert not str(answer).startswith("failed: "), answer
        return answer

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    @property
    def messages(self) -> list[dict[str, str]]:
        return self.run(MESSAGES)

    @property
    def texts(self) -> list[str]:
        return [each["text"] for each in self.messages]

    @property
    def notice(self) -> str:
        return self.find("#notice").text

    @property
    def focused(self) -> str:
        """The id or the label of what has the focus."""
        return self.run("const { id, ariaLabel } = document.activeElement; return id || ariaLabel || ''")

    @property
    def titles(self) -> list[str]:
        return self.run(TITLES)

    def wait_for_texts(self, *expected: str) -> None:
        wait(lambda: self.texts == list(expected), f"{expected}, but {self.texts} and {self.notice!r}")

    def wait_for_end(self) -> None:
        wait(lambda: self.find("#send").is_displayed(), "the answer is complete")

    def wait_for_notice(self, text: str) -> None:
        wait(lambda: text in self.notice, f"the notice {text!r}")

    def script_seconds(self) -> float:
        """How long scripts have run in the page."""
        self.driver.execute_cdp_cmd("Performance.enable", {})
        metrics = self.driver.execute_cdp_cmd("Performance.getMetrics", {})["metrics"]
        return next(each["value"] for each in metrics if each["name"] == "ScriptDuration")

    def nameless(self) -> list[str]:
        return self.run(NAMELESS)

    # ---------------------------------------------------------------------------------------- doing

    def send(self, text: str) -> None:
        self.type(text, Keys.ENTER)

    def ask(self, text: str) -> None:
        """Sends, and waits until the answer is complete."""
        count = len(self.messages)
        self.send(text)
        wait(lambda: len(self.messages) >= count + 2, "the answer begins")
        self.wait_for_end()

    def type(self, *keys: str) -> None:
        self.find("#prompt").send_keys(*keys)

    def press(self, *keys: str) -> None:
        """Keys on what has the focus; the ones before the last are held."""
        chain = ActionChains(self.driver)
        for key in keys[:-1]:
            chain.key_down(key)
        chain.send_keys(keys[-1])
        for key in reversed(keys[:-1]):
            chain.key_up(key)
        chain.perform()

    def click(self, selector: str) -> None:
        self.find(selector).click()

    def click_in_message(self, index: int, label: str) -> None:
        """A button of a message, which may show only under the pointer."""
        message = self.find_all("#messages > article")[index]
        message.find_element(By.CSS_SELECTOR, f"[aria-label='{label}']").click()

    # ---------------------------------------------------------------------------------------- after a test

    def check_console(self) -> None:
        """Fails if the console says what the test did not expect: above all, that the policy was broken."""
        found = [entry["message"] for entry in self.driver.get_log("browser")]
        rest = [text for text in found if not any(each in text for each in self.expected)]
        assert not rest, rest

    def check_addresses(self) -> None:
        """Fails if the page asked anybody else for anything."""
        entries = self.run("return performance.getEntriesByType('resource').map((each) => each.name)")
        assert all(each.startswith(self.address) for each in entries), entries
