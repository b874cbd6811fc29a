// The field for the next message, and the button that sends it or stops the answer.

import { announce, find, fitHeight } from "./dom.js";
import { loadDraft, saveDraft } from "./storage.js";

export class Composer {
  #chat;

  constructor(chat, onEditLast) {
    this.#chat = chat;
    this.field = find("prompt");
    this.field.value = loadDraft();
    this.field.addEventListener("input", () => this.#onInput());
    this.field.addEventListener("keydown", (event) => this.#onKey(event, onEditLast));
    find("composer").addEventListener("submit", (event) => this.#send(event));
    find("stop").addEventListener("click", () => this.#stop());
    chat.addEventListener("change", () => this.update());
    this.#onInput();
  }

  update() {
    const running = Boolean(this.#chat.run);
    const focused = document.activeElement;
    find("send").hidden = running;
    find("stop").hidden = !running;
    find("send").disabled = !this.field.value.trim();
    if (!focused || focused === document.body || focused.hidden) this.focus();
  }

  fill(text) {
    this.field.value = text;
    this.#onInput();
    this.focus();
  }

  focus() {
    this.field.focus({ preventScroll: true });
  }

  #onInput() {
    fitHeight(this.field);
    find("send").disabled = !this.field.value.trim();
    saveDraft(this.field.value);
  }

  #onKey(event, onEditLast) {
    if (event.isComposing) return; // Enter ends the choice of an input method
    if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      find("composer").requestSubmit();
    } else if (event.key === "ArrowUp" && !this.field.value) {
      event.preventDefault();
      onEditLast();
    }
  }

  #send(event) {
    event.preventDefault();
    const text = this.field.value;
    if (this.#chat.run || !text.trim()) return;
    this.fill("");
    announce("Answering");
    this.#chat.send(text);
  }

  #stop() {
    this.#chat.stop();
    this.focus();
  }
}
