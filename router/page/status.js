// How the cluster is: asked again and again while the page is seen, and drawn.

import { by, made, say } from "./dom.js";
import { headers } from "./key.js";
import { bytes, count, duration, rate } from "./words.js";

const EVERY_MS = 2000;
const BUSY = new Set(["STARTING", "LOADING", "WARMING", "DRAINING", "DEGRADED"]);

let before = null; // the last figures, for rates
let timer = 0;

/** Ask now, and go on; `seen` is told of each answer: {status, told, message}. */
export function watch(seen) {
  const round = async () => {
    clearTimeout(timer);
    if (!document.hidden) seen(await ask());
    timer = setTimeout(round, EVERY_MS);
  };
  document.addEventListener("visibilitychange", () => !document.hidden && round());
  round();
  return round;
}

async function ask() {
  try {
    const answer = await fetch("/status.json", { headers: headers(), cache: "no-store" });
    const body = await answer.json();
    if (!answer.ok) return { status: answer.status, message: body.error?.message ?? "" };
    return { status: answer.status, told: body };
  } catch {
    return { status: 0, message: "The router does not answer." };
  }
}

export function clear() {
  before = null;
  for (const id of ["totals", "models", "memory", "cache"]) by(id).replaceChildren();
}

export function draw(told) {
  const now = performance.now();
  const speeds = speedsOf(told, now);
  drawTotals(told, speeds);
  by("models").replaceChildren(...told.models.map((model) => drawn(model, speeds)));
  drawMemory(told.memory);
  drawCache(told);
  before = { told, now };
}

/** Tokens a second of each model since the last figures; a router that began anew has none yet. */
function speedsOf(told, now) {
  const speeds = new Map();
  if (!before || before.told.epoch !== told.epoch) return speeds;
  const seconds = (now - before.now) / 1000;
  const last = new Map(before.told.models.map((model) => [model.name, model.worker_tokens]));
  for (const model of told.models) {
    const grown = model.worker_tokens - (last.get(model.name) ?? model.worker_tokens);
    speeds.set(model.name, Math.max(grown, 0) / seconds);
  }
  return speeds;
}

function drawTotals(told, speeds) {
  const all = [...speeds.values()].reduce((sum, one) => sum + one, 0);
  const figures = [
    ["Tokens/s", speeds.size ? rate(all) : "–"],
    ["Running", count(told.running)],
    ["Waiting", count(told.waiting)],
  ];
  by("totals").replaceChildren(
    ...figures.map(([name, value]) => made("div", "", made("dt", "", name), made("dd", "", value))),
  );
}

function drawn(model, speeds) {
  const kind = model.state === "READY" ? "good" : model.state === "FAILED" ? "bad" : BUSY.has(model.state) ? "care" : "soft";
  const state = made("span", kind, model.state.toLowerCase());
  if (model.state === "LOADING") state.append(` ${Math.round(100 * model.progress)} %`);
  const item = made("li", "", made("div", "head", made("span", "name", model.name), state));
  const facts = [`${count(model.running)} running`, `${count(model.waiting)} waiting`];
  if (speeds.has(model.name)) facts.push(`${rate(speeds.get(model.name))} tokens/s`);
  item.append(made("div", "more", facts.join(" · ")));
  const rest = [`${count(model.worker_tokens)} tokens since its start`];
  if (model.context_tokens) rest.push(`context ${count(model.context_tokens)}`);
  if (model.reserved_bytes) rest.push(bytes(model.reserved_bytes));
  if (model.pinned) rest.push("pinned");
  item.append(made("div", "more", rest.join(" · ")));
  if (model.reason) item.append(made("div", "more bad", model.reason));
  return item;
}

function drawMemory(memory) {
  const used = memory.reserved_bytes + memory.store_bytes;
  const gauges = [gauge("Models and store", used, memory.budget_bytes)];
  by("memory").replaceChildren(...gauges);
}

function drawCache(told) {
  const sum = (tier) => told.models.reduce((all, model) => all + model.cached_tokens[tier], 0);
  const prompts = told.models.reduce((all, model) => all + model.prompt_tokens, 0);
  const tiers = { parked: sum("parked"), ram: sum("ram"), ssd: sum("ssd") };
  const cached = tiers.parked + tiers.ram + tiers.ssd;
  const parts = [];
  if (told.store) {
    parts.push(gauge("RAM", told.store.ram_bytes, told.store.ram_budget_bytes));
    if (told.store.has_ssd) parts.push(gauge("SSD", told.store.ssd_bytes, told.store.ssd_budget_bytes));
    const { lookups, hits } = told.store;
    parts.push(fact("Lookups that hit", `${count(hits)} of ${count(lookups)}`));
  } else {
    parts.push(made("p", "soft small", "No cache store is told of."));
  }
  parts.push(fact("Prompt tokens reused", `${count(cached)} of ${count(prompts)}`));
  for (const [tier, name] of [["parked", "in a worker"], ["ram", "from RAM"], ["ssd", "from SSD"]]) {
    parts.push(fact(`– ${name}`, count(tiers[tier])));
  }
  by("cache").replaceChildren(...parts);
}

function fact(name, value) {
  return made("div", "gauge", made("div", "row", made("span", "", name), made("span", "", value)));
}

/** A bar of a part in its whole; a whole of 0 is no limit. */
function gauge(name, part, whole) {
  const value = whole ? `${bytes(part)} of ${bytes(whole)}` : bytes(part);
  const box = fact(name, value);
  if (whole) {
    const meter = made("meter");
    meter.max = whole;
    meter.value = part;
    meter.setAttribute("aria-label", `${name}: ${value}`);
    box.append(meter);
  }
  return box;
}

export function summary(told) {
  if (told.draining) return "Draining: it finishes what it has, and ends";
  const ready = told.models.filter((model) => model.state === "READY").length;
  return `${ready} of ${told.models.length} models ready · up ${duration(told.uptime_s)} · version ${told.version}`;
}

export function tell(text) {
  say(by("state"), text);
}
