// What differs between two snapshots: the paths, and of one of them the lines, pictures or bytes.

import { ask, pathFields, query } from "./api.js";
import { button, emptyState, link, make, quiet } from "./dom.js";
import { moment, parseTime, shortId, size, visible } from "./format.js";
import { title } from "./history.js";
import { VirtualList, isNarrow, loadNext } from "./list.js";
import { ContentViewer } from "./viewer.js";

const LETTERS = { added: "A", deleted: "D", modified: "M", renamed: "R" };
const rowHeight = () => (isNarrow() ? 40 : 32);
/** Snapshots that can be chosen from. */
const CHOICES = 300;

/** Shows a comparison. */
export class CompareView {
  constructor(app, parameters) {
    this.app = app;
    this.parameters = parameters;
    this.changes = [];
    this.list = new VirtualList({
      label: "Differences",
      columns: ["letter", "path", "num"],
      rowHeight,
      render: (index) => this.render(index),
      onActive: (index) => this.select(this.changes[index]),
      onNear: (last) => loadNext(this, last),
    });
    this.tools = make("div", { class: "tools" });
    this.summary = make("div", { class: "summary", role: "status" });
    this.view = make("section", { class: "pane view", "aria-label": "The difference", tabindex: "-1" });
    this.element = make(
      "div", { class: "changes stack fill" }, make("h1", { class: "hidden" }, "Compare"), this.tools,
      make("div", { class: "panes wide fill" }, make("div", { class: "pane" }, this.list.element), this.view), this.summary,
    );
    this.viewers = [];
  }

  async load(signal) {
    const { rows } = await ask("history/rows", { worktree: this.app.worktree }, signal);
    const [b = rows[0]?.[0], a = rows[1]?.[0] ?? rows[0]?.[0]] = [this.parameters.b, this.parameters.a];
    if (!a || !b) {
      this.element.replaceChildren(emptyState("Nothing to compare", "'vellum snapshot' makes the first snapshot."));
      return;
    }
    Object.assign(this, { a, b });
    const known = rows.slice(0, CHOICES).map(([id, time, , , isSafety, , note]) => ({ id, time, note, isSafety }));
    for (const id of [a, b]) {
      if (!known.some((choice) => choice.id === id)) known.unshift((await ask(`snapshots/${id}`, {}, signal)).snapshot);
    }
    this.tools.replaceChildren(...this.makeTools(known));
    this.question = { a, b, ...pathFields({ path: this.parameters.path ?? "", path_hex: this.parameters.path_hex }), limit: 500 };
    await this.loadPage(signal);
    this.summary.replaceChildren(...this.makeSummary());
    if (this.changes.length === 0) {
      this.view.replaceChildren(emptyState("No difference", "Both snapshots have the same here."));
      return;
    }
    const wanted = this.changes.findIndex((change) => change.path === this.parameters.open);
    this.list.activate(Math.max(0, wanted));
  }

  makeTools(known) {
    const choice = (selected) => (snapshot) => {
      const text = `${shortId(snapshot.id)}  ${title(snapshot)} · ${moment(parseTime(snapshot.time))}`;
      return make("option", { value: snapshot.id, selected: snapshot.id === selected }, text.slice(0, 90));
    };
    const select = (side, label) =>
      make("select", { "aria-label": label, onchange: (event) => this.go({ [side]: event.target.value }) }, ...known.map(choice(this[side])));
    const path = make("input", {
      type: "search", id: "filter", placeholder: "Under this path", "aria-label": "Only differences under this path", value: this.parameters.path ?? "",
      onchange: () => this.go({ path: path.value.replace(/^\/+|\/+$/g, ""), path_hex: undefined }),
    });
    return [
      select("a", "The snapshot before"),
      button("⇄", () => this.go({ a: this.b, b: this.a }), { "aria-label": "Swap both", title: "Swap both" }),
      select("b", "The snapshot after"),
      path,
    ];
  }

  go(change) {
    const { a, b } = this;
    this.app.go("compare", { a, b, path: this.parameters.path, path_hex: this.parameters.path_hex, ...change });
  }

  makeSummary() {
    const words = Object.entries(this.counts).filter(([, value]) => value > 0);
    const total = words.map(([word, value]) => make("span", { class: word }, `${value.toLocaleString("en")} ${word}`));
    return total.length > 0 ? total : [make("span", {}, "no differences")];
  }

  async loadPage(signal) {
    const answer = await ask("compare", { ...this.question, after: this.after }, signal);
    this.changes.push(...answer.changes);
    this.after = answer.after;
    this.counts = answer.counts;
    this.list.setCount(this.changes.length);
  }

  render(index) {
    const change = this.changes[index];
    const name = visible(change.path) + (change.kind === "directory" ? "/" : "");
    const old = change.old_path ? `${visible(change.old_path.path)} → ` : "";
    const sizes = change.kind !== "file" ? "" : sizeChange(change);
    return [
      make("span", { class: change.change, title: change.change }, LETTERS[change.change]),
      make("span", { title: old + name }, old && make("span", { class: "quiet" }, old), name),
      document.createTextNode(sizes),
    ];
  }

