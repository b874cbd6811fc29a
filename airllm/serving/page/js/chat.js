// The state of the page and what a user can do to it, without the DOM. Events: "change" (anything), "grow" (the answer
// in `detail`), "models", "key" (the server wants one).

import * as tree from "./conversation.js";
import { splitReasoning } from "./reasoning.js";
import * as storage from "./storage.js";
import { ServerError } from "./server.js";

const SAVE_EVERY = 400; // ms between two records of an answer that is being written
const LOOK_EVERY = 3000; // ms between two looks whether the server is there again

export class Chat extends EventTarget {
  conversations = storage.loadConversations();
  models = [];
  online = true;
  #server;
  #settings = storage.loadSettings(); // of a new conversation
  #runs = new Map(); // conversation's id -> its answer that is being written
  #problems = new Map(); // conversation's id -> what went wrong last
  #look = 0; // the timer of the next look
  #leaving = false; // the page is being closed, which breaks its connections

  constructor(server) {
    super();
    this.#server = server;
    server.key = storage.loadKey();
    this.current = this.conversations.get(storage.loadCurrent()) ?? tree.createConversation(this.#settings);
    if (!storage.isKept) this.report("The browser is set to store nothing: conversations end with this page.");
    storage.watchConversations((id, conversation) => this.#takeFromOtherTab(id, conversation));
    window.addEventListener("pagehide", () => this.#leave());
    window.addEventListener("pageshow", () => (this.#leaving = false));
  }

  get run() {
    return this.#runs.get(this.current.id);
  }

  get problem() {
    return this.#problems.get(this.current.id);
  }

  get messages() {
    return tree.listMessages(this.current);
  }

  isRunning(conversation) {
    return this.#runs.has(conversation.id);
  }

  // -------------------------------------------------------------------------------------------- the server

  async findModels() {
    try {
      this.models = await this.#server.listModels();
      this.online = true;
    } catch (error) {
      this.online = error.kind !== "offline";
      if (error.kind === "key") this.#emit("key", error.message);
    }
    clearTimeout(this.#look);
    if (!this.online) this.#look = setTimeout(() => this.findModels(), LOOK_EVERY);
    this.#emit("models");
  }

  setKey(key, remember) {
    this.#server.key = key;
    storage.saveKey(key, remember);
    this.findModels();
    if (this.problem?.kind === "key") this.retry();
  }

  // -------------------------------------------------------------------------------------------- messages

  send(text) {
    if (this.run || !text.trim()) return;
    const last = this.messages.at(-1);
    const message = tree.addMessage(this.current, last?.id ?? tree.ROOT, "user", { content: text });
    this.#answer(this.current, message.id);
  }

  /** Another answer to the same message, beside this one. */
  regenerate(answer) {
    if (!this.run) this.#answer(this.current, answer.parent);
  }

  /** A message in place of `message`, on a branch of its own, and an answer to it. */
  edit(message, text) {
    if (this.run || !text.trim()) return;
    const edited = tree.addMessage(this.current, message.parent, "user", { content: text });
    this.#answer(this.current, edited.id);
  }

  /** Asks again for an answer to the last message. */
  retry() {
    const last = this.messages.at(-1);
    if (this.run || !last) return;
    this.#answer(this.current, last.role === "user" ? last.id : last.parent);
  }

  stop() {
    this.run?.abort.abort();
  }

  dismissProblem() {
    this.#problems.delete(this.current.id);
    this.#emit("change");
  }

  /** Shows that something failed that the server has no part in. */
  report(message) {
    this.#problems.set(this.current.id, new ServerError("local", message));
    this.#emit("change");
  }

  chooseBranch(message, step) {
    if (this.run) return undefined;
    const chosen = tree.chooseBranch(this.current, message, step);
    this.#save(this.current);
    this.#emit("change");
    return chosen;
  }

  // -------------------------------------------------------------------------------------------- conversations

  open(conversation) {
    this.current = conversation;
    storage.saveCurrent(conversation.id);
    this.#emit("change");
  }

  openNew() {
    this.open(tree.createConversation(this.#settings));
  }

  rename(conversation, title) {
    conversation.title = title.trim().slice(0, 200);
    this.#save(conversation);
    this.#emit("change");
  }

  delete(conversation) {
    this.#runs.get(conversation.id)?.abort.abort();
    this.conversations.delete(conversation.id);
    storage.deleteConversation(conversation.id);
    if (conversation === this.current) this.openNew();
    else this.#emit("change");
  }

  /** Adds conversations of a file. One that is here already, or was, comes beside it under another id. */
  add(conversations) {
    for (const each of conversations) {
      const id = this.conversations.has(each.id) ? tree.createId() : each.id;
      const added = { ...each, id };
      this.conversations.set(id, added);
      this.#save(added);
    }
    this.#emit("change");
  }

  changeSettings(settings) {
    this.current.settings = settings;
    this.#settings = { ...settings };
    storage.saveSettings(settings);
    this.#save(this.current);
  }

  // -------------------------------------------------------------------------------------------- an answer

  async #answer(conversation, parent) {
    const body = this.#buildRequest(conversation, parent);
    const answer = tree.addMessage(conversation, parent, "assistant", { state: "running" });
    const run = { answer, abort: new AbortController(), sent: performance.now(), saved: 0, first: 0, pieces: 0 };
    this.#begin(conversation, run);
    try {
      for await (const chunk of this.#server.streamChat(body, run.abort.signal)) this.#take(conversation, run, chunk);
      if (answer.state === "running") answer.state = "done";
      if (!this.online) this.findModels();
    } catch (error) {
      this.#fail(conversation, run, error);
    }
    this.#end(conversation, run);
  }

  #buildRequest({ settings, messages }, last) {
    const { system, max_tokens, ...sampling } = settings;
    const asked = [];
    for (let id = last; id; id = messages[id].parent) asked.unshift(toRequest(messages[id]));
    return {
      ...(this.models[0] && { model: this.models[0].id }),
      messages: [...(system ? [{ role: "system", content: system }] : []), ...asked],
      ...sampling,
      ...(max_tokens && { max_completion_tokens: max_tokens }),
    };
  }

  #begin(conversation, run) {
    this.conversations.set(conversation.id, conversation);
    this.#runs.set(conversation.id, run);
    this.#problems.delete(conversation.id);
    if (conversation === this.current) storage.saveCurrent(conversation.id);
    this.#save(conversation);
    this.#emit("change");
  }

  #take(conversation, run, chunk) {
    const choice = chunk.choices?.[0];
    if (choice) this.#takePiece(run, choice);
    takeStatistics(run, chunk);
    if (performance.now() - run.saved > SAVE_EVERY) {
      run.saved = performance.now();
      this.#save(conversation);
    }
    this.#emit("grow", run.answer);
  }

  #takePiece(run, { delta = {}, finish_reason: reason }) {
    const { answer } = run;
    const reasoning = delta.reasoning_content ?? delta.reasoning ?? "";
    if (delta.content || reasoning) countPiece(run);
    answer.content += delta.content ?? "";
    answer.reasoning += reasoning;
    if (reason) answer.state = reason === "length" ? "length" : "done";
    noteThought(run);
  }

  #fail(conversation, run, error) {
    if (this.#leaving) return;
    const stopped = run.abort.signal.aborted;
    run.answer.state = stopped ? "stopped" : "broken";
    if (!run.answer.content && !run.answer.reasoning) tree.removeMessage(conversation, run.answer);
    if (stopped) return;
    const problem = error instanceof ServerError ? error : new ServerError("broken", String(error));
    this.#problems.set(conversation.id, problem);
    if (error.kind === "key") this.#emit("key", error.message);
    if (error.kind === "offline") this.findModels();
  }

  #end(conversation, run) {
    this.#runs.delete(conversation.id);
    conversation.updated = Date.now();
    this.#save(conversation);
    this.#emit("change");
    this.#emit("end", { answer: run.answer, conversation });
  }

  // -------------------------------------------------------------------------------------------- records

  #save(conversation) {
    if (!this.conversations.has(conversation.id)) return; // deleted meanwhile
    if (storage.saveConversation(conversation)) return;
    const message = "The browser has no room left: this conversation is not kept. Export it, and delete others.";
    this.#problems.set(conversation.id, new ServerError("full", message));
  }

  /** A page that is left may live on in the browser's cache, with its connections. */
  #leave() {
    this.#leaving = true;
    for (const run of this.#runs.values()) run.abort.abort();
    for (const id of this.#runs.keys()) this.#save(this.conversations.get(id));
  }

  #takeFromOtherTab(id, conversation) {
    if (this.#runs.has(id)) return;
    if (conversation) this.conversations.set(id, conversation);
    else this.conversations.delete(id);
    if (id === this.current.id && conversation) this.current = conversation;
    this.#emit("change");
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}

/** A message as the API takes it: a model is not shown its earlier reasoning. */
function toRequest(message) {
  return { role: message.role, content: message.role === "user" ? message.content : splitReasoning(message).answer };
}

function countPiece(run) {
  run.first ||= performance.now();
  run.pieces += 1;
  const seconds = (performance.now() - run.first) / 1000;
  const rate = seconds > 0.3 ? (run.pieces - 1) / seconds : undefined;
  run.answer.statistics = { ...run.answer.statistics, first: (run.first - run.sent) / 1000, ...(rate && { rate }) };
}

function noteThought(run) {
  const { statistics } = run.answer;
  if (!statistics || statistics.thought !== undefined) return;
  const { reasoning, isOpen } = splitReasoning(run.answer);
  if (reasoning && !isOpen) statistics.thought = (performance.now() - run.first) / 1000;
}

/** The server's own rate counts; that of a server without one is measured here. */
function takeStatistics(run, { usage, timings }) {
  run.rate = timings?.predicted_per_second ?? run.rate;
  if (!usage && !timings) return;
  const tokens = usage?.completion_tokens ?? timings?.predicted_n;
  const rate = run.rate ?? measureRate(run, tokens);
  const found = { tokens, rate, prompt: usage?.prompt_tokens, cached: usage?.prompt_tokens_details?.cached_tokens };
  const given = Object.entries(found).filter(([, value]) => Number.isFinite(value));
  run.answer.statistics = { ...run.answer.statistics, ...Object.fromEntries(given) };
}

function measureRate(run, tokens) {
  const seconds = (performance.now() - run.first) / 1000;
  return tokens > 1 && seconds > 0 ? (tokens - 1) / seconds : undefined;
}
