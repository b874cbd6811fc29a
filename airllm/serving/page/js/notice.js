// What went wrong, and what to do about it.

import { create, createIconButton, find } from "./dom.js";

const TITLES = {
  offline: "The server is not there",
  key: "The server asks for an API key",
  busy: "The server is busy",
  context: "This conversation is too long for the model",
  refused: "The server refused the request",
  broken: "The answer broke off",
  local: "That did not work",
  full: "The browser's storage is full",
};
const ADVICE = {
  context: "Start a new conversation, or edit an earlier message: its branch begins there.",
  offline: "What you wrote is kept.",
};
let shown = null;
let timer = 0;

/** Shows a problem once; undefined takes it away. A busy server is asked again by itself. */
export function showProblem(chat, problem) {
  const unanswered = !problem && !chat.run && chat.messages.at(-1)?.role === "user" ? "unanswered" : null;
  const wanted = problem ?? unanswered;
  if (wanted === shown) return;
  shown = wanted;
  clearInterval(timer);
  if (!wanted) find("notice").replaceChildren();
  else if (wanted === unanswered) find("notice").replaceChildren(buildUnanswered(chat));
  else find("notice").replaceChildren(buildNotice(chat, problem));
}

function buildUnanswered(chat) {
  const button = create("button", { type: "button", on: { click: () => chat.retry() } }, "Answer it");
  const text = create("p", {}, "Your message has no answer.");
  return create("div", { class: "notice quiet" }, text, create("p", { class: "buttons" }, button));
}

function buildNotice(chat, problem) {
  const wait = create("p", { class: "wait", "aria-live": "off" });
  const notice = create("div", { class: `notice ${problem.kind}` },
    create("h2", {}, TITLES[problem.kind]),
    create("p", {}, problem.message),
    ...(ADVICE[problem.kind] ? [create("p", {}, ADVICE[problem.kind])] : []),
    wait,
    create("p", { class: "buttons" }, ...buildActions(chat, problem)),
    createIconButton("close", "Close this notice", () => chat.dismissProblem()));
  if (problem.kind === "busy" && problem.retryAfter) countDown(chat, problem, wait);
  return notice;
}

function buildActions(chat, problem) {
  const button = (text, listener) => create("button", { type: "button", on: { click: listener } }, text);
  if (problem.kind === "full" || problem.kind === "local") return [];
  if (problem.kind === "context") return [button("New conversation", () => chat.openNew())];
  const again = button(problem.kind === "busy" ? "Try now" : "Try again", () => chat.retry());
  if (problem.kind !== "key") return [again];
  const ask = () => chat.dispatchEvent(new CustomEvent("key", { detail: problem.message }));
  return [button("Enter the key", ask), again];
}

function countDown(chat, problem, wait) {
  const end = Date.now() + problem.retryAfter * 1000;
  const conversation = chat.current;
  const tick = () => {
    const left = Math.ceil((end - Date.now()) / 1000);
    wait.textContent = `The page tries again in ${Math.max(0, left)} s.`;
    if (left > 0) return;
    clearInterval(timer);
    if (chat.current === conversation) chat.retry();
  };
  tick();
  timer = setInterval(tick, 250);
}
