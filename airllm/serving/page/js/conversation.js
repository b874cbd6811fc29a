// A conversation is a tree of messages: an edited message or another answer is one more branch. No DOM, no storage.

export const ROOT = "";

/** A new id. crypto.randomUUID exists on https and localhost only. */
export function createId() {
  const bytes = crypto.getRandomValues(new Uint8Array(9));
  return `m${Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}

export function createConversation(settings = {}) {
  const now = Date.now();
  return { id: createId(), title: "", created: now, updated: now, settings: { ...settings }, messages: {}, chosen: {} };
}

/** Adds a message under `parent` and chooses its branch. */
export function addMessage(conversation, parent, role, fields = {}) {
  const message = { id: createId(), parent, role, content: "", reasoning: "", state: "done", ...fields };
  conversation.messages[message.id] = message;
  conversation.chosen[parent] = message.id;
  conversation.updated = Date.now();
  return message;
}

export function removeMessage(conversation, message) {
  delete conversation.messages[message.id];
  delete conversation.chosen[message.id];
  const left = findBranches(conversation, message.parent).at(-1);
  if (left) conversation.chosen[message.parent] = left.id;
  else delete conversation.chosen[message.parent];
}

/** The messages that answer the same one, in the order in which they came. */
export function findBranches(conversation, parent) {
  return Object.values(conversation.messages).filter((message) => message.parent === parent);
}

/** The messages of the chosen branch, first to last. */
export function listMessages(conversation) {
  const found = [];
  let id = conversation.chosen[ROOT];
  while (id) {
    found.push(conversation.messages[id]);
    id = conversation.chosen[id];
  }
  return found;
}

/** Chooses the branch `step` places from this message's own. */
export function chooseBranch(conversation, message, step) {
  const branches = findBranches(conversation, message.parent);
  const chosen = branches[branches.indexOf(message) + step];
  if (chosen) conversation.chosen[message.parent] = chosen.id;
  return chosen;
}

export function titleOf(conversation) {
  if (conversation.title) return conversation.title;
  const first = Object.values(conversation.messages).find((message) => message.role === "user");
  const line = first?.content.trim().split("\n", 1)[0] ?? "";
  return line.length > 120 ? `${line.slice(0, 119).trimEnd()}…` : line || "New conversation";
}
