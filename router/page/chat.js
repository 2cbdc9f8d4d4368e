// A conversation with a model, over the same API that any client has.

import { by, made, say } from "./dom.js";
import { events } from "./events.js";
import { headers } from "./key.js";
import { count, rate } from "./words.js";

const NEAR_PX = 60;
const DRAW_MS = 50; // what comes meanwhile is drawn at once: tokens are many
const END = "The answer is there.";
const ENDS = { length: "cut at its limit", tool_calls: "asks for a tool, which this page has not" };

let turns = []; // what was said, as the API takes it
let leaving = null; // ends the answer that is being written

export function isBusy() {
  return leaving !== null;
}

export function stop() {
  leaving?.abort();
}

export function begin() {
  stop();
  turns = [];
  by("log").replaceChildren(by("empty"));
  by("empty").hidden = false;
  say(by("told"), "");
  by("message").focus();
}

/** Ask a model; `changed` is called when an answer begins, and when it ended. */
export async function send(text, options, changed) {
  const mine = turns; // another chat may begin meanwhile
  const turn = { role: "user", content: text };
  by("empty").hidden = true;
  const asked = shown("user", "You", text).item;
  const answer = shown("assistant", options.model, "");
  leaving = new AbortController();
  const own = leaving;
  by("log").setAttribute("aria-busy", "true");
  say(by("told"), "Waiting for the answer…");
  changed();
  const end = await written(answer, [...mine, turn], options, own.signal);
  if (end.content) mine.push(turn, { role: "assistant", content: end.content });
  following(() => {
    answer.end.textContent = end.words;
    answer.end.hidden = !end.words;
    answer.end.classList.toggle("bad", end.isBad);
  });
  if (leaving === own) leaving = null;
  by("log").removeAttribute("aria-busy");
  say(by("told"), end.isBad ? `It failed: ${end.words}` : own.signal.aborted ? "Stopped." : END);
  if (end.isBad && !end.content) {
    asked.remove(); // it is in the box again, to be tried again
    if (!by("message").value) by("message").value = text;
  }
  changed();
}

function shown(role, name, text) {
  const content = made("div", "text", text);
  const thought = made("div", "text");
  const thinking = made("details", "", made("summary", "", "Reasoning"), thought);
  const end = made("div", "end");
  thinking.hidden = true;
  end.hidden = true;
  const item = made("article", `turn ${role}`, made("div", "who", name), thinking, content, end);
  by("log").append(item);
  item.scrollIntoView({ block: "end" });
  return { item, content, thinking, thought, end };
}

async function written(answer, messages, options, signal) {
  const started = performance.now();
  const seen = { content: "", thought: "", tokens: 0, first: 0, finish: "", error: "" };
  const drawing = setInterval(() => draw(answer, seen), DRAW_MS);
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST",
      headers: headers({ "content-type": "application/json" }),
      body: JSON.stringify({ ...options, messages, stream: true, stream_options: { include_usage: true } }),
      signal,
    });
    if (!response.ok) {
      const refused = await response.json();
      return bad(refused.error?.message ?? `status ${response.status}`, seen);
    }
    for await (const data of events(response.body)) {
      if (data === "[DONE]") return good(seen, started);
      take(JSON.parse(data), seen);
      if (seen.error) return bad(seen.error, seen);
    }
    return bad("the answer broke off", seen);
  } catch (error) {
    if (signal.aborted) return { content: seen.content, words: "stopped", isBad: false };
    return bad(error instanceof TypeError ? "the router does not answer" : String(error), seen);
  } finally {
    clearInterval(drawing);
    draw(answer, seen);
  }
}

function take(chunk, seen) {
  if (chunk.error) seen.error = chunk.error.message;
  if (chunk.usage) seen.tokens = chunk.usage.completion_tokens;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  const content = choice.delta.content ?? "";
  const thought = choice.delta.reasoning_content ?? "";
  if (choice.finish_reason) seen.finish = choice.finish_reason;
  if (!content && !thought) return;
  if (!seen.first) {
    seen.first = performance.now();
    say(by("told"), "The answer is being written…");
  }
  seen.thought += thought;
  seen.content += content;
}

/** Show what came since the last time, as text. */
function draw(answer, seen) {
  following(() => {
    answer.thinking.hidden = !seen.thought;
    grow(answer.thought, seen.thought);
    grow(answer.content, seen.content);
  });
}

/** Change the log, and keep its end in sight of who reads there. */
function following(change) {
  const log = by("log");
  const follows = log.scrollHeight - log.scrollTop - log.clientHeight < NEAR_PX;
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}

function grow(element, text) {
  const shown = element.firstChild;
  if (!shown) element.textContent = text;
  else if (text.length > shown.length) shown.appendData(text.slice(shown.length));
}

function good(seen, started) {
  const now = performance.now();
  const words = [`${count(seen.tokens)} tokens`];
  if (seen.first) {
    words.push(`first after ${((seen.first - started) / 1000).toFixed(2)} s`);
    const seconds = (now - seen.first) / 1000;
    if (seen.tokens > 1 && seconds > 0) words.push(`${rate((seen.tokens - 1) / seconds)} tokens/s`);
  }
  if (ENDS[seen.finish]) words.push(ENDS[seen.finish]);
  return { content: seen.content, words: words.join(" · "), isBad: false };
}

function bad(words, seen) {
  return { content: seen.content, words, isBad: true };
}
