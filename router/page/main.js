// Joins the parts: the key, the status, the chat.

import * as chat from "./chat.js";
import { by, made } from "./dom.js";
import { keep, key } from "./key.js";
import * as status from "./status.js";

function notice(text) {
  by("notice").hidden = !text;
  if (by("notice").textContent !== text) by("notice").textContent = text;
}

function seen({ status: code, told, message }) {
  if (told) {
    notice("");
    status.tell(status.summary(told));
    status.draw(told);
    offer(told.models);
    return;
  }
  const isShut = code === 401 || code === 403;
  status.tell(isShut ? "Not let in" : "No figures");
  if (isShut) status.clear();
  notice(isShut ? (key() ? `The key is refused: ${message}` : "This cluster asks for a key.") : message);
}

/** Offer the models in the picker, which keeps what was picked. */
function offer(models) {
  const picker = by("model");
  const names = models.map((model) => model.name);
  const there = [...picker.options].map((option) => option.value);
  if (names.join("\n") !== there.join("\n")) {
    const picked = picker.value || models.find((model) => model.state === "READY")?.name;
    picker.replaceChildren(
      ...names.map((name) => Object.assign(made("option", "", name), { value: name })),
    );
    if (names.includes(picked)) picker.value = picked;
  }
  enable();
}

function enable() {
  by("model").disabled = !by("model").options.length;
  by("send").disabled = chat.isBusy() || !by("model").value;
  by("stop").disabled = !chat.isBusy();
}

function options() {
  const asked = { model: by("model").value };
  const temperature = by("temperature");
  const maxTokens = by("max-tokens");
  if (temperature.value) asked.temperature = temperature.valueAsNumber;
  if (maxTokens.value) asked.max_tokens = maxTokens.valueAsNumber;
  return asked;
}

function ask(event) {
  event.preventDefault();
  const message = by("message");
  const text = message.value;
  if (by("send").disabled || !text.trim()) return;
  message.value = "";
  chat.send(text, options(), enable);
}

const look = status.watch(seen);
by("key").value = key();
by("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  keep(by("key").value.trim());
  look();
});
by("ask").addEventListener("submit", ask);
by("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    by("ask").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => event.key === "Escape" && chat.stop());
by("stop").addEventListener("click", chat.stop);
by("new").addEventListener("click", chat.begin);
