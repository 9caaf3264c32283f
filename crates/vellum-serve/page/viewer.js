// The content of a file: as text, as a picture, or as bytes.

import { readContent } from "./api.js";
import { make, quiet } from "./dom.js";
import { size } from "./format.js";

/** Most bytes that are shown as text. */
const TEXT_MAX = 512 * 1024;
/** Most bytes that are shown as hexadecimal digits. */
const BYTES_MAX = 4096;
/** Largest picture, bytes and pixels. */
const PICTURE_MAX = 32 * 1024 * 1024;
const PIXELS_MAX = 50000000;
/** Bytes in which a picture says what it is. */
const HEAD = 64 * 1024;

const ascii = (bytes, start, end) => String.fromCharCode(...bytes.subarray(start, end));

/** What kind of picture bytes are, and how large it is; undefined: none that is shown. SVG is text here: it can have scripts. */
export function sniffPicture(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  if (bytes.length < 32) return undefined;
  if (ascii(bytes, 1, 4) === "PNG" && bytes[0] === 0x89) {
    return { type: "image/png", width: view.getUint32(16), height: view.getUint32(20) };
  }
  if (ascii(bytes, 0, 4) === "GIF8") {
    return { type: "image/gif", width: view.getUint16(6, true), height: view.getUint16(8, true) };
  }
  if (ascii(bytes, 0, 4) === "RIFF" && ascii(bytes, 8, 12) === "WEBP") return sniffWebp(bytes, view);
  if (ascii(bytes, 4, 12) === "ftypavif") return sniffAvif(bytes, view);
  if (bytes[0] === 0xff && bytes[1] === 0xd8) return sniffJpeg(bytes, view);
  return undefined;
}

function sniffWebp(bytes, view) {
  const type = "image/webp";
  switch (ascii(bytes, 12, 16)) {
    case "VP8X":
      return { type, width: 1 + bytes[24] + (bytes[25] << 8) + (bytes[26] << 16), height: 1 + bytes[27] + (bytes[28] << 8) + (bytes[29] << 16) };
    case "VP8 ":
      return { type, width: view.getUint16(26, true) & 0x3fff, height: view.getUint16(28, true) & 0x3fff };
    case "VP8L": {
      const bits = view.getUint32(21, true);
      return { type, width: 1 + (bits & 0x3fff), height: 1 + ((bits >> 14) & 0x3fff) };
    }
    default:
      return undefined;
  }
}

function sniffAvif(bytes, view) {
  for (let at = 12; at + 20 <= Math.min(bytes.length, 4096); at += 1) {
    if (ascii(bytes, at, at + 4) === "ispe") return { type: "image/avif", width: view.getUint32(at + 8), height: view.getUint32(at + 12) };
  }
  return undefined;
}

function sniffJpeg(bytes, view) {
  for (let at = 2; at + 9 < bytes.length && bytes[at] === 0xff; at += 2 + view.getUint16(at + 2)) {
    const mark = bytes[at + 1];
    if (mark >= 0xc0 && mark <= 0xcf && ![0xc4, 0xc8, 0xcc].includes(mark)) {
      return { type: "image/jpeg", width: view.getUint16(at + 7), height: view.getUint16(at + 5) };
    }
  }
  return undefined;
}

/** Text, or undefined if the bytes are none. A character that is cut off at the end does not count. */
export function decodeText(bytes, isCut) {
  if (bytes.subarray(0, 8000).includes(0)) return undefined;
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes, { stream: isCut });
  } catch {
    return undefined;
  }
}

/** Bytes as lines of 16: where, digits, characters. */
export function formatBytes(bytes) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, BYTES_MAX); at += 16) {
    const part = Array.from(bytes.subarray(at, at + 16));
    const digits = part.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(47);
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${digits}  ${text}`);
  }
  return lines.join("\n");
}

/** Shows the content of one file. */
export class ContentViewer {
  constructor(id, name, file, signal) {
    Object.assign(this, { id, name, file, signal });
    this.element = make("div", { class: "viewer" }, quiet("Reading…"));
  }

  async load() {
    if (this.file.kind !== "file") {
      const text = this.file.target ? `leads to ${this.file.target.path}` : this.file.kind.replaceAll("_", " ");
      this.show(quiet(text));
      return;
    }
    if (this.file.size === 0) {
      this.show(quiet("This file is empty."));
      return;
    }
    const head = await readContent(this.id, this.name, HEAD, this.signal);
    const picture = sniffPicture(head);
    if (picture) await this.showPicture(picture);
    else await this.showText(head);
  }

  async showPicture({ type, width, height }) {
    if (this.file.size > PICTURE_MAX || width * height > PIXELS_MAX) {
      this.show(quiet(`This picture is too large to be shown: ${width} × ${height} pixels, ${size(this.file.size)}.`));
      return;
    }
    const bytes = await readContent(this.id, this.name, undefined, this.signal);
    this.url = URL.createObjectURL(new Blob([bytes], { type }));
    this.show(
      make("img", { class: "picture", src: this.url, alt: `the picture ${this.name.path}` }),
      quiet(`${width} × ${height} pixels, ${size(this.file.size)}`),
    );
  }

  async showText(head) {
    const isWhole = this.file.size <= head.length;
    const text = decodeText(head, !isWhole);
    if (text === undefined) {
      const rest = this.file.size > BYTES_MAX ? `The first ${size(BYTES_MAX)} of ${size(this.file.size)}.` : "";
      this.show(this.content(formatBytes(head), "Content in hexadecimal digits"), quiet(rest));
      return;
    }
    const bytes = isWhole ? head : await readContent(this.id, this.name, TEXT_MAX, this.signal);
    const isCut = this.file.size > bytes.length;
    const rest = isCut ? `The first ${size(bytes.length)} of ${size(this.file.size)}; download the file for all of it.` : "";
    this.show(this.content(decodeText(bytes, isCut) ?? text, "Content"), quiet(rest));
  }

  content(text, label) {
    return make("pre", { class: "content", tabindex: "0", role: "region", "aria-label": `${label}, in ${this.id.slice(0, 8)}` }, text);
  }

  show(...nodes) {
    this.element.replaceChildren(...nodes);
  }

  /** Gives back what the picture took. */
  close() {
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
