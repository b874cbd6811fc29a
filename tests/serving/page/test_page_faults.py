"""The chat page where something goes wrong: a server that is busy, refuses, breaks off or is gone."""

from chat_page import wait
from fake_chat_server import Refusal, complete
from selenium.webdriver.common.keys import Keys


def test_a_busy_server_is_asked_again_when_it_says(page):
    page.expected = ["429"]
    busy = Refusal(429, "16 answers are running and 64 wait.", "queue_full", {"Retry-After": "1"})
    page.send("Hello", busy, complete("Hi"))
    page.wait_for_notice("16 answers are running and 64 wait.")
    assert "The page tries again in 1 s." in page.notice
    page.wait_for_texts("Hello", "Hi")
    assert page.notice == "" and len(page.server.bodies) == 2


def test_a_busy_server_can_be_asked_at_once_or_left_alone(page):
    page.expected = ["503"]
    loading = Refusal(503, "The model is being loaded.", None, {"Retry-After": "500"})
    page.send("Hello", loading, loading, complete("Hi"))
    page.wait_for_notice("The page tries again in 500 s.")
    page.click("[aria-label='Close this notice']")
    page.wait_for_notice("Your message has no answer")
    page.click("#notice .buttons button")
    page.wait_for_notice("The model is being loaded.")
    page.click("#notice .buttons button")
    page.wait_for_texts("Hello", "Hi")


def test_a_conversation_too_long(page):
    page.expected = ["400"]
    message = "The prompt has 9000 tokens, the model takes 8192."
    page.send("Long", Refusal(400, message, "context_length_exceeded"))
    page.wait_for_notice(message)
    assert "Start a new conversation, or edit an earlier message" in page.notice and page.texts == ["Long"]
    page.server.script.append(complete("Short"))
    page.click_in_message(0, "Edit")
    page.press(Keys.CONTROL, "a")
    page.press("Brief")
    page.press(Keys.ENTER)
    page.wait_for_texts("Brief", "Short")
    assert page.notice == ""


def test_a_refusal_is_told_in_the_servers_words(page):
    page.expected = ["400", "500", "403"]
    for status, message in (
        (400, "temperature: 3 is above 2."),
        (500, "<b onclick=x>failed</b>"),
        (403, "This Host is not allowed."),
    ):
        page.server.script.append(Refusal(status, message))
        page.click("#notice .buttons button") if page.notice else page.send("Hello")
        page.wait_for_notice(message)
        assert page.find("#notice").get_attribute("role") == "alert" and page.texts == ["Hello"]
    page.server.script.append(complete("Hi"))
    page.click("#notice .buttons button")
    page.wait_for_texts("Hello", "Hi")
    assert page.notice == ""


def test_an_answer_that_breaks_off_is_kept(page):
    answer = page.server.next()
    page.send("Tell")
    answer.write("Once upon")
    answer.cut()
    page.wait_for_notice("The server ended the answer before it was complete.")
    assert page.texts == ["Tell", "Once upon"] and "It broke off" in page.messages[1]["footer"]
    page.server.script.append(complete("Once upon a time."))
    page.click("#notice .buttons button")
    page.wait_for_texts("Tell", "Once upon a time.")
    assert page.messages[1]["footer"].startswith("2/2")


def test_an_error_in_the_stream(page):
    frames = {
        b'data: {"error": {"message": "The grammar failed.", "code": null}}\n\n': "The grammar failed.",
        b"data: {broken\n\n": "The connection broke off",
    }
    for place, (frame, shown) in enumerate(frames.items(), start=1):
        answer = page.server.next()
        page.click("#notice .buttons button") if page.notice else page.send("Tell")
        answer.write(f"Once {place}")
        answer.raw(frame)
        page.wait_for_notice(shown)
        assert page.texts == ["Tell", f"Once {place}"]


def test_the_limit_of_tokens_is_told(page):
    answer = page.server.next()
    answer.write("Once upon")
    answer.finish("length")
    page.type("Tell", Keys.ENTER)
    page.wait_for_texts("Tell", "Once upon")
    page.wait_for_end()
    assert "Stopped at the limit of tokens" in page.messages[1]["footer"]


