"""Debian's chromium, without a window and without a network."""

import shutil

import pytest
from environment import REQUIRED
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

FLAGS = (
    "--headless=new",
    "--no-sandbox",  # root has none
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--no-first-run",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)


def open_browser(*flags: str) -> webdriver.Chrome:
    """Skips the test if there is no browser, unless AIRLLM_TEST_REQUIRE names chromium."""
    chromium, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not chromedriver:
        assert "chromium" not in REQUIRED, "AIRLLM_TEST_REQUIRE names chromium: it or chromedriver is missing"
        pytest.skip("no chromium with chromedriver: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in FLAGS + flags:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(chromedriver))
