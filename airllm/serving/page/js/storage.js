// What the browser keeps, in localStorage: a page that is closed can still write there. Each conversation has a record
// of its own, so two tabs do not overwrite each other's.

import { readConversation, readSettings } from "./records.js";

const CONVERSATION = "airllm.conversation.";
const SETTINGS = "airllm.settings";
const CURRENT = "airllm.current";
const DRAFT = "airllm.draft";
const THEME = "airllm.theme"; // theme.js reads it
const KEY = "airllm.key";

/** A storage that lasts as long as the page. */
class Forgetful {
  #texts = new Map();

  getItem(name) {
    return this.#texts.get(name) ?? null;
  }

  setItem(name, text) {
    this.#texts.set(name, text);
  }

  removeItem(name) {
    this.#texts.delete(name);
  }
}

const local = openArea("localStorage");
const session = openArea("sessionStorage");

/** False: the browser is set to store nothing, and what is said ends with the page. */
export const isKept = local instanceof Storage;

function openArea(name) {
  try {
    return window[name];
  } catch {
    return new Forgetful();
  }
}

/** All conversations by id. A record that cannot be read is left where it is. */
export function loadConversations() {
  const names = (isKept ? Object.keys(local) : []).filter((name) => name.startsWith(CONVERSATION));
  const found = names.map((name) => parseConversation(local.getItem(name))).filter(Boolean);
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
export function saveConversation(conversation) {
  return write(local, CONVERSATION + conversation.id, JSON.stringify(conversation));
}

function write(area, name, text) {
  try {
    area.setItem(name, text);
    return true;
  } catch {
    return false;
  }
}

export function deleteConversation(id) {
  local.removeItem(CONVERSATION + id);
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
    return readSettings(JSON.parse(local.getItem(SETTINGS) ?? "{}"), "the page");
  } catch {
    return {};
  }
}

export const saveSettings = (settings) => write(local, SETTINGS, JSON.stringify(settings));

/** The conversation that this tab shows. */
export const loadCurrent = () => session.getItem(CURRENT);
export const saveCurrent = (id) => write(session, CURRENT, id);

/** What is being written, which a reload must not lose. */
export const loadDraft = () => session.getItem(DRAFT) ?? "";
export const saveDraft = (text) => write(session, DRAFT, text);

export const saveTheme = (name) => write(local, THEME, name);

export const loadKey = () => session.getItem(KEY) ?? local.getItem(KEY) ?? "";

/** Keeps the key until the tab is closed, or, with `remember`, until it is replaced. */
export function saveKey(key, remember) {
  local.removeItem(KEY);
  write(session, KEY, key);
  if (remember) write(local, KEY, key);
}
