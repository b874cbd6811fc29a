// What the browser keeps, in localStorage: a page that is closed can still write there. Each conversation has a record
// of its own, so two tabs do not overwrite each other's.

import { readConversation, readSettings } from "./records.js";

const CONVERSATION = "airllm.conversation.";
const SETTINGS = "airllm.settings";
const CURRENT = "airllm.current";
const DRAFT = "airllm.draft";
const THEME = "airllm.theme"; // theme.js reads it
const KEY = "airllm.key";

/** All conversations by id. A record that cannot be read is left where it is. */
export function loadConversations() {
  const names = Object.keys(localStorage).filter((name) => name.startsWith(CONVERSATION));
  const found = names.map((name) => parseConversation(localStorage.getItem(name))).filter(Boolean);
  return new Map(found.map((conversation) => [conversation.id, conversation]));
}

function parseConversation(text) {
  try {
    return readConversation(JSON.parse(text), "the record");
  } catch {
    return null;
  }
}

/** False: the browser has no room left. */
export const saveConversation = (conversation) => write(localStorage, CONVERSATION + conversation.id, JSON.stringify(conversation));

function write(area, name, text) {
  try {
    area.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

export function deleteConversation(id) {
  localStorage.removeItem(CONVERSATION + id);
}

/** Calls `listener(id, conversation or null)` when another tab has written or deleted one. */
export function watchConversations(listener) {
  window.addEventListener("storage", ({ key, newValue }) => {
    if (!key?.startsWith(CONVERSATION)) return;
    listener(key.slice(CONVERSATION.length), newValue === null ? null : parseConversation(newValue));
  });
}

/** The settings of the next new conversation. */
export function loadSettings() {
  try {
    return readSettings(JSON.parse(localStorage.getItem(SETTINGS) ?? "{}"), "the page");
  } catch {
    return {};
  }
}

export const saveSettings = (settings) => write(localStorage, SETTINGS, JSON.stringify(settings));

/** The conversation that this tab shows. */
export const loadCurrent = () => sessionStorage.getItem(CURRENT);
export const saveCurrent = (id) => write(sessionStorage, CURRENT, id);

/** What is being written, which a reload must not lose. */
export const loadDraft = () => sessionStorage.getItem(DRAFT) ?? "";
export const saveDraft = (text) => write(sessionStorage, DRAFT, text);

export const saveTheme = (name) => write(localStorage, THEME, name);

export const loadKey = () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";

/** Keeps the key until the tab is closed, or, with `remember`, until it is replaced. */
export function saveKey(key, remember) {
  localStorage.removeItem(KEY);
  write(sessionStorage, KEY, key);
  if (remember) write(localStorage, KEY, key);
}
