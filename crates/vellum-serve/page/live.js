// What mounts of the volume do now: figures and curves of the last minutes.

import { draw, emptyState, make, quiet } from "./dom.js";
import { number, size, visible } from "./format.js";

/** Figures that are kept of each mount. */
const KEPT = 120;
const WIDTH = 240;
const HEIGHT = 40;

/** What is shown of the figures: a name, how it is read, how it is written, and whether it has a curve. */
const FIGURES = [
  ["Requests a second", (figures) => figures.fuse.rate, (value) => number(Math.round(value)), true],
  ["Time of a request", (figures) => figures.fuse.latency_ms, (value) => `${value.toFixed(2)} ms`, true],
  ["Read", (figures) => figures.read, (value) => `${size(value)}/s`, true],
  ["Written", (figures) => figures.written, (value) => `${size(value)}/s`, true],
  ["Received from the store", (figures) => figures.received, (value) => `${size(value)}/s`, false],
  ["Sent to the store", (figures) => figures.sent, (value) => `${size(value)}/s`, false],
  ["Cache hits", (figures) => figures.cache_hits, (value) => (value === null ? "–" : `${value.toFixed(0)} %`), false],
  ["Processor", (figures) => figures.cpu_percent, (value) => `${value.toFixed(1)} %`, false],
  ["Memory", (figures) => figures.memory, size, false],
  ["Not in the store for", (figures) => figures.unpublished_seconds, (value) => `${number(Math.round(value))} s`, false],
];

function curve(values) {
  const top = Math.max(...values, 1e-9);
  const point = (value, index) => `${((index / (KEPT - 1)) * WIDTH).toFixed(1)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 4)).toFixed(1)}`;
  return draw("svg", { class: "curve", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, "aria-hidden": "true" }, draw("polyline", { class: "line c0", points: values.map(point).join(" ") }));
}

/** Shows what mounts do. */
export class LiveView {
  constructor(app) {
    this.app = app;
    this.kept = new Map();
    this.wantsFigures = true;
    this.mounts = make("div", { class: "cards fill", tabindex: "-1" }, make("p", { class: "empty", role: "status" }, "Counting for a second…"));
    this.element = make("div", { class: "stack fill" }, make("h1", { class: "hidden" }, "Live"), this.mounts);
  }

  /** Figures are told each second. Shown are the first ones, or that there are none. */
  load(signal) {
    return new Promise((resolve, reject) => {
      this.resolve = resolve;
      signal.addEventListener("abort", () => reject(signal.reason));
    });
  }

  hear(kind, { mounts, error }) {
    if (kind !== "live") return;
    if (error) this.mounts.replaceChildren(emptyState("No figures", error.message));
    else if (mounts.length === 0) this.mounts.replaceChildren(emptyState("No mount", "Nothing of this volume is mounted on this machine."));
    else this.mounts.replaceChildren(...mounts.map((mount) => this.card(mount)));
    this.resolve();
  }

  card(mount) {
    const { figures, mountpoint } = mount;
    const facts = [mount.worktree ? `worktree ${visible(mount.worktree)}` : "a snapshot", mount.read_only && "read only", mount.dead && "its process has ended", mount.silent && "does not answer"].filter(Boolean).join(", ");
    const head = [make("h2", {}, visible(mountpoint)), quiet(facts)];
    if (!figures) return make("section", { class: "card" }, ...head, make("p", { class: "bad" }, "It gives no figures."));
    const kept = this.kept.get(mountpoint) ?? [];
    this.kept.set(mountpoint, [...kept, figures].slice(-KEPT));
    const row = ([name, read, write, hasCurve]) => {
      const values = this.kept.get(mountpoint).map((one) => read(one) ?? 0);
      const value = read(figures);
      return make("tr", {}, make("th", { scope: "row" }, name), make("td", { class: "num" }, value === undefined ? "–" : write(value)), make("td", {}, hasCurve && curve(values)));
    };
    return make("section", { class: "card wide" }, ...head, make("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": `Figures of ${visible(mountpoint)}` }, make("table", {}, make("tbody", {}, ...FIGURES.map(row)))));
  }

  onKey() {
    return false;
  }

  close() {}
}