def test_a_server_that_is_gone(page):
    page.expected = ["ERR_CONNECTION_REFUSED"]
    page.server.stop()
    page.send("Hello")
    page.wait_for_notice("The server does not answer. Is `airllm serve` still running?")
    wait(lambda: page.find("#model").text == "offline", "the page says that it is offline")
    assert page.texts == ["Hello"]
    page.server.start()
    page.server.script.append(complete("Hi"))
    page.click("#notice .buttons button")
    page.wait_for_texts("Hello", "Hi")
    wait(lambda: page.find("#model").text == "tiny-model", "the page sees that the server is there again")


def test_the_key_is_asked_for_and_forgotten_with_the_tab(page):
    page.expected = ["401"]
    page.server.key = "secret"
    page.server.script.append(complete("Hi"))
    page.type("Hello", Keys.ENTER)
    wait(lambda: page.find("#key").is_displayed(), "the page asks for a key")
    page.press("wrong")
    page.press(Keys.ENTER)
    wait(lambda: page.find("#key [name=key]").get_attribute("value") == "", "the page asks again")
    wait(lambda: page.find("#key").is_displayed(), "the page asks again")
    page.press("secret")
    page.press(Keys.ENTER)
    page.wait_for_texts("Hello", "Hi")
    stored = page.run("return [sessionStorage.getItem('airllm.key'), localStorage.getItem('airllm.key')]")
    assert stored == ["secret", None]
    page.reload()
    assert page.find("#model").text == "tiny-model" and not page.find("#key").is_displayed()


def test_a_key_that_is_kept(page):
    page.expected = ["401"]
    page.server.key = "secret"
    page.driver.refresh()
    wait(lambda: page.find("#key").is_displayed(), "the page asks for a key")
    page.press("secret")
    page.click("#key [name=remember]")
    page.click("#key [type=submit]")
    wait(lambda: page.find("#model").text == "tiny-model", "the key is right")
    assert page.run("return localStorage.getItem('airllm.key')") == "secret"


def test_a_browser_without_room(page):
    page.run("Storage.prototype.setItem = () => { throw new DOMException('full', 'QuotaExceededError'); }")
    page.send("Hello", complete("Hi"))
    page.wait_for_texts("Hello", "Hi")
    page.wait_for_notice("The browser has no room left: this conversation is not kept.")


def test_records_that_cannot_be_read_do_no_harm(page):
    page.ask("Apples", complete("Red"))
    page.run("localStorage['airllm.conversation.m00ff'] = '{broken'; localStorage['airllm.settings'] = '[1'")
    page.reload()
    page.wait_for_texts("Apples", "Red")
    assert page.titles == ["Apples"]
    assert page.run("return localStorage.getItem('airllm.conversation.m00ff')") == "{broken"


def test_a_browser_that_stores_nothing(page):
    throws = "{ get() { throw new DOMException('no', 'SecurityError') } }"
    refuse = f"Object.defineProperty(window, '%s', {throws});"
    source = {"source": refuse % "localStorage" + refuse % "sessionStorage"}
    script = page.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", source)
    try:
        page.reload()
        page.wait_for_notice("The browser is set to store nothing: conversations end with this page.")
        page.ask("Hello", complete("Hi"))
        assert page.texts == ["Hello", "Hi"] and page.titles == ["Hello"]
    finally:
        page.driver.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", script)
    page.reload()


def test_an_answer_of_a_deleted_conversation_is_not_kept(page):
    answer = page.server.next()
    page.send("Hello")
    answer.write("Hi")
    page.wait_for_texts("Hello", "Hi")
    page.click("#conversations .open")
    page.find("[aria-label='Delete Hello']").send_keys(Keys.ENTER)
    page.click("#confirm .danger")
    assert answer.gone.wait(5), "the server still writes"
    wait(lambda: page.titles == [] and page.texts == [], "it is deleted")
    page.reload()
    assert page.titles == []
