// The server's OpenAI-compatible API. Addresses are relative: the page may lie under a prefix.

import { readEvents } from "./events.js";

/** What went wrong. `kind`: offline, key, busy, context, refused, broken. */
export class ServerError extends Error {
  constructor(kind, message, retryAfter = 0) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

export class Server {
  key = "";

  /** The models that the server has. */
  async listModels(signal) {
    const response = await this.#request("v1/models", { signal });
    const answer = await response.json().catch(() => null);
    if (!Array.isArray(answer?.data)) throw new ServerError("refused", "The list of models has no \"data\".");
    return answer.data;
  }

  /** The chunks of an answer as they come. */
  async *streamChat(body, signal) {
    const stream = { stream: true, stream_options: { include_usage: true } };
    const text = JSON.stringify({ ...body, ...stream });
    const response = await this.#request("v1/chat/completions", { method: "POST", body: text, signal });
    yield* readChunks(response.body, signal);
  }

  async #request(address, options) {
    const response = await send(address, { ...options, headers: this.#headers(options), cache: "no-store" });
    if (!response.ok) throw await describeFailure(response);
    return response;
  }

  #headers({ body }) {
    return {
      ...(body && { "Content-Type": "application/json" }),
      ...(this.key && { Authorization: `Bearer ${this.key}` }),
    };
  }
}

async function send(address, options) {
  try {
    return await fetch(address, options);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    if (error instanceof TypeError && /header|ByteString|ISO-8859-1/i.test(error.message)) {
      throw new ServerError("key", "A key has characters that no header can carry.");
    }
    throw new ServerError("offline", "The server does not answer. Is `airllm serve` still running?");
  }
}

async function* readChunks(body, signal) {
  try {
    for await (const data of readEvents(body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(kindOf(chunk.error, 500), chunk.error.message ?? "The server failed.");
      yield chunk;
    }
  } catch (error) {
    if (signal?.aborted || error instanceof ServerError) throw error;
    throw new ServerError("broken", `The connection broke off: ${error.message}`);
  }
  throw new ServerError("broken", "The server ended the answer before it was complete.");
}

/** The error that a response other than 200 stands for. */
async function describeFailure(response) {
  const text = await response.text().catch(() => "");
  const error = readError(text);
  const found = error.message || text.slice(0, 300).trim() || response.statusText;
  const kind = kindOf(error, response.status);
  const message = kind === "busy" && !error.message ? "The server has no place free." : found;
  return new ServerError(kind, message || `The server answered ${response.status}.`, readRetryAfter(response));
}

function readError(text) {
  try {
    return JSON.parse(text)?.error ?? {};
  } catch {
    return {};
  }
}

function kindOf(error, status) {
  if (status === 401) return "key";
  if (status === 429 || status === 503) return "busy";
  if (error.code === "context_length_exceeded") return "context";
  return "refused";
}

/** Seconds; the header has those, or a date. */
function readRetryAfter(response) {
  const value = response.headers.get("Retry-After") ?? "";
  const seconds = /^\d+$/.test(value) ? Number(value) : (Date.parse(value) - Date.now()) / 1000;
  return Number.isFinite(seconds) ? Math.min(600, Math.max(1, Math.ceil(seconds))) : 0;
}
