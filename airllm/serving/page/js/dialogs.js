// The dialogs: settings, the API key, and whether to delete.

import { create, find } from "./dom.js";

/** The settings of the conversation that is open; each change counts at once. */
export function openSettings(chat) {
  const form = find("settings").querySelector("form");
  for (const field of form.querySelectorAll("[name]")) field.value = chat.current.settings[field.name] ?? "";
  form.oninput = () => chat.changeSettings(readFields(form));
  form.onreset = () => setTimeout(() => chat.changeSettings(readFields(form)));
  find("settings").showModal();
}

function readFields(form) {
  const fields = [...form.querySelectorAll("[name]")];
  const given = fields.filter((field) => field.value.trim() && field.validity.valid);
  return Object.fromEntries(given.map((field) => [field.name, readField(field)]));
}

function readField(field) {
  return field.type === "number" ? field.valueAsNumber : field.value;
}

/** Asks for the key that the server wants. */
export function openKeyDialog(chat, why) {
  const dialog = find("key");
  const form = dialog.querySelector("form");
  if (dialog.open) return;
  form.reset();
  find("key-why").textContent = why;
  form.querySelector("[value=cancel]").onclick = () => dialog.close();
  form.onsubmit = () => chat.setKey(form.elements.key.value.trim(), form.elements.remember.checked);
  dialog.showModal();
}

/** True if the user says yes. */
export function confirmDeletion(title) {
  const dialog = find("confirm");
  find("confirm-title").textContent = "Delete this conversation?";
  const quoted = create("q", { dir: "auto" }, title);
  find("confirm-text").replaceChildren(quoted, " and all its messages are deleted from this browser.");
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
