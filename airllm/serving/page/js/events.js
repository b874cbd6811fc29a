// Server-sent events: frames of `data:` lines that an empty line ends. Lines that begin with a colon are remarks.

const LONGEST = 8 * 1024 * 1024; // characters of a frame

/** The data of each event in a response's body. */
export async function* readEvents(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const frames = (rest + value).split(/\r?\n\r?\n/);
      rest = frames.pop();
      if (rest.length > LONGEST) throw new Error("The server sent an event without an end");
      yield* frames.map(readFrame).filter((data) => data !== "");
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

function readFrame(frame) {
  const lines = frame.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}
