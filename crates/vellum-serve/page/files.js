// Files of a snapshot, and the contents that a path had before and after it.

import { restore } from "./actions.js";
import { ask, download, pathFields, query } from "./api.js";
import { button, draw, emptyState, fact, link, make, quiet, say } from "./dom.js";
import { count, joinName, lastName, number, shortId, size, timeElement, trail, visible } from "./format.js";
import { labels, title } from "./history.js";
import { VirtualList, isNarrow, loadNext } from "./list.js";
import { ContentViewer } from "./viewer.js";

const rowHeight = () => (isNarrow() ? 46 : 34);

const SHAPES = {
  directory: "M1.5 4A1.5 1.5 0 0 1 3 2.5h3l1.5 2H13A1.5 1.5 0 0 1 14.500 6v6A1.500 1.500 0 0 1 13 13.500H3A1.500 1.500 0 0 1 1.500 12z",
  symlink: "M3 13V8.500A2.500 2.500 0 0 1 5.500 6H12M9 3l3.500 3L9 9",
  file: "M3.500 1.500h6l3 3v10h-9zM9.500 1.500v3h3",
};

function kindIcon(kind) {
  const shape = draw("path", { d: SHAPES[kind] ?? SHAPES.file, fill: "none", stroke: "currentColor", "stroke-width": 1.3, "stroke-linejoin": "round" });
  return draw("svg", { class: `kind ${kind}`, width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true" }, shape);
}

/** Tells paths apart, also those that look the same. */
function selectionKey(name) {
  return JSON.stringify(pathFields(name));
}

/** Shows a directory of a snapshot, or a file of it. */
export class FilesView {
  constructor(app, parameters) {
    this.app = app;
    this.parameters = parameters;
    this.name = parameters.path_hex ? { path: parameters.path ?? "", path_hex: parameters.path_hex } : { path: parameters.path ?? "" };
    this.entries = [];
    this.list = new VirtualList({
      label: "Entries of the directory",
      columns: ["name", "num", "when right"],
      rowHeight,
      render: (index) => this.render(index),
      onActive: (index) => this.select(this.entries[index]),
      onOpen: (index) => this.open(this.entries[index]),
      onNear: (last) => loadNext(this, last),
    });
    this.place = make("div", { class: "tools" });
    this.chosen = make("div", { class: "tools", role: "group", "aria-label": "Selected", hidden: true });
    this.side = make("aside", { class: "pane side", "aria-label": "The entry" });
    this.pane = make("div", { class: "pane" });
    this.element = make(
      "div", { class: "files stack fill" }, make("h1", { class: "hidden" }, "Files"), this.place, this.chosen,
      make("div", { class: "panes fill" }, this.pane, this.side),
    );
  }

  async load(signal) {
    const at = this.parameters.at ?? this.app.head();
    if (!at) {
      this.element.replaceChildren(emptyState("No snapshot yet", "'vellum snapshot' makes the first one."));
      return;
    }
    this.at = at;
    const [shown, entry] = await Promise.all([
      ask(`snapshots/${at}`, {}, signal),
      ask(`entry/${at}`, pathFields(this.name), signal),
    ]);
    this.snapshot = shown.snapshot;
    this.entry = entry;
    this.isDirectory = entry.file.kind === "directory";
    this.place.replaceChildren(...this.placeTools());
    this.showSelection();
    if (this.isDirectory) {
      this.pane.replaceChildren(this.list.element);
      await this.loadPage(signal);
      if (this.entries.length === 0) this.pane.replaceChildren(emptyState("Nothing here", "This directory is empty."));
      this.side.replaceChildren(...this.directoryDetails());
    } else {
      this.viewer = new ContentViewer(at, this.name, entry.file, signal);
      this.pane.replaceChildren(make("div", { class: "view" }, this.viewer.element));
      await Promise.all([this.viewer.load(), this.select(undefined)]);
    }
  }

  placeTools() {
    const step = (key, label, text, by) =>
      button(text, () => this.step(by), { title: `${label} (${key})`, "aria-label": label });
    const crumbs = trail(this.name);
    const crumb = ({ text, name }, index) => [
      make("span", { class: "gap", "aria-hidden": "true" }, "/"),
      index === crumbs.length - 1
        ? make("span", { class: "here", "aria-current": "location" }, visible(text))
        : link(this.address(this.at, name), visible(text)),
    ];
    return [
      make("span", { class: "group" },
        step("[", "The version before", "‹", 1),
        link(`#/history?${query({ at: this.at })}`, title(this.snapshot), { class: "action", title: "Show it in the history" }),
        step("]", "The version after", "›", -1)),
      timeElement(this.snapshot.time),
      ...labels(this.snapshot),
      make("nav", { class: "crumbs", "aria-label": "Path" }, link(this.address(this.at, { path: "" }), this.name.path === "" ? "root" : "root"), ...crumbs.flatMap(crumb)),
    ];
  }

  address(at, name) {
    return `#/files?${query({ at, ...(name.path_hex ? name : { path: name.path }) })}`;
  }

  async loadPage(signal) {
    const answer = await ask(`tree/${this.at}`, { ...pathFields(this.name), limit: 500, after: this.after }, signal);
    this.entries.push(...answer.entries.map((entry) => ({ ...entry, whole: joinName(this.name, entry) })));
    this.after = answer.after;
    this.total = answer.total;
    this.list.setCount(this.entries.length);
  }

  render(index) {
    const entry = this.entries[index];
    const target = entry.target ? make("span", { class: "quiet" }, `→ ${visible(entry.target.path)}`) : null;
    const name = link(this.address(this.at, entry.whole), visible(entry.path), { tabindex: -1, title: visible(entry.path) });
    const box = this.app.canChange && make("input", {
      type: "checkbox", tabindex: -1, "aria-label": `Select ${visible(entry.path)}`, checked: this.selection.has(selectionKey(entry.whole)),
      onchange: () => this.toggle(entry),
    });
    return [
      make("div", { class: "name" }, box, kindIcon(entry.kind), name, target),
      document.createTextNode(entry.kind === "file" ? size(entry.size) : ""),
      timeElement(entry.modified),
    ];
  }

  /** What is selected in this snapshot, by key: it stays while directories are opened. */
  get selection() {
    if (this.app.selection?.at !== this.at) this.app.selection = { at: this.at, names: new Map() };
    return this.app.selection.names;
  }

  toggle(entry) {
    const key = selectionKey(entry.whole);
    if (!this.selection.delete(key)) this.selection.set(key, entry.whole);
    this.showSelection();
  }

  showSelection() {
    const names = [...this.selection.values()];
    this.chosen.hidden = names.length === 0;
    if (names.length === 0) return;
    const paths = names.map((name) => visible(name.path)).join(", ");
    this.chosen.replaceChildren(
      make("span", { class: "text", title: paths, role: "status" }, `${number(names.length)} selected`),
      button("Restore selected…", () => restore(this.app, this.snapshot, names), { class: "first" }),
      button("Select none", () => this.clearSelection()),
    );
  }

  clearSelection() {
    this.selection.clear();
    this.showSelection();
    this.list.refresh();
    this.list.element.focus();
  }

  open(entry) {
    location.hash = this.address(this.at, entry.whole);
  }

  directoryDetails() {
    return [
      make("h2", {}, this.name.path === "" ? "root" : lastName(this.name.path)),
      quiet(count(this.total, "entry", "entries")),
      this.restoreButton(this.name) && make("div", { class: "actions" }, this.restoreButton(this.name)),
      make("h3", {}, "Versions of this directory"),
      this.versionList(this.name, false),
    ].filter(Boolean);
  }

  /** A button that restores a path as it is here; the root stands for everything. */
  restoreButton(name) {
    return this.app.canChange && button("Restore…", () => this.restore(name));
  }

  /** Restores what is selected, else the entry that is shown. */
  restoreChosen() {
    if (this.selection.size > 0) restore(this.app, this.snapshot, [...this.selection.values()]);
    else this.restore(this.entries[this.list.active]?.whole ?? this.name);
  }

  restore(name) {
    restore(this.app, this.snapshot, name.path === "" ? [] : [name]);
  }

  /** Shows what is known about an entry, or about the file that is open. */
  async select(entry) {
    const name = entry?.whole ?? this.name;
    const file = entry ?? this.entry.file;
    const isFile = file.kind === "file";
    this.side.replaceChildren(
      make("h2", {}, lastName(name.path)),
      make(
        "div", { class: "actions" },
        entry && link(this.address(this.at, name), file.kind === "directory" ? "Open" : "View", { class: "action first" }),
        isFile && button("Download", () => download(this.at, name).catch((error) => say(error.message))),
        this.restoreButton(name),
      ),
      make(
        "dl", { class: "facts" },
        ...(isFile ? fact("Size", `${size(file.size)} (${file.size.toLocaleString("en")} bytes)`) : fact("Kind", file.kind.replaceAll("_", " "))),
        ...(file.target ? fact("Target", visible(file.target.path)) : []),
        ...fact("Modified", timeElement(file.modified)),
        ...fact("Mode", make("span", { class: "mono" }, file.mode)),
        ...fact("Owner", `${file.uid}:${file.gid}`),
        ...(file.links > 1 && file.kind !== "directory" ? fact("Names", String(file.links)) : []),
        ...(file.holes > 0 ? fact("Holes", size(file.holes)) : []),
        ...(file.xattrs ?? []).flatMap((xattr) => fact("Attribute", `${visible(xattr.path)}, ${size(xattr.size)}`)),
      ),
      make("h3", {}, file.kind === "directory" ? "Versions of this directory" : "Versions of this file"),
      this.versionList(name, isFile || file.kind === "symlink"),
    );
  }

  /** The versions of a path; it fills itself. */
  versionList(name, canCompare) {
    const box = make("div", { "aria-live": "polite" }, quiet("Looking…"));
    this.versionsOf(name)
      .then(({ versions, more }) => {
        const item = (version, index) => this.versionItem(name, version, canCompare ? versions[index + 1] : undefined);
        const list = make("ol", { class: "versions" }, ...versions.map(item));
        box.replaceChildren(list, ...(more ? [quiet("There are older ones.")] : []));
      })
      .catch((error) => error.name !== "AbortError" && box.replaceChildren(quiet(error.message)));
    return box;
  }

  /** Versions up to the present of the worktree; up to this snapshot, if it is not an ancestor of that. */
  async versionsOf(name) {
    const from = async (id) => ask(`versions/${id}`, { ...pathFields(name), limit: 100 }, this.app.signal);
    const head = this.app.head();
    const found = head ? await from(head) : { versions: [] };
    return found.versions.some((version) => this.isCurrent(version)) || this.at === head ? found : from(this.at);
  }

  isCurrent(version) {
    return version.first_time <= this.snapshot.time && this.snapshot.time <= version.last_time;
  }

  versionItem(name, version, older) {
    const isCurrent = this.isCurrent(version);
    const detail = [version.kind === "file" ? size(version.size) : version.kind, count(version.count, "snapshot")].join(", ");
    const fields = older && { a: older.last, b: version.first, open: name.path, ...(name.path_hex ? name : { path: name.path }) };
    return make(
      "li", { class: isCurrent ? "now" : "", "aria-current": isCurrent ? "true" : undefined },
      make("div", { class: "what" },
        link(this.address(isCurrent ? this.at : version.last, name), timeElement(version.first_time), { title: `since ${shortId(version.first)}` }),
        make("span", {}, detail)),
      fields && link(`#/compare?${query(fields)}`, "Compare", { title: "With the version before" }),
    );
  }

  /** Goes to the version before or after. */
  async step(by) {
    try {
      const { versions } = await this.versionsOf(this.name);
      const next = versions[versions.findIndex((version) => this.isCurrent(version)) + by];
      if (next && versions.some((version) => this.isCurrent(version))) location.hash = this.address(next.last, this.name);
      else say(by > 0 ? "There is no version before this one." : "There is no version after this one.");
    } catch (error) {
      if (error.name !== "AbortError") say(error.message);
    }
  }

  onKey(key) {
    if (key === "[") this.step(1);
    else if (key === "]") this.step(-1);
    else if (!this.app.canChange || !this.snapshot) return false;
    else if (key === "r") this.restoreChosen();
    else if (key === "x" && this.list.active >= 0) {
      this.toggle(this.entries[this.list.active]);
      this.list.refresh();
    } else return false;
    return true;
  }

  /** Where Esc leads. */
  up() {
    const above = trail(this.name).at(-2)?.name ?? { path: "" };
    return this.name.path === "" ? `#/history?${query({ at: this.at })}` : this.address(this.at, above);
  }

  close() {
    this.list.close();
    this.viewer?.close();
  }
}
