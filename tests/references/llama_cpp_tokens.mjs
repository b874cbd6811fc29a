// Token ids of llama.cpp. Arguments: a JSON file {files: {name: path}, texts: [...]}; and the JSON
// file to write: by name,
// [[ids with control tokens parsed, ids without], ...], as llama_tokenize gives them without bos.
import { readFileSync, writeFileSync } from "node:fs";
import { getLlama } from "node-llama-cpp";

const { files, texts } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const llama = await getLlama({ gpu: false, build: "never", progressLogs: false });
const found = {};
for (const [name, modelPath] of Object.entries(files)) {
  const model = await llama.loadModel({ modelPath, vocabOnly: true });
  // The addon's own function: the package's tokenize() trims and repairs spaces.
  found[name] = texts.map((text) => [true, false].map((special) => Array.from(model._model.tokenize(text, special))));
  await model.dispose();
}
writeFileSync(process.argv[3], JSON.stringify({ llama_cpp: llama.llamaCppRelease, ids: found }));
process.exit(0);
