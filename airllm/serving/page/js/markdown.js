// Markdown as DOM nodes. `marked` only parses: its tokens become elements here, text becomes text nodes, and HTML in
// the Markdown is shown as text. There is no place where a string is read as HTML, so there is nothing to sanitize.

import { Lexer } from "../vendor/marked.esm.js";
import { create, createCopyButton } from "./dom.js";

const UNSEEN = new Set(["space", "def"]);
const LINKED = new Set(["http:", "https:", "mailto:"]);
const DEEPEST = 24; // levels of quotes and lists; deeper ones are shown as their text
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-zA-Z]\w{1,8}));/g;
const ENTITIES = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", copy: "©", reg: "®", trade: "™", deg: "°",
  hellip: "…", ndash: "–", mdash: "—", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", bull: "•",
  middot: "·", times: "×", divide: "÷", plusmn: "±", minus: "−", le: "≤", ge: "≥", ne: "≠", asymp: "≈",
  infin: "∞", rarr: "→", larr: "←", harr: "↔", euro: "€", pound: "£", sect: "§", para: "¶",
  laquo: "«", raquo: "»", shy: "\u00ad",
};
const shown = new WeakMap(); // container -> the tokens that its children show

/** Shows `text` in `container`. Children whose Markdown did not change stay, with what is selected in them. */
export function showMarkdown(container, text) {
  const tokens = parse(text);
  const before = shown.get(container) ?? [];
  for (const [index, token] of tokens.entries()) showBlock(container, index, token, before[index]);
  while (container.childNodes.length > tokens.length) container.lastChild.remove();
  shown.set(container, tokens);
}

/** Shows `text` anew: a link's address may stand below it. */
export function finishMarkdown(container, text) {
  shown.delete(container);
  container.replaceChildren();
  showMarkdown(container, text);
}

function parse(text) {
  try {
    return new Lexer({ gfm: true }).lex(text).filter(isSeen);
  } catch {
    return [{ type: "plain", raw: text }]; // nested deeper than the parser's stack
  }
}

const isSeen = (token) => !UNSEEN.has(token.type);

function showBlock(container, index, token, before) {
  const child = container.childNodes[index];
  if (before && before.raw === token.raw && before.type === token.type) return;
  if (before?.type === "code" && token.type === "code" && before.lang === token.lang) {
    child.querySelector("code").textContent = token.text; // its button keeps the focus
    return;
  }
  const block = buildBlock(token, 0);
  if (child) child.replaceWith(block);
  else container.append(block);
}

const BLOCKS = {
  heading: (token, depth) => create(`h${Math.min(6, token.depth + 1)}`, {}, ...buildInline(token.tokens, depth)),
  paragraph: (token, depth) => create("p", {}, ...buildInline(token.tokens, depth)),
  code: (token) => buildCode(token),
  blockquote: (token, depth) => create("blockquote", {}, ...buildBlocks(token.tokens, depth + 1)),
  list: (token, depth) => buildList(token, depth),
  table: (token, depth) => buildTable(token, depth),
  hr: () => create("hr"),
  html: (token) => create("p", { class: "html" }, token.text.trimEnd()),
  text: (token, depth) => wrapInline(token, depth),
};

function buildBlock(token, depth) {
  const build = depth < DEEPEST ? BLOCKS[token.type] : undefined;
  return build ? build(token, depth) : create("p", { class: "html" }, token.raw);
}

function buildBlocks(tokens, depth) {
  return tokens.filter(isSeen).map((token) => buildBlock(token, depth));
}

/** A tight list item's text stands in the item itself. */
function wrapInline(token, depth) {
  const fragment = document.createDocumentFragment();
  fragment.append(...buildInline(token.tokens ?? [token], depth));
  return depth === 0 ? create("p", {}, fragment) : fragment;
}

function buildCode(token) {
  const language = (token.lang ?? "").match(/^\S*/)[0];
  const code = create("code", {}, token.text);
  const copy = createCopyButton("Copy the code", () => code.textContent);
  const head = create("div", { class: "code-head" }, create("span", {}, language || "text"), copy);
  return create("div", { class: "code" }, head, create("pre", {}, code));
}

function buildList(token, depth) {
  const start = token.ordered && token.start !== 1 ? { start: String(token.start) } : {};
  const items = token.items.map((item) => buildItem(item, depth + 1));
  return create(token.ordered ? "ol" : "ul", start, ...items);
}

function buildItem(item, depth) {
  const [first, ...rest] = item.tokens;
  const isParagraph = item.loose && first?.type === "text";
  const inside = isParagraph ? [{ ...first, type: "paragraph" }, ...rest] : item.tokens;
  return create("li", item.task ? { class: "task" } : {}, ...buildBlocks(inside, depth));
}

function buildTable(token, depth) {
  const row = (cells, tag) => create("tr", {}, ...cells.map((cell) => buildCell(cell, tag, depth)));
  const head = create("thead", {}, row(token.header, "th"));
  const body = create("tbody", {}, ...token.rows.map((cells) => row(cells, "td")));
  return create("div", { class: "table" }, create("table", {}, head, body));
}

function buildCell(cell, tag, depth) {
  return create(tag, cell.align ? { class: cell.align } : {}, ...buildInline(cell.tokens, depth));
}

const INLINE = {
  text: (token) => (token.tokens ? buildGroup(token.tokens) : token.escaped ? token.text : decodeEntities(token.text)),
  escape: (token) => token.text,
  strong: (token, depth) => create("strong", {}, ...buildInline(token.tokens, depth)),
  em: (token, depth) => create("em", {}, ...buildInline(token.tokens, depth)),
  del: (token, depth) => create("del", {}, ...buildInline(token.tokens, depth)),
  codespan: (token) => create("code", {}, token.text),
  br: () => create("br"),
  checkbox: (token) => create("span", { class: "box" }, token.checked ? "☑ " : "☐ "),
  link: (token, depth) => buildLink(token, buildInline(token.tokens, depth)),
  image: (token) => buildLink(token, [`Image: ${token.text || token.href}`]), // loading it would tell its server
  html: (token) => (/^<br\s*\/?>$/i.test(token.text) ? create("br") : token.text),
};

BLOCKS.checkbox = INLINE.checkbox;

function buildInline(tokens, depth) {
  return tokens.map((token) => {
    const build = depth < DEEPEST ? INLINE[token.type] : undefined;
    return build ? build(token, depth + 1) : token.raw;
  });
}

function buildGroup(tokens) {
  const fragment = document.createDocumentFragment();
  fragment.append(...buildInline(tokens, 1));
  return fragment;
}

function buildLink(token, children) {
  const href = safeAddress(decodeEntities(token.href));
  if (!href) return create("span", { title: "This link was taken out" }, ...children);
  return create("a", { href, title: token.title ?? href, target: "_blank", rel: "noopener noreferrer" }, ...children);
}

/** The address if a click on it cannot run code here, and is absolute. */
function safeAddress(address) {
  const url = URL.parse ? URL.parse(address) : parseAddress(address);
  return url && LINKED.has(url.protocol) ? url.href : "";
}

function parseAddress(address) {
  try {
    return new URL(address);
  } catch {
    return null;
  }
}

function decodeEntities(text) {
  return text.replace(ENTITY, (whole, decimal, hexadecimal, name) => {
    if (name) return Object.hasOwn(ENTITIES, name) ? ENTITIES[name] : whole;
    const code = decimal ? parseInt(decimal, 10) : parseInt(hexadecimal, 16);
    return code > 0 && code <= 0x10ffff ? String.fromCodePoint(code) : "\ufffd";
  });
}
