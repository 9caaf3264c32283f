// Sizes, numbers, moments and names, as people read them.

import { make, quiet } from "./dom.js";

const whole = new Intl.NumberFormat("en");

/** A number with separators. */
export function number(value) {
  return whole.format(value);
}

/** A number with its noun. */
export function count(value, noun, plural = `${noun}s`) {
  return `${number(value)} ${value === 1 ? noun : plural}`;
}

/** Bytes. */
export function size(bytes) {
  const units = ["B", "KB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

const exact = new Intl.DateTimeFormat("en", { dateStyle: "full", timeStyle: "long" });
const clock = new Intl.DateTimeFormat("en", { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const dayOfYear = new Intl.DateTimeFormat("en", { day: "numeric", month: "short" });
const day = new Intl.DateTimeFormat("en", { day: "numeric", month: "short", year: "numeric" });

/** A moment near or far: "13:30", "yesterday 18:02", "1 May", "3 Mar 2024". */
export function moment(date, now = new Date()) {
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate());
  const days = Math.floor((midnight - date) / 86400000) + 1;
  const seconds = (now - date) / 1000;
  if (seconds >= -60 && seconds < 60) return "just now";
  if (seconds >= 0 && seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (date >= midnight && seconds >= 0) return `today ${clock.format(date)}`;
  if (days === 1) return `yesterday ${clock.format(date)}`;
  return (date.getFullYear() === now.getFullYear() ? dayOfYear : day).format(date);
}

/** A moment of an answer: RFC 3339, seconds, or "@" and seconds. */
export function parseTime(value) {
  if (typeof value === "number") return new Date(value * 1000);
  return value.startsWith("@") ? new Date(Number(value.slice(1)) * 1000) : new Date(value);
}

/** A moment as an element, with the exact one in its title. */
export function timeElement(value) {
  const date = parseTime(value);
  if (Number.isNaN(date.getTime())) return make("span", { class: "time" }, String(value));
  return make("time", { class: "time", datetime: date.toISOString(), title: exact.format(date) }, moment(date));
}

/** Characters that would change how the text around them is shown, or not be seen, as their numbers. */
export function visible(text) {
  const hidden = /[\u0000-\u001f\u007f-\u009f\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;
  return text.replace(hidden, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** The last name of a path. */
export function lastName(path) {
  return visible(path.split("/").pop());
}

/** The first digits of an id. */
export function shortId(id) {
  return id.slice(0, 8);
}

function toHex(text) {
  return Array.from(new TextEncoder().encode(text), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The name of an entry from the root, when its directory and its own name are known. */
export function joinName(dir, entry) {
  const path = dir.path === "" ? entry.path : `${dir.path}/${entry.path}`;
  if (!dir.path_hex && !entry.path_hex) return { path };
  const above = dir.path_hex ?? toHex(dir.path);
  return { path, path_hex: (above === "" ? "" : `${above}2f`) + (entry.path_hex ?? toHex(entry.path)) };
}

/** The directories above a name, from the root on, each with its name from the root; the last is itself. */
export function trail(name) {
  if (name.path === "") return [];
  const texts = name.path.split("/");
  const hex = name.path_hex && splitHex(name.path_hex);
  return texts.map((text, index) => {
    const whole = { path: texts.slice(0, index + 1).join("/") };
    if (hex) whole.path_hex = hex.slice(0, index + 1).join("2f");
    return { text, name: whole };
  });
}

function splitHex(hex) {
  const names = [""];
  for (const byte of hex.match(/../g) ?? []) {
    if (byte === "2f") names.push("");
    else names[names.length - 1] += byte;
  }
  return names;
}

/** What went wrong, as the command says it. */
export function failure({ message, hint }) {
  return [make("p", { class: "bad" }, visible(message)), hint ? quiet(visible(hint)) : ""];
}