  async select(change) {
    this.closeViewers();
    this.app.note("compare", { ...this.parameters, a: this.a, b: this.b, open: change.path });
    const side = (id, name, text) => link(`#/files?${query({ at: id, ...(name.path_hex ? name : { path: name.path }) })}`, text, { class: "action" });
    const head = make(
      "div", { class: "view-head" },
      make("h2", {}, visible(change.path)),
      change.change !== "added" && side(this.a, change.old_path ?? change, "Before"),
      change.change !== "deleted" && side(this.b, change, "After"),
    );
    const aspects = change.aspects.length > 0 ? `${change.change}: ${change.aspects.join(", ")}` : change.change;
    const body = make("div", {}, quiet("Comparing…"));
    this.view.replaceChildren(head, quiet(`${aspects}${change.kind === "file" ? "" : ` (${change.kind.replaceAll("_", " ")})`}`), body);
    this.view.scrollTop = 0;
    const hasContent = (change.kind === "file" || change.kind === "symlink") && (change.change === "added" || change.change === "deleted" || change.aspects.includes("content"));
    if (!hasContent) {
      body.replaceChildren(quiet(change.kind === "directory" ? "" : "The content is the same."));
      return;
    }
    try {
      await this.showContent(change, body);
    } catch (error) {
      if (error.name !== "AbortError") body.replaceChildren(quiet(error.message));
    }
  }

  async showContent(change, body) {
    const old = change.old_path ? { old_path: change.old_path.path, ...(change.old_path.path_hex && { old_path_hex: change.old_path.path_hex }) } : {};
    if (old.old_path_hex) delete old.old_path;
    const answer = await ask("text", { a: this.a, b: this.b, ...pathFields(change), ...old }, this.app.signal);
    if (this.changes[this.list.active] !== change) return;
    if (answer.binary || answer.too_different) {
      await this.showSides(change, body, answer.too_different);
      return;
    }
    const rest = answer.truncated ? quiet("More differs than is shown; compare the downloaded files.") : "";
    body.replaceChildren(diffTable(answer.hunks), rest);
  }

  /** Both contents, beside each other. */
  async showSides(change, body, isTooDifferent) {
    const sides = [];
    if (change.change !== "added") sides.push(["Before", this.a, change.old_path ?? change, change.old_size]);
    if (change.change !== "deleted") sides.push(["After", this.b, change, change.size]);
    const figures = sides.map(([text, id, name, bytes]) => {
      const viewer = new ContentViewer(id, name, { kind: change.kind, size: bytes ?? 0 }, this.app.signal);
      this.viewers.push(viewer);
      return make("figure", {}, make("figcaption", {}, `${text}, ${size(bytes ?? 0)}`), viewer.element);
    });
    const note = isTooDifferent ? quiet("These have hardly a line in common.") : "";
    body.replaceChildren(note, make("div", { class: figures.length > 1 ? "pictures sides" : "pictures" }, ...figures));
    await Promise.all(this.viewers.map((viewer) => viewer.load()));
  }

  onKey(key) {
    if (key === "n") this.list.move(1);
    else if (key === "p") this.list.move(-1);
    else return false;
    return true;
  }

  closeViewers() {
    for (const viewer of this.viewers) viewer.close();
    this.viewers = [];
  }

  close() {
    this.list.close();
    this.closeViewers();
  }
}

function sizeChange(change) {
  if (change.change === "added") return `+${size(change.size)}`;
  if (change.change === "deleted") return `−${size(change.old_size)}`;
  const by = change.size - change.old_size;
  return by === 0 ? "" : `${by > 0 ? "+" : "−"}${size(Math.abs(by))}`;
}

/** Lines with their numbers before and after. */
function diffTable(hunks) {
  const rows = [];
  for (const [index, hunk] of hunks.entries()) {
    let { old, new: now } = hunk;
    if (index > 0 || old > 1) rows.push(make("tr", { class: "skip" }, make("td", { colspan: "4" }, `line ${now}`)));
    for (const [mark, text] of hunk.lines) {
      if (mark === "\\") {
        rows.push(diffRow("", "", "", "no line feed at the end", "skip"));
        continue;
      }
      rows.push(diffRow(mark === "+" ? "" : old, mark === "-" ? "" : now, mark, text, { "+": "plus", "-": "minus", " ": "" }[mark]));
      if (mark !== "+") old += 1;
      if (mark !== "-") now += 1;
    }
  }
  if (rows.length === 0) return quiet("No line differs.");
  return make("div", { class: "diff", tabindex: "0", role: "region", "aria-label": "Lines that differ" }, make("table", {}, make("tbody", {}, ...rows)));
}

function diffRow(old, now, mark, text, kind) {
  const sign = { "+": "added", "-": "deleted" }[mark];
  return make(
    "tr", { class: kind },
    make("td", { class: "at" }, old), make("td", { class: "at" }, now),
    make("td", { class: "sign" }, sign ? make("span", { class: sign, "aria-label": sign }, mark) : ""),
    make("td", {}, text),
  );
}
