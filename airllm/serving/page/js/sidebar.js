// The list of conversations: open, rename, delete, export, import. On a narrow screen it is a drawer.

import { titleOf } from "./conversation.js";
import { create, createIconButton, find, announce } from "./dom.js";
import { confirmDeletion } from "./dialogs.js";
import { readFile, writeFile } from "./records.js";

const NARROW = matchMedia("(max-width: 48rem)");
const MOST = 64 * 1024 * 1024; // bytes of a file that is imported

export class Sidebar {
  #chat;

  constructor(chat) {
    this.#chat = chat;
    find("new").addEventListener("click", () => this.#open(() => chat.openNew()));
    find("export").addEventListener("click", () => exportConversations([...chat.conversations.values()]));
    find("import").addEventListener("click", () => find("file").click());
    find("file").addEventListener("change", () => this.#import());
    find("open-sidebar").addEventListener("click", () => this.toggle(true));
    find("close-sidebar").addEventListener("click", () => this.toggle(false));
    find("curtain").addEventListener("click", () => this.toggle(false));
    NARROW.addEventListener("change", () => this.toggle(false));
    chat.addEventListener("change", () => this.update());
    this.toggle(false);
  }

  get isOpen() {
    return document.body.classList.contains("with-sidebar");
  }

  /** Opens or closes the drawer; what is behind it cannot be reached then. */
  toggle(open) {
    const moves = this.isOpen && !open && find("sidebar").contains(document.activeElement);
    document.body.classList.toggle("with-sidebar", open);
    find("sidebar").inert = NARROW.matches && !open;
    document.querySelector("main").inert = NARROW.matches && open;
    find("curtain").hidden = !open;
    find("open-sidebar").setAttribute("aria-expanded", String(open));
    if (open) find("close-sidebar").focus();
    else if (moves) find("open-sidebar").focus();
  }

  update() {
    const list = find("conversations");
    const focused = list.contains(document.activeElement) && document.activeElement.closest("li")?.dataset.id;
    if (list.querySelector("input")) return; // a name is being written
    const sorted = [...this.#chat.conversations.values()].sort((a, b) => b.updated - a.updated);
    list.replaceChildren(...sorted.map((each) => this.#buildItem(each)));
    if (focused) list.querySelector(`[data-id="${CSS.escape(focused)}"] .open`)?.focus();
  }

  #buildItem(conversation) {
    const title = titleOf(conversation);
    const current = conversation === this.#chat.current;
    const open = create("button", {
      type: "button", class: "open", title, dir: "auto", "aria-current": current ? "true" : undefined,
      on: { click: () => this.#open(() => this.#chat.open(conversation)), dblclick: () => this.#rename(conversation) },
    }, title);
    const classes = `${current ? "current" : ""} ${this.#chat.isRunning(conversation) ? "running" : ""}`.trim();
    return create("li", { "data-id": conversation.id, class: classes }, open,
      createIconButton("edit", `Rename ${title}`, () => this.#rename(conversation)),
      createIconButton("export", `Export ${title}`, () => exportConversations([conversation])),
      createIconButton("bin", `Delete ${title}`, () => this.#delete(conversation)));
  }

  #open(act) {
    act();
    this.toggle(false);
    find("prompt").focus();
  }

  #rename(conversation) {
    const item = find("conversations").querySelector(`[data-id="${CSS.escape(conversation.id)}"]`);
    const field = create("input", { type: "text", "aria-label": "Name", maxlength: "200", dir: "auto" });
    let kept = false;
    const finish = (keep) => {
      if (kept) return;
      kept = true;
      field.remove();
      if (keep) this.#chat.rename(conversation, field.value);
      else this.update();
      find("conversations").querySelector(`[data-id="${CSS.escape(conversation.id)}"] .open`)?.focus();
    };
    field.value = titleOf(conversation);
    field.addEventListener("blur", () => finish(true));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") finish(true);
      if (event.key === "Escape") finish(false);
      event.stopPropagation();
    });
    item.replaceChildren(field);
    field.select();
  }

  async #delete(conversation) {
    if (!(await confirmDeletion(titleOf(conversation)))) return;
    this.#chat.delete(conversation);
    announce("Deleted");
    (find("conversations").querySelector(".open") ?? find("new")).focus();
  }

  async #import() {
    const [file] = find("file").files;
    find("file").value = "";
    if (!file) return;
    try {
      if (file.size > MOST) throw new Error(`it has ${file.size} bytes, ${MOST} are the most`);
      const conversations = readFile(await file.text());
      this.#chat.add(conversations);
      announce(`${conversations.length} conversations came in`);
    } catch (error) {
      this.#chat.report(`${file.name} was not imported: ${error.message}.`);
    }
  }
}

function exportConversations(conversations) {
  const blob = new Blob([writeFile(conversations)], { type: "application/json" });
  const address = URL.createObjectURL(blob);
  const day = new Date().toISOString().slice(0, 10);
  create("a", { href: address, download: `airllm-conversations-${day}.json` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
