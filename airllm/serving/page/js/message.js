// One message: what was said, the reasoning folded, what it took, and what can be done with it.

import { findBranches } from "./conversation.js";
import { create, createCopyButton, createIconButton, fitHeight } from "./dom.js";
import { finishMarkdown, showMarkdown } from "./markdown.js";
import { splitReasoning } from "./reasoning.js";

const ENDINGS = {
  length: "Stopped at the limit of tokens",
  stopped: "You stopped it",
  broken: "It broke off",
  running: "Interrupted: the page was closed, or another tab is writing it",
};

export class MessageView {
  #chat;
  #editor = null;
  #footer = create("footer");
  #timer = 0; // counts the seconds to the first token
  #text = create("div", { class: "text", dir: "auto" });

  constructor(chat, message) {
    this.#chat = chat;
    this.message = message;
    const own = message.role === "user";
    const label = own ? "Your message" : "Answer";
    this.element = create("article", { class: own ? "user" : "answer", "aria-label": label, "data-id": message.id });
    this.#buildThought();
    this.element.append(this.#text, this.#footer);
  }

  get isRunning() {
    return this.#chat.run?.answer === this.message;
  }

  /** Shows the message as it is now, and its buttons. */
  update() {
    this.element.classList.toggle("running", this.isRunning);
    if (this.message.role === "user") this.#text.textContent = this.message.content;
    else this.#showAnswer(this.isRunning ? showMarkdown : finishMarkdown);
    this.#footer.replaceChildren(...this.#buildFooter());
    clearInterval(this.#timer);
    if (this.isRunning) this.#timer = setInterval(() => this.#countSeconds(), 1000);
  }

  /** Shows what came since. */
  grow() {
    this.#showAnswer(showMarkdown);
    const rate = this.message.statistics?.rate;
    if (rate) this.#footer.replaceChildren(create("span", { class: "statistics" }, `~${formatRate(rate)} tokens/s`));
  }

  #countSeconds() {
    const waits = this.isRunning && this.element.isConnected && !this.message.statistics;
    if (!waits) return clearInterval(this.#timer);
    const seconds = Math.round((performance.now() - this.#chat.run.sent) / 1000);
    return this.#footer.replaceChildren(create("span", { class: "statistics" }, `no token yet, ${seconds} s`));
  }

  // -------------------------------------------------------------------------------------------- text

  #buildThought() {
    this.thought = create("div", { class: "text", dir: "auto" });
    this.summary = create("summary");
    this.details = create("details", { class: "thought", hidden: true }, this.summary, this.thought);
    if (this.message.role === "assistant") this.element.append(this.details);
  }

  #showAnswer(show) {
    const { reasoning, answer, isOpen } = splitReasoning(this.message);
    this.details.hidden = !reasoning;
    if (reasoning) {
      this.summary.textContent = isOpen && this.isRunning ? "Thinking…" : describeThought(this.message.statistics);
      show(this.thought, reasoning);
    }
    show(this.#text, answer);
    this.element.classList.toggle("waiting", this.isRunning && !answer);
  }

  // -------------------------------------------------------------------------------------------- buttons

  #buildFooter() {
    if (this.isRunning) return [];
    const parts = [...this.#buildBranches(), ...this.#buildActions()];
    const note = this.message.role === "assistant" && ENDINGS[this.message.state];
    if (note) parts.push(create("span", { class: "ending" }, note));
    const { statistics } = this.message;
    if (statistics) {
      const attributes = { class: "statistics", title: describeDetails(statistics) };
      parts.push(create("span", attributes, describe(statistics)));
    }
    return parts;
  }

  #buildActions() {
    const own = this.message.role === "user";
    const copy = createCopyButton("Copy", () => (own ? this.message.content : splitReasoning(this.message).answer));
    const [icon, label, act] = own
      ? ["edit", "Edit", () => this.edit()]
      : ["again", "Answer again", () => this.#chat.regenerate(this.message)];
    const button = createIconButton(icon, label, act);
    button.disabled = Boolean(this.#chat.run);
    return [copy, button];
  }

  #buildBranches() {
    const branches = findBranches(this.#chat.current, this.message.parent);
    if (branches.length < 2) return [];
    const place = branches.indexOf(this.message) + 1;
    const step = (icon, label, by) => {
      const button = createIconButton(icon, label, () => this.#chat.chooseBranch(this.message, by));
      button.disabled = Boolean(this.#chat.run) || !branches[place - 1 + by];
      return button;
    };
    const attributes = { class: "count", role: "img", "aria-label": `Branch ${place} of ${branches.length}` };
    const count = create("span", attributes, `${place}/${branches.length}`);
    const [back, forth] = [step("back", "Branch before", -1), step("forth", "Next branch", 1)];
    return [create("span", { class: "branches" }, back, count, forth)];
  }

  // -------------------------------------------------------------------------------------------- editing

  /** Puts a text field in the place of the text. */
  edit() {
    if (this.#editor || this.#chat.run) return;
    const field = create("textarea", { "aria-label": "Edit the message", dir: "auto" });
    field.value = this.message.content;
    this.#editor = create("form", { class: "editor", on: { submit: (event) => this.#finishEdit(event, field.value) } },
      field,
      create("p", { class: "buttons" },
        create("button", { type: "button", class: "plain", on: { click: () => this.#closeEditor() } }, "Cancel"),
        create("button", { type: "submit", class: "first" }, "Send")));
    field.addEventListener("input", () => fitHeight(field));
    field.addEventListener("keydown", (event) => this.#onKey(event));
    this.#text.replaceWith(this.#editor);
    this.#footer.hidden = true;
    fitHeight(field);
    field.focus();
  }

  #onKey(event) {
    if (event.key === "Escape") {
      event.stopPropagation();
      this.#closeEditor();
    } else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      this.#editor.requestSubmit();
    }
  }

  #finishEdit(event, text) {
    event.preventDefault();
    this.#closeEditor();
    this.#chat.edit(this.message, text);
  }

  #closeEditor() {
    this.#editor.replaceWith(this.#text);
    this.#editor = null;
    this.#footer.hidden = false;
    this.#footer.querySelector("[aria-label=Edit]")?.focus();
  }
}

function describeThought(statistics) {
  return statistics?.thought === undefined ? "Reasoning" : `Thought for ${formatSeconds(statistics.thought)}`;
}

function describe({ tokens, rate }) {
  const parts = [tokens !== undefined && `${tokens} tokens`, rate !== undefined && `${formatRate(rate)} tokens/s`];
  return parts.filter(Boolean).join(" · ");
}

function describeDetails({ prompt, cached, first }) {
  const parts = [
    prompt !== undefined && `prompt ${prompt} tokens${cached ? `, ${cached} of them kept from before` : ""}`,
    first !== undefined && `first token after ${formatSeconds(first)}`,
  ];
  return parts.filter(Boolean).join("; ");
}

const formatRate = (rate) => (rate < 10 ? rate.toFixed(1) : Math.round(rate).toString());
const formatSeconds = (seconds) => (seconds < 10 ? `${seconds.toFixed(1)} s` : `${Math.round(seconds)} s`);
