// The clients for Node, against the server whose address is the first argument. Prints JSON.
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { ChatOpenAI } from "@langchain/openai";
import { generateText, jsonSchema, streamText, tool, Output } from "ai";
import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const question = "What is the capital of France?";
const messages = [{ role: "user", content: question }];
const schema = {
  type: "object",
  properties: { size: { enum: ["small", "large"] } },
  required: ["size"],
  additionalProperties: false,
};
const parameters = {
  type: "object",
  properties: { city: { enum: ["Paris", "Rome"] } },
  required: ["city"],
  additionalProperties: false,
};
const found = {};

const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
const weather = { type: "function", function: { name: "weather", parameters } };
found.openai = {
  chat: (await openai.chat.completions.create({ model, messages })).choices[0].message.content,
  stream: "",
  tool: null,
  json: null,
  fault: null,
};
for await (const chunk of await openai.chat.completions.create({ model, messages, stream: true })) {
  found.openai.stream += chunk.choices[0]?.delta.content ?? "";
}
const called = await openai.chat.completions.create({
  model, messages, tools: [weather], tool_choice: "required",
});
found.openai.tool = JSON.parse(called.choices[0].message.tool_calls[0].function.arguments).city;
const formed = await openai.chat.completions.create({
  model, messages, response_format: { type: "json_schema", json_schema: { name: "city", schema } },
});
found.openai.json = JSON.parse(formed.choices[0].message.content).size;
try {
  await openai.chat.completions.create({ model: "other", messages });
} catch (fault) {
  found.openai.fault = [fault.status, fault.code];
}

const provider = createOpenAICompatible({
  name: "edgekv", baseURL: `${url}/v1`, supportsStructuredOutputs: true,
});
const ai = { model: provider(model), prompt: question, maxRetries: 0 };
found.vercel = { chat: (await generateText(ai)).text, stream: "" };
for await (const part of streamText(ai).textStream) found.vercel.stream += part;
const tools = { weather: tool({ inputSchema: jsonSchema(parameters) }) };
const calls = await generateText({ ...ai, tools, toolChoice: "required" });
found.vercel.tool = calls.toolCalls[0].input.city;
const streamed = streamText({ ...ai, tools, toolChoice: "required" });
found.vercel.streamed_tool = (await streamed.toolCalls)[0].input.city;
const output = Output.object({ schema: jsonSchema(schema) });
found.vercel.json = (await generateText({ ...ai, output, experimental_output: output })).text;

const configuration = { baseURL: `${url}/v1` };
const langchain = new ChatOpenAI({ model, apiKey: "none", configuration, maxRetries: 0 });
found.langchain = { chat: (await langchain.invoke(question)).content, stream: "" };
for await (const chunk of await langchain.stream(question)) found.langchain.stream += chunk.content;
const bound = langchain.bindTools([weather], { tool_choice: "required" });
found.langchain.tool = (await bound.invoke(question)).tool_calls[0].args.city;

const anthropic = new Anthropic({ baseURL: url, apiKey: "none", maxRetries: 0 });
const ask = { model, messages, max_tokens: 50 };
found.anthropic = { chat: (await anthropic.messages.create(ask)).content[0].text };
found.anthropic.stream = await anthropic.messages.stream(ask).finalText();
const forced = await anthropic.messages.create({
  ...ask, tools: [{ name: "weather", input_schema: parameters }], tool_choice: { type: "any" },
});
found.anthropic.tool = forced.content[0].input.city;

console.log(JSON.stringify(found));
