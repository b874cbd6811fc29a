// Conversations as JSON: what the browser keeps, exports and imports. What is read is checked field by field, and
// nothing else of it is kept: a file can come from anywhere.

import { ROOT } from "./conversation.js";

const FORMAT = "airllm-conversations";
const ID = /^m[0-9a-f]{4,64}$/;
const ROLES = new Set(["user", "assistant"]);
const STATES = new Set(["done", "running", "stopped", "length", "broken"]);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const STATISTICS = ["tokens", "rate", "prompt", "cached", "first", "thought"];

export function writeFile(conversations) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations }, null, 1);
}

/** The conversations in a file's text; an Error says what is wrong with it. */
export function readFile(text) {
  const value = parseJson(text);
  require(isObject(value) && value.format === FORMAT, `its "format" is not "${FORMAT}"`);
  require(value.version === 1, `its version is ${JSON.stringify(value.version)}, this page reads version 1`);
  require(Array.isArray(value.conversations), 'it has no list "conversations"');
  return value.conversations.map((each, index) => readConversation(each, `conversation ${index + 1}`));
}

export function readConversation(value, place) {
  require(isObject(value) && ID.test(value.id), `${place} has no id`);
  require(isObject(value.messages), `${place} has no messages`);
  const messages = readMessages(value.messages, place);
  return {
    id: value.id,
    title: readText(value.title ?? "", `the title of ${place}`).slice(0, 200),
    created: readNumber(value.created, `"created" of ${place}`),
    updated: readNumber(value.updated, `"updated" of ${place}`),
    settings: readSettings(value.settings ?? {}, place),
    messages,
    chosen: readChosen(value.chosen, messages),
  };
}

/** A parent stands before its children, so there are no circles. */
function readMessages(value, place) {
  const messages = {};
  for (const [id, message] of Object.entries(value)) {
    const where = `message ${Object.keys(messages).length + 1} of ${place}`;
    require(ID.test(id) && isObject(message), `${where} has no id`);
    require(ROLES.has(message.role), `${where} has the role ${JSON.stringify(message.role)}`);
    require(message.parent === ROOT || Object.hasOwn(messages, message.parent), `${where} answers none before it`);
    messages[id] = readMessage(id, message, where);
  }
  return messages;
}

function readMessage(id, message, where) {
  return {
    id,
    parent: message.parent,
    role: message.role,
    content: readText(message.content, `the content of ${where}`),
    reasoning: readText(message.reasoning ?? "", `the reasoning of ${where}`),
    state: STATES.has(message.state) ? message.state : "done",
    ...(isObject(message.statistics) && { statistics: keepNumbers(message.statistics, STATISTICS) }),
  };
}

/** The last branch wherever none is chosen. */
function readChosen(value, messages) {
  const chosen = {};
  for (const message of Object.values(messages)) chosen[message.parent] = message.id;
  for (const [parent, id] of Object.entries(isObject(value) ? value : {})) {
    if (Object.hasOwn(messages, id) && messages[id].parent === parent) chosen[parent] = id;
  }
  return chosen;
}

/** A system prompt and numbers; what is not set is left out. */
export function readSettings(value, place) {
  require(isObject(value), `the settings of ${place} are no object`);
  const system = readText(value.system ?? "", `the system prompt of ${place}`);
  return { ...(system && { system }), ...keepNumbers(value, NUMBERS) };
}

function keepNumbers(value, names) {
  return Object.fromEntries(names.filter((name) => Number.isFinite(value[name])).map((name) => [name, value[name]]));
}

function readText(value, what) {
  require(typeof value === "string", `${what} is no text`);
  return value;
}

function readNumber(value, what) {
  require(Number.isFinite(value), `${what} is no number`);
  return value;
}

function parseJson(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`it is no JSON: ${error.message}`);
  }
}

function isObject(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function require(condition, message) {
  if (!condition) throw new Error(message);
}
