// Puts the page together, and listens to its keys.

import { Chat } from "./chat.js";
import { Composer } from "./composer.js";
import { openKeyDialog, openSettings } from "./dialogs.js";
import { find } from "./dom.js";
import { MessagesView } from "./messages.js";
import { Server } from "./server.js";
import { Sidebar } from "./sidebar.js";
import { saveTheme } from "./storage.js";

const THEMES = ["auto", "light", "dark"];

const chat = new Chat(new Server());
const composer = new Composer(chat, () => messages.editLast());
const messages = new MessagesView(chat, (text) => composer.fill(text));
const sidebar = new Sidebar(chat);

function showModel() {
  const id = chat.models[0]?.id ?? "";
  find("model").textContent = chat.online ? id : "offline";
  find("model").classList.toggle("offline", !chat.online);
  find("about").textContent = id ? `${id} answers. What you write goes to this server, and nowhere else.` : "";
}

function onKey(event) {
  const control = event.ctrlKey || event.metaKey;
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") onEscape();
  else if (control && event.shiftKey && event.key.toLowerCase() === "o") runShortcut(event, () => find("new").click());
  else if (control && event.key === ",") runShortcut(event, () => openSettings(chat));
}

function runShortcut(event, act) {
  event.preventDefault();
  act();
}

function onEscape() {
  if (sidebar.isOpen) sidebar.toggle(false);
  else chat.stop();
}

function showTheme() {
  find("theme").querySelector("span").textContent = `Theme: ${document.documentElement.dataset.theme ?? "auto"}`;
}

function changeTheme() {
  const { dataset } = document.documentElement;
  const next = THEMES[(THEMES.indexOf(dataset.theme ?? "auto") + 1) % THEMES.length];
  if (next === "auto") delete dataset.theme;
  else dataset.theme = next;
  saveTheme(next);
  showTheme();
}

find("skip").addEventListener("click", () => composer.focus());
find("open-settings").addEventListener("click", () => openSettings(chat));
find("theme").addEventListener("click", changeTheme);
chat.addEventListener("models", showModel);
chat.addEventListener("key", ({ detail }) => openKeyDialog(chat, detail));
document.addEventListener("keydown", onKey);

showTheme();
messages.update();
sidebar.update();
composer.update();
composer.focus();
chat.findModels();
