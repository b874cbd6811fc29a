// Logits of llama.cpp. Arguments: a JSON file {files: {name: path}, texts: [[token ids]]}; and the JSON file
// to write: by name, for each text, the logits after each of its tokens.
import { readFileSync, writeFileSync } from "node:fs";
import { getLlama } from "node-llama-cpp";

const { files, texts } = JSON.parse(readFileSync(process.argv[2], "utf8"));
const llama = await getLlama({ gpu: false, build: "never", progressLogs: false, logLevel: "error" });
const asTheyAre = { generateNext: { logits: true, options: { temperature: 1, topK: 0, topP: 1, minP: 0 } } };
const cache = { flashAttention: false, experimentalKvCacheKeyType: "F32", experimentalKvCacheValueType: "F32" };
const found = {};
for (const [name, modelPath] of Object.entries(files)) {
  const model = await llama.loadModel({ modelPath });
  const context = await model.createContext({ contextSize: 128, threads: 1, ...cache });
  const sequence = context.getSequence();
  found[name] = [];
  for (const text of texts) {
    await sequence.clearHistory();
    const outputs = await sequence.controlledEvaluate(text.map((token) => [token, asTheyAre]));
    const inOrder = ({ next }) => [...next.logits].sort(([a], [b]) => a - b).map(([, logit]) => logit);
    found[name].push(outputs.map(inOrder));
  }
  await model.dispose();
}
writeFileSync(process.argv[3], JSON.stringify(found));
process.exit(0);
