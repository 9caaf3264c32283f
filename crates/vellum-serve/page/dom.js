// Elements. Text becomes text nodes and attributes only: no name or note can become markup.

/**
 * Makes an element. Properties that begin with "on" are listeners, "data" holds data attributes, others are attributes.
 * @param {string} tag
 * @param {Record<string, any>} properties
 * @param {...(Node | string | number | null | undefined | false)} children
 */
export function make(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

const SVG = "http://www.w3.org/2000/svg";

/** Makes an element of a drawing. */
export function draw(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(element.dataset, value);
    else if (name === "value") element.value = value;
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  for (const child of children.flat()) {
    if (child === undefined || child === null || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

/** A button. */
export function button(text, onclick, properties = {}) {
  return make("button", { type: "button", onclick, ...properties }, text);
}

/** A link to a state of the page. */
export function link(href, text, properties = {}) {
  return make("a", { href, ...properties }, text);
}

/** Says something that is no error. */
export function say(text) {
  const box = document.getElementById("message");
  box.textContent = text;
  box.classList.toggle("shown", text !== "");
  clearTimeout(say.timer);
  say.timer = setTimeout(() => box.classList.remove("shown"), 6000);
}

/** What a view shows that has nothing to show. */
export function emptyState(title, text) {
  return make("div", { class: "empty" }, make("h2", {}, title), make("p", {}, text));
}

/** A row of a list of facts. */
export function fact(term, ...value) {
  return [make("dt", {}, term), make("dd", {}, ...value)];
}

/** A paragraph beside the main matter. */
export function quiet(...children) {
  return make("p", { class: "quiet" }, ...children);
}

/** A link to a snapshot, by the first digits of its id. */
export function snapshotLink(id, properties = {}) {
  return link(`#/history?at=${id}`, id.slice(0, 8), { class: "mono", ...properties });
}
