// The messages of the conversation that is open, and where they are scrolled to.

import { titleOf } from "./conversation.js";
import { announce, create, find } from "./dom.js";
import { MessageView } from "./message.js";
import { showProblem } from "./notice.js";

const NEAR = 60; // pixels from the end that still count as the end
const SUGGESTIONS = [
  "Explain what a compiler does, in three sentences.",
  "Write a Python function that finds the prime numbers below n.",
  "Give me five names for a small sailing boat.",
  "What is the difference between weather and climate?",
];

export class MessagesView {
  #chat;
  #views = new Map(); // message's id -> its view
  #follow = true; // the end stays in sight
  #due = 0; // when what came is shown next
  #painting = false;

  constructor(chat, onSuggestion) {
    this.#chat = chat;
    this.list = find("messages");
    this.scroller = find("scroll");
    this.scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    new ResizeObserver(() => this.#follow && this.scrollToEnd()).observe(this.scroller);
    find("to-end").addEventListener("click", () => this.scrollToEnd());
    find("suggestions").append(...SUGGESTIONS.map((text) => buildSuggestion(text, onSuggestion)));
    chat.addEventListener("change", () => this.update());
    chat.addEventListener("grow", ({ detail }) => this.#grow(detail));
    chat.addEventListener("end", ({ detail }) => this.#onEnd(detail));
  }

  update() {
    const { messages, current, run, problem } = this.#chat;
    if (this.shownId !== current.id) this.#clear(current.id);
    this.#dropOthers(messages);
    for (const message of messages) this.#show(message);
    find("welcome").hidden = messages.length > 0;
    find("title").textContent = titleOf(current);
    document.title = messages.length ? `${titleOf(current)} · airllm` : "airllm";
    this.list.setAttribute("aria-busy", String(Boolean(run)));
    showProblem(this.#chat, problem);
    if (this.#follow) this.scrollToEnd();
  }

  scrollToEnd() {
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.#onScroll();
  }

  /** Opens the editor of the last message that the user sent. */
  editLast() {
    const message = this.#chat.messages.findLast((each) => each.role === "user");
    if (message) this.#views.get(message.id).edit();
  }

  #clear(id) {
    this.shownId = id;
    this.#views.clear();
    this.list.replaceChildren();
    this.#follow = true;
  }

  #dropOthers(messages) {
    for (const [id, view] of this.#views) {
      if (messages.includes(view.message)) continue;
      view.element.remove();
      this.#views.delete(id);
    }
  }

  #show(message) {
    if (!this.#views.has(message.id)) {
      const view = new MessageView(this.#chat, message);
      this.#views.set(message.id, view);
      this.list.append(view.element);
      if (message.role === "user") this.#follow = true;
    }
    this.#views.get(message.id).update();
  }

  /** Paints at most once a frame, and so seldom that painting takes a quarter of the time at most. */
  #grow(answer) {
    if (this.#painting) return;
    this.#painting = true;
    setTimeout(() => requestAnimationFrame(() => this.#paint(answer)), Math.max(0, this.#due - performance.now()));
  }

  #paint(answer) {
    this.#painting = false;
    const view = this.#views.get(answer.id);
    if (!view?.isRunning) return;
    const begun = performance.now();
    view.grow();
    if (this.#follow) this.scrollToEnd();
    this.#due = performance.now() + 3 * (performance.now() - begun);
  }

  #onScroll() {
    const { scrollTop, scrollHeight, clientHeight } = this.scroller;
    this.#follow = scrollHeight - clientHeight - scrollTop < NEAR;
    find("to-end").hidden = this.#follow;
  }

  #onEnd({ answer, conversation }) {
    if (conversation !== this.#chat.current) return;
    const tokens = answer.statistics?.tokens;
    const said = { stopped: "Stopped", broken: "The answer broke off" }[answer.state] ?? "The answer is complete";
    announce(tokens === undefined ? said : `${said}, ${tokens} tokens`);
  }
}

function buildSuggestion(text, listener) {
  return create("li", {}, create("button", { type: "button", on: { click: () => listener(text) } }, text));
}
