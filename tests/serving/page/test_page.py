"""The chat page in a real browser: messages, answers, branches, settings, keys."""

import json
import time

from chat_page import wait
from fake_chat_server import PAGE, Answer, Refusal, complete
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

# ------------------------------------------------------------------------------------------ an answer


def test_an_answer_streams_is_measured_and_kept(page):
    answer = page.server.next()
    page.send("Why is the sky blue?")
    answer.asked.wait(5)
    assert answer.body == {
        "model": "tiny-model",
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    answer.write("It **scat")
    page.wait_for_texts("Why is the sky blue?", "It **scat")
    assert page.find("#stop").is_displayed() and page.find("#messages").get_attribute("aria-busy") == "true"
    answer.write("ters** light")
    page.wait_for_texts("Why is the sky blue?", "It scatters light")
    answer.finish(tokens=42, rate=31.25)
    page.wait_for_end()
    assert page.messages[1]["footer"] == "42 tokens · 31 tokens/s"
    assert page.find("#status").get_attribute("textContent") == "The answer is complete, 42 tokens"
    assert page.find("#messages").get_attribute("aria-busy") == "false" and page.focused == "prompt"
    page.reload()
    page.wait_for_texts("Why is the sky blue?", "It scatters light")
    assert page.messages[1]["footer"] == "42 tokens · 31 tokens/s"


def test_frames_are_read_however_they_are_cut(page):
    answer = page.server.next()
    page.send("Hello")
    chunk = json.dumps({"choices": [{"delta": {"content": "Grüße 🌍"}}]}, ensure_ascii=False)
    for byte in f"data: {chunk}\r\n\r\n".encode():
        answer.raw(bytes([byte]))
    answer.raw(b": a remark\n\nevent: message\n")
    answer.raw(b'data: {"choices":\ndata: [{"delta": {"content": "!"}}]}\n\n')
    answer.finish()
    page.wait_for_texts("Hello", "Grüße 🌍!")


def test_the_next_question_has_what_was_said(page):
    page.ask("One", complete("First", reasoning_content="Hm."))
    page.ask("Two", complete("<think>Well.</think>\n\nSecond"))
    page.ask("Three", complete("Third"))
    said = [(each["role"], each["content"]) for each in page.server.bodies[-1]["messages"]]
    assert said == [
        ("user", "One"),
        ("assistant", "First"),
        ("user", "Two"),
        ("assistant", "Second"),
        ("user", "Three"),
    ]


def test_stop(page):
    for stop in (lambda: page.press(Keys.ESCAPE), lambda: page.click("#stop")):
        answer = page.server.next()
        page.send("Count")
        answer.write("One, two")
        wait(lambda: page.texts[-2:] == ["Count", "One, two"], "the first words")
        stop()
        page.wait_for_end()
        assert answer.gone.wait(5), "the server still writes"
        assert "You stopped it" in page.messages[-1]["footer"] and page.focused == "prompt"
    page.ask("Go on", complete("three"))
    assert page.server.bodies[-1]["messages"][1] == {"role": "assistant", "content": "One, two"}


def test_stop_before_the_first_word(page):
    answer = page.server.next()
    page.send("Hello")
    answer.asked.wait(5)
    wait(lambda: page.messages[1]["footer"] == "no token yet, 1 s", "the page counts the seconds")
    page.press(Keys.ESCAPE)
    page.wait_for_texts("Hello")
    page.wait_for_notice("Your message has no answer")
    page.server.script.append(complete("Hello!"))
    page.click("#notice .buttons button")
    page.wait_for_texts("Hello", "Hello!")
    assert page.notice == ""


def test_a_reload_keeps_what_came(page):
    answer = page.server.next()
    page.send("Tell")
    answer.write("Once upon a ti")
    page.wait_for_texts("Tell", "Once upon a ti")
    answer.write("me")
    page.wait_for_texts("Tell", "Once upon a time")
    page.type("and a dra", Keys.SHIFT + Keys.ENTER + Keys.NULL, "ft")
    page.reload()
    assert answer.gone.wait(5), "the server still writes"
    page.wait_for_texts("Tell", "Once upon a time")
    assert "Interrupted" in page.messages[1]["footer"]
    assert page.find("#prompt").get_attribute("value") == "and a dra\nft"


def test_a_page_that_is_left_frees_its_place(page):
    """Browsers keep such a page for the way back, and its connections."""
    answer = page.server.next()
    page.send("Tell")
    answer.write("Once upon a time")
    page.wait_for_texts("Tell", "Once upon a time")
    page.driver.get("about:blank")
    assert answer.gone.wait(2), "the server still writes"
    page.driver.back()
    page.wait_for_texts("Tell", "Once upon a time")
    assert "Interrupted" in page.messages[1]["footer"] and page.find("#send").is_displayed()


def test_reasoning_is_folded(page):
    answer = page.server.next()
    page.send("Think")
    answer.write(reasoning_content="First I")
    summary = wait(lambda: page.find(".thought summary"), "the reasoning")
    wait(lambda: summary.text == "Thinking…", "it says that it thinks")
    answer.write(reasoning_content=" weigh *it*.")
    answer.write("Done.")
    wait(lambda: summary.text.startswith("Thought for "), "it says how long it thought")
    answer.finish()
    page.wait_for_end()
    assert page.texts == ["Think", "Done."] and "weigh" not in page.find("#messages").text
    page.run("arguments[0].focus()", summary)
    page.press(Keys.ENTER)
    assert "First I weigh it." in page.find(".thought").text


def test_tags_of_reasoning(page):
    expected = {
        "<think>a</think>b": ("a", "b"),
        "\n<think>\na\n</think>\n\nb": ("a", "b"),
        "a\n</think>\n\nb": ("a", "b"),  # the template wrote the opening tag
        "<think>a</thi": ("a", ""),
        "<thi": ("", ""),
        "The tag `</think>` ends it.": ("", "The tag `</think>` ends it."),
        "x <think>y</think>": ("", "x <think>y</think>"),
    }
    split = "const { splitReasoning: split } = await import('/js/reasoning.js');"
    script = f"{split} return args[0].map((content) => split({{ content }}))"
    found = page.run_module(script, list(expected))
    assert [(each["reasoning"], each["answer"].strip()) for each in found] == list(expected.values())


# ------------------------------------------------------------------------------------------ branches


def test_another_answer_is_a_branch(page):
    page.ask("Say", complete("one"))
    page.server.script.append(complete("two"))
    page.click_in_message(1, "Answer again")
    page.wait_for_texts("Say", "two")
    page.wait_for_end()
    assert [each["content"] for each in page.server.bodies[-1]["messages"]] == ["Say"]
    assert page.messages[1]["footer"].startswith("2/2")
    page.click_in_message(1, "Branch before")
    assert page.texts == ["Say", "one"] and page.messages[1]["footer"].startswith("1/2")
    page.reload()
    page.wait_for_texts("Say", "one")


def test_an_edited_message_begins_a_branch(page):
    page.ask("One", complete("first"))
    page.ask("Two", complete("second"))
    page.press(Keys.ARROW_UP)  # in the empty field: the last message
    assert page.focused == "Edit the message"
    page.server.script.append(complete("third"))
    page.press(Keys.CONTROL, "a")
    page.press("Three")
    page.press(Keys.ENTER)
    page.wait_for_texts("One", "first", "Three", "third")
    page.wait_for_end()
    assert [each["content"] for each in page.server.bodies[-1]["messages"]] == ["One", "first", "Three"]
    page.click_in_message(2, "Branch before")
    page.wait_for_texts("One", "first", "Two", "second")
    page.click_in_message(2, "Next branch")
    page.wait_for_texts("One", "first", "Three", "third")


def test_an_edit_can_be_given_up(page):
    page.ask("One", complete("first"))
    page.click_in_message(0, "Edit")
    page.press(" more")
    page.press(Keys.ESCAPE)
    assert page.texts == ["One", "first"] and len(page.server.bodies) == 1 and page.focused == "Edit"


# ------------------------------------------------------------------------------------------ settings


def test_settings_are_sent_and_the_next_conversation_has_them(page):
    page.press(Keys.CONTROL, ",")
    given = {"system": "Be brief.", "temperature": "0.5", "top_k": "40", "max_tokens": "99", "seed": "7"}
    given["top_p"] = "5"  # out of range
    for name, value in given.items():
        page.find(f"#settings [name={name}]").send_keys(value)
    page.press(Keys.ESCAPE)
    page.click("#new")
    page.ask("Hello", complete("Hi"))
    body = page.server.bodies[-1]
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    sampling = {"temperature": 0.5, "top_k": 40, "max_completion_tokens": 99, "seed": 7}
    assert body == body | sampling
    assert not {"top_p", "min_p", "max_tokens"} & set(body), "a value out of range or an empty one is sent"
    page.reload()
    page.click("#open-settings")
    assert page.find("[name=temperature]").get_attribute("value") == "0.5"
    page.click("#settings [type=reset]")
    page.click("#settings [type=submit]")
    page.ask("Again", complete("Hi"))
    assert set(page.server.bodies[-1]) == {"model", "messages", "stream", "stream_options"}


# The least contrast of a text with what is behind it, by WCAG 2's formula, and that text.
CONTRAST = """
const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
const paint = (...colors) => {
  canvas.clearRect(0, 0, 1, 1);
  for (const color of colors) { canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1); }
  return [...canvas.getImageData(0, 0, 1, 1).data];
};
const light = (color) => color.slice(0, 3).map((part) => part / 255)
  .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4))
  .reduce((sum, part, i) => sum + part * [0.2126, 0.7152, 0.0722][i], 0);
const ownColor = (each) => getComputedStyle(each).backgroundColor;
const behind = (each) => (each ? [...behind(each.parentElement), ownColor(each)] : []);
const hasText = (each) => [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
const texts = [...document.querySelectorAll('body *')]
  .filter((each) => each.checkVisibility() && !each.disabled && hasText(each));
return texts.map((each) => {
  const ground = behind(each);
  const [a, b] = [light(paint(...ground)), light(paint(...ground, getComputedStyle(each).color))];
  return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), each.textContent.trim()];
}).sort(([a], [b]) => a - b)[0];
"""


def test_all_text_can_be_read(page):
    page.expected = ["429"]
    page.ask(
        "# Hello", complete("# A\n\n`code` [a](https://a.example)\n\n> b\n\n```\nc\n```\n\n|d|\n|-|\n|e|")
    )
    page.send("More", Refusal(429, "Busy.", None, {"Retry-After": "99"}))
    page.wait_for_notice("Busy.")
    for scheme in ("light", "dark"):
        page.prefer(scheme)
        contrast, text = page.run(CONTRAST)
        assert 4.5 <= contrast <= 21, (scheme, contrast, text)


def test_light_and_dark(page):
    ground = "return getComputedStyle(document.body).backgroundColor"
    grounds = {}
    for scheme in ("dark", "light"):
        page.prefer(scheme)
        grounds[scheme] = page.run(ground)
    assert grounds["light"] != grounds["dark"]
    for chosen in ("light", "dark"):
        page.click("#theme")
        assert page.run(ground) == grounds[chosen] and page.find("#theme").text == f"Theme: {chosen}"
    page.reload()
    assert page.run(ground) == grounds["dark"], "the choice is not kept"


# ------------------------------------------------------------------------------------------ keys, widths


def test_keys_of_the_field(page):
    page.send(" ")  # nothing to say
    page.find("#prompt").clear()
    composing = "new KeyboardEvent('keydown', {key: 'Enter', isComposing: true, cancelable: true})"
    page.type("one", Keys.SHIFT + Keys.ENTER + Keys.NULL, "two")
    assert page.run(f"return document.getElementById('prompt').dispatchEvent({composing})"), "Enter is taken"
    assert page.texts == [] and page.server.bodies == []
    page.ask("", complete("three"))
    assert page.texts == ["one\ntwo", "three"] and page.find("#prompt").get_attribute("value") == ""


def test_all_is_reached_by_the_tab_key_in_the_order_of_reading(page):
    page.ask("One", complete("two\n\n```\ncode\n```"))
    page.run("document.activeElement.blur()")
    order: list[str] = []
    while "prompt" not in order and len(order) < 40:
        page.press(Keys.TAB)
        order.append(page.focused or page.run("return document.activeElement.className"))
    expected = ["skip", "new", "open", "Rename One", "Delete One", "export", "import", "theme"]
    expected += ["open-settings", "Copy", "Edit", "Copy the code", "Copy", "Answer again", "prompt"]
    assert [each for each in order if each in expected] == expected, order
    assert page.nameless() == []


def test_phone_width(page):
    page.open(width=390)
    wide = "x" * 300
    page.ask(wide, complete(f"{wide}\n\n```\n{wide}\n```\n\n|{wide}|b|\n|-|-|\n|1|2|"))
    assert page.run("return document.documentElement.scrollWidth") == 390
    assert page.run("const e = document.getElementById('scroll'); return e.scrollWidth == e.clientWidth")
    assert not page.find("#sidebar").is_displayed()
    page.click("#open-sidebar")
    assert page.find("#new").is_displayed() and page.focused == "close-sidebar"
    assert page.run("return document.querySelector('main').inert"), "what is behind the list can be reached"
    page.press(Keys.ESCAPE)
    assert not page.find("#sidebar").is_displayed() and page.focused == "open-sidebar"
    page.click("#open-sidebar")
    page.find("#conversations .open").click()
    assert not page.find("#sidebar").is_displayed() and page.focused == "prompt"


def test_the_end_stays_in_sight_unless_the_reader_went_up(page):
    answer = page.server.next()
    page.send("Much")
    left = "const e = document.getElementById('scroll'); return e.scrollHeight - e.clientHeight - e.scrollTop"
    answer.write("line\n\n" * 60 + "middle")
    wait(lambda: "middle" in page.texts[-1], "the first half")
    wait(lambda: page.run(left) < 2, "the end is in sight")
    page.run("document.getElementById('scroll').scrollTop = 0")
    wait(lambda: page.find("#to-end").is_displayed(), "the button to the end")
    answer.write("\n\nend")
    answer.finish()
    page.wait_for_end()
    assert page.run(left) > 100
    page.click("#to-end")
    assert page.run(left) < 2 and not page.find("#to-end").is_displayed()


def test_a_page_at_rest_does_nothing(page):
    """However it was resized and scrolled before."""
    page.ask("Much", complete("line\n\n" * 60))
    for width in (390, 1280):
        page.resize(width, 600)
        page.run("document.getElementById('scroll').scrollTop = 99999")
    time.sleep(0.5)
    before = page.script_seconds()
    time.sleep(0.3)
    assert page.script_seconds() == before


def test_all_modules_are_asked_for_at_once(page):
    """Named in index.html. One that is missing there costs a round trip, one too many a load for nothing."""
    loaded = "performance.getEntriesByType('resource').map((each) => each.name)"
    preloaded = "[...document.querySelectorAll('[rel=modulepreload]')].map((each) => each.href)"
    modules, named = (
        {address.removeprefix(page.address) for address in page.run(f"return {each}")}
        for each in (loaded, preloaded)
    )
    modules = {path for path in modules if path.endswith(".js")}
    assert modules - {"js/main.js", "js/theme.js"} == named
    assert {f"js/{path.name}" for path in (PAGE / "js").glob("*.js")} <= modules


def test_a_suggestion_fills_the_field(page):
    button = page.find("#suggestions").find_element(By.TAG_NAME, "button")
    text = button.text
    button.click()
    assert page.find("#prompt").get_attribute("value") == text and page.focused == "prompt"
    assert not page.server.bodies


def test_an_answer_can_be_long(page):
    """A painted answer must not take the time of its length squared."""
    answer = Answer()
    for number in range(1500):
        answer.write(f"Line {number} of *this*.\n\n")
    answer.finish(tokens=1500)
    page.ask("Much", answer)
    assert page.texts[-1].startswith("Line 0 of this.") and page.texts[-1].endswith("Line 1499 of this.")
