// Elements made without HTML text: what a model writes can become text nodes, and nothing else.

const SVG = "http://www.w3.org/2000/svg";

export const find = (id) => document.getElementById(id);

/** A new element. `attributes` has strings and booleans; `on` has its listeners by event. */
export function create(tag, { on = {}, ...attributes } = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) setAttribute(element, name, value);
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  element.append(...children);
  return element;
}

function setAttribute(element, name, value) {
  if (typeof value === "boolean") element.toggleAttribute(name, value);
  else if (value !== undefined) element.setAttribute(name, value);
}

/** One of the symbols of index.html. */
export function createIcon(name) {
  const icon = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  icon.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  icon.append(use);
  return icon;
}

/** A button that shows an icon and says `label` to all who do not see it. */
export function createIconButton(icon, label, listener) {
  const attributes = { type: "button", class: "plain", "aria-label": label, title: label };
  return create("button", { ...attributes, on: { click: listener } }, createIcon(icon));
}

/** A button that copies what `text()` returns, and shows that it did. */
export function createCopyButton(label, text) {
  const button = createIconButton("copy", label, async () => {
    const copied = await copyText(text());
    button.replaceChildren(createIcon(copied ? "check" : "close"));
    announce(copied ? "Copied" : "The browser refused to copy");
    setTimeout(() => button.replaceChildren(createIcon("copy")), 1500);
  });
  return button;
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return copySelection(text); // there is no clipboard object on plain http, other than on localhost
  }
}

function copySelection(text) {
  const field = create("textarea", { class: "unseen" });
  const focused = document.activeElement;
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus();
  return copied;
}

/** Tells a screen reader. */
export function announce(text) {
  find("status").textContent = text;
}

/** Makes a text field as high as its text; the stylesheet limits it. */
export function fitHeight(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + field.offsetHeight - field.clientHeight}px`;
}
