// Elements of the page. What they say is set as text, so that nothing a model writes is markup.

export const by = (id) => document.getElementById(id);

/** Make an element of a class, with children: elements, or texts. */
export function made(tag, kind = "", ...children) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  for (const child of children) {
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return element;
}

/** Set a text, unless it is said already: what is announced is not said twice. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
