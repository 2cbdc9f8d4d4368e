// The key that requests show. It is kept for this tab, until it is closed, and nowhere else.

const NAME = "bramley-key";

export function key() {
  return sessionStorage.getItem(NAME) ?? "";
}

export function keep(value) {
  if (value) sessionStorage.setItem(NAME, value);
  else sessionStorage.removeItem(NAME);
}

/** Headers of a request; a key that no header can carry is nobody's, and is left out. */
export function headers(more = {}) {
  const value = key();
  return /^[\x21-\x7e]+$/.test(value) ? { ...more, authorization: `Bearer ${value}` } : more;
}
