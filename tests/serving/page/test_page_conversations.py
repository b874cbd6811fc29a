"""The chat page's conversations: several at once, in several tabs, and in files."""

import json

from chat_page import wait
from fake_chat_server import complete
from selenium.webdriver.common.keys import Keys


def test_several_conversations(page):
    page.ask("Apples", complete("Red"))
    page.press(Keys.CONTROL, Keys.SHIFT, "o")
    assert page.texts == [] and page.find("#welcome").is_displayed()
    running = page.server.next()
    page.send("Pears")
    running.write("Gre")
    page.wait_for_texts("Pears", "Gre")
    assert page.titles == ["Pears", "Apples"]
    page.find_all("#conversations .open")[1].click()
    page.wait_for_texts("Apples", "Red")  # and the other answer goes on
    running.write("en")
    running.finish()
    wait(lambda: not page.find_all("#conversations .running"), "the other answer is complete")
    page.find_all("#conversations .open")[0].click()
    page.wait_for_texts("Pears", "Green")


def test_rename_and_delete_by_keyboard(page):
    page.ask("Apples", complete("Red"))
    page.find("#conversations .open").send_keys(Keys.TAB, Keys.ENTER)
    assert page.focused == "Name"
    page.press("Fruit")
    page.press(Keys.ENTER)
    assert page.titles == [page.find("#title").text] == ["Fruit"] and page.driver.title == "Fruit · airllm"
    page.press(Keys.TAB)
    page.press(Keys.ENTER)
    page.press("Nuts")
    page.press(Keys.ESCAPE)
    assert page.titles == ["Fruit"]
    page.find("[aria-label='Delete Fruit']").send_keys(Keys.ENTER)
    page.press(Keys.ESCAPE)
    assert page.titles == ["Fruit"]
    page.find("[aria-label='Delete Fruit']").send_keys(Keys.ENTER)
    page.click("#confirm .danger")
    wait(lambda: page.titles == [], "it is deleted")
    page.reload()
    assert page.titles == [] and page.texts == []


def test_export_and_import(page, downloads):
    page.ask("Apples", complete("Red", reasoning_content="Hm."))
    page.server.script.append(complete("Green"))
    page.click_in_message(1, "Answer again")
    page.wait_for_texts("Apples", "Green")
    page.wait_for_end()
    page.click("#export")
    file = wait(lambda: next(downloads.glob("airllm-conversations-*.json"), None), "the file")
    page.open()
    page.find("#file").send_keys(str(file))
    wait(lambda: page.titles == ["Apples"], "it came in")
    page.find("#conversations .open").click()
    page.wait_for_texts("Apples", "Green")
    page.click_in_message(1, "Branch before")
    page.wait_for_texts("Apples", "Red")
    page.find("#file").send_keys(str(file))
    wait(lambda: page.titles == ["Apples", "Apples"], "it came in beside the other")
    file.unlink()


def test_a_file_of_another_kind_is_refused(page, tmp_path):
    file = tmp_path / "file.json"
    file.write_text("{")
    page.find("#file").send_keys(str(file))
    page.wait_for_notice("file.json was not imported: it is no JSON")
    assert page.titles == []


HEAD = {"format": "airllm-conversations", "version": 1}
TALK = {"id": "m0123", "created": 1, "updated": 1, "messages": {}}
MESSAGE = {"role": "user", "parent": "", "content": "Hello"}


def of_message(**changes):
    return {**HEAD, "conversations": [{**TALK, "messages": {"m1234": {**MESSAGE, **changes}}}]}


def test_only_what_the_page_knows_is_read_from_a_file(page):
    """A file of anybody's: what is wrong is named, and fields that are not known do not come in."""
    refused = {
        'its "format" is not "airllm-conversations"': {},
        "its version is 2, this page reads version 1": {**HEAD, "version": 2},
        'it has no list "conversations"': HEAD,
        "conversation 1 has no id": {**HEAD, "conversations": [{**TALK, "id": '"><b>'}]},
        '"created" of conversation 1 is no number': {**HEAD, "conversations": [{**TALK, "created": "1"}]},
        'message 1 of conversation 1 has the role "tool"': of_message(role="tool"),
        "message 1 of conversation 1 answers none before it": of_message(parent="m1234"),
        "the content of message 1 of conversation 1 is no text": of_message(content={}),
    }
    script = "const m = await import('/js/records.js'); return args[0].map((text) => read(m, text));"
    read = "function read(m, text) { try { return m.readFile(text); } catch (e) { return e.message; } }"
    found = page.run_module(f"{read} {script}", [json.dumps(each) for each in refused.values()])
    assert found == list(refused)
    statistics = {"rate": 2, "tokens": "<b>"}
    odd = of_message(onclick="x", state="odd", statistics=statistics)
    ((talk,),) = page.run_module(f"{read} {script}", [json.dumps(odd)])
    kept = {**MESSAGE, "id": "m1234", "reasoning": "", "state": "done", "statistics": {"rate": 2}}
    assert talk["messages"] == {"m1234": kept} and talk["chosen"] == {"": "m1234"}


def test_two_tabs_see_each_others_conversations(page):
    first = page.driver.current_window_handle
    page.driver.switch_to.new_window("tab")
    try:
        page.driver.get(page.server.address)
        page.wait_for_model()
        page.ask("Apples", complete("Red"))
        page.driver.close()
    finally:
        page.driver.switch_to.window(first)
    wait(lambda: page.titles == ["Apples"], "the other tab's conversation")
    page.find("#conversations .open").click()
    page.wait_for_texts("Apples", "Red")
