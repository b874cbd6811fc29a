// The npm package `openai` against a server, by hand: npm i openai && node clients.mjs http://127.0.0.1:8080/v1
import OpenAI from "openai";
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Name a city and its country." }];
const whole = await client.chat.completions.create({ model: "smollm2", messages, max_tokens: 20 });
console.log("whole:", whole.choices[0].message.content);
let text = "";
const stream = await client.chat.completions.create({ model: "smollm2", messages, max_tokens: 20, stream: true, stream_options: { include_usage: true } });
for await (const chunk of stream) text += chunk.choices[0]?.delta?.content ?? "";
console.log("stream:", text);
const response = await client.responses.create({ model: "smollm2", input: "Hello", max_output_tokens: 10 });
console.log("response:", response.output_text);
const tool = { type: "function", function: { name: "city", parameters: { type: "object", properties: { name: { type: "string", maxLength: 20 } }, required: ["name"], additionalProperties: false } } };
const run = client.chat.completions.stream({ model: "smollm2", messages, tools: [tool], tool_choice: "required", parallel_tool_calls: false, max_tokens: 100 });
console.log("tool:", JSON.stringify((await run.finalChatCompletion()).choices[0].message.tool_calls));
try { await client.chat.completions.create({ model: "smollm2", messages, temperature: 9 }); } catch (e) { console.log("error:", e.status, e.param, e.message); }
