// A model's reasoning: in a field of its own, or in the text between <think> and </think>.

const OPEN = "<think>";
const CLOSE = "</think>";
// Some templates write the opening tag into the prompt. A closing tag alone counts on a line of its own only:
// an answer may speak of the tag.
const CLOSE_ALONE = /(^|\n)[ \t]*<\/think>[ \t]*(\n|$)/;

/** {reasoning, answer, isOpen} of a message; isOpen: the reasoning goes on. */
export function splitReasoning({ content, reasoning = "" }) {
  const inside = splitText(content);
  const parts = [reasoning, inside.reasoning].filter((part) => part.trim());
  const isOpen = inside.isOpen || (parts.length > 0 && !inside.answer.trim());
  return { reasoning: parts.join("\n\n").trim(), answer: inside.answer, isOpen };
}

function splitText(content) {
  const text = content.trimStart();
  if (text.startsWith(OPEN)) return splitAt(text.slice(OPEN.length), CLOSE);
  if (text && OPEN.startsWith(text)) return { reasoning: "", answer: "", isOpen: false }; // a part of the tag
  const alone = CLOSE_ALONE.exec(text);
  if (!alone) return { reasoning: "", answer: content, isOpen: false };
  return { reasoning: text.slice(0, alone.index), answer: text.slice(alone.index + alone[0].length), isOpen: false };
}

function splitAt(text, close) {
  const end = text.indexOf(close);
  if (end < 0) return { reasoning: withoutPart(text, close), answer: "", isOpen: true };
  return { reasoning: text.slice(0, end), answer: text.slice(end + close.length).trimStart(), isOpen: false };
}

/** `text` without the beginning of `tag` at its end: the rest of the tag is still to come. */
function withoutPart(text, tag) {
  const at = text.lastIndexOf("<");
  return at >= 0 && tag.startsWith(text.slice(at)) ? text.slice(0, at) : text;
}
