"""Shared parts of airllm's HTML pages: the frame, the style (light and dark), and tables."""

from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1c2330; --soft: #5d6675; --line: #e3e6eb; --ground: #ffffff;
  --card: #f6f7f9; --good: #12805c; --bad: #c62f3b; --warn: #9a6700; --warn-ground: #fff6dc;
  --bad-ground: #fdecee; --edge: #0000003d; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ec; --soft: #98a1b0; --line: #2b313c;
  --ground: #12151b;
  --card: #1a1f28; --good: #4cc79a; --bad: #ff7b84; --warn: #e5b454; --warn-ground: #2c2412;
  --bad-ground: #331a1e; --edge: #ffffff4d; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); line-height: 1.5;
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 40px 24px 72px; }
h1 { font-size: 27px; line-height: 1.2; margin: 0 0 4px; letter-spacing: -.015em; }
h2 { font-size: 19px; margin: 52px 0 4px; letter-spacing: -.01em; }
h3 { font-size: 16px; margin: 36px 0 0;
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
p { margin: 4px 0 14px; max-width: 88ch; } .soft, figcaption, small { color: var(--soft); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(225px, 1fr)); gap: 12px;
  margin: 26px 0 0; }
.card { background: var(--card); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 23px; line-height: 1.3; letter-spacing: -.01em; font-weight: 650; }
.card small { display: block; line-height: 1.35; }
.note { background: var(--warn-ground); color: var(--warn); border-radius: 10px; padding: 12px 16px;
  margin: 22px 0 0; }
.note, .told, footer { overflow-wrap: anywhere; }
.note.bad { color: var(--bad); background: var(--bad-ground); }
.note ul { margin: 6px 0 0; padding-left: 20px; }
/* a shadow at the edge behind which a table goes on */
.wide { overflow-x: auto; background: linear-gradient(to right, var(--ground) 30%, transparent) left,
  linear-gradient(to left, var(--ground) 30%, transparent) right, linear-gradient(to right, var(--edge),
  transparent) left, linear-gradient(to left, var(--edge), transparent) right; background-repeat: no-repeat;
  background-size: 36px 100%, 36px 100%, 12px 100%, 12px 100%;
  background-attachment: local, local, scroll, scroll; }
table { border-collapse: collapse; width: 100%; margin: 10px 0 4px; }
th, td { text-align: left; padding: 7px 12px 7px 0; border-bottom: 1px solid var(--line);
  vertical-align: top; }
th { font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
td.n, th.n { text-align: right; padding-right: 0; padding-left: 14px; font-variant-numeric: tabular-nums;
  white-space: nowrap; }
td small { display: block; font-size: 12px; line-height: 1.3; }
td small.inline { display: inline; padding-left: 6px; }
td.first { white-space: nowrap; width: 120px; } td.state { white-space: nowrap; width: 120px; }
tr:last-child td { border-bottom: 0; } tr.group td { border-bottom-width: 2px; } .best { font-weight: 650; }
.good { color: var(--good); } .bad { color: var(--bad); } .warn { color: var(--warn); }
figure { margin: 10px 0 0; display: grid; gap: 8px 20px;
  grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); }
figure svg { width: 100%; max-width: 480px; height: auto; display: block; }
svg text { font-family: inherit !important; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 20px; font-size: 13px; margin-top: 8px; }
.legend i { display: inline-block; width: 18px; height: 0; border-top: 3px solid; border-radius: 2px;
  margin-right: 7px; vertical-align: middle; }
.legend i.dash { border-top: 2px dashed; width: 26px; border-radius: 0; }
details { margin: 10px 0; }
summary { cursor: pointer; color: var(--soft); font-size: 13px; }
pre { background: var(--card); border-radius: 10px; padding: 14px 16px; overflow-x: auto;
  font-size: 12.5px; line-height: 1.45; }
/* words below their heading instead of in a column that is a word wide */
@media (max-width: 640px) { main { padding: 28px 16px 56px; }
  .cards { grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); } .card { padding: 10px 12px; }
  .card b { font-size: 18px; }
  table.words, table.words tbody, table.words tr, table.words td { display: block; width: auto; }
  table.words thead { display: none; } table.words td { border-bottom: 0; padding: 0; }
  table.words td:empty { display: none; } table.words td[data-title]::before { content: attr(data-title) " ";
  color: var(--soft); font-size: 13px; }
  table.words tr { border-bottom: 1px solid var(--line); padding: 9px 0; }
  table.words td.first { font-weight: 600; } }
footer { margin-top: 56px; color: var(--soft); font-size: 13px; }
"""


def frame_page(title: str, body: str, footer: str) -> str:
    """A page with this `body` and `footer`, both HTML."""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title><style>{STYLE}</style></head>
<body><main>
{body}
<footer>{footer}</footer>
</main></body></html>
"""


def table(titles: list[str], rows: list[list[str]], kinds: tuple[str, ...] = ("first", "")) -> str:
    """A table of HTML cells. `kinds` are the columns' CSS classes; the last one also applies to the remaining
    columns. If the last columns are "told", a narrow page stacks the cells of a row.
    """
    kinds += kinds[-1:] * (len(titles) - len(kinds))

    def label_of(tag: str, kind: str, title: str) -> str:
        """The label before a stacked cell, if there are several."""
        several = kind == "told" and kinds.count(kind) > 1
        return f' data-title="{escape(title)}"' if tag == "td" and several else ""

    def cells(tag: str, row: list[str]) -> str:
        return "".join(
            f'<{tag} class="{kind}"{label_of(tag, kind, title)}>{cell}</{tag}>'
            for kind, title, cell in zip(kinds, titles, row, strict=False)
        )

    head = f"<thead><tr>{cells('th', titles)}</tr></thead>" if any(titles) else ""
    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    words = ' class="words"' if kinds[-1] == "told" else ""
    return f'<div class="wide"><table{words}>{head}<tbody>{body}</tbody></table></div>'
