// Names in all snapshots, also those that were deleted: where each was first and last.

import { restore } from "./actions.js";
import { ask, query } from "./api.js";
import { button, emptyState, fact, link, make, snapshotLink } from "./dom.js";
import { count, lastName, number, size, timeElement, visible } from "./format.js";
import { VirtualList, isNarrow } from "./list.js";

const rowHeight = () => (isNarrow() ? 50 : 34);

/** What is searched for: a part of a name, if there is no wildcard and no slash in it. */
function toPattern(text) {
  return /[*?[\]\\/]/.test(text) ? text : `*${text}*`;
}

/** Searches for names. */
export class SearchView {
  constructor(app, parameters) {
    this.app = app;
    this.parameters = parameters;
    this.rows = [];
    this.list = new VirtualList({
      label: "Names that were found",
      columns: ["name", "num", "when right", "state"],
      rowHeight,
      render: (index) => this.render(index),
      onActive: (index) => this.select(this.rows[index]),
      onOpen: (index) => (location.hash = this.address(this.rows[index])),
    });
    this.side = make("aside", { class: "pane side", "aria-label": "The name" });
    this.pane = make("div", { class: "pane" });
    this.total = make("span", { class: "quiet", role: "status" });
    this.text = make("input", {
      type: "search", id: "filter", placeholder: "Name, *.pdf or docs/**/*.pdf", value: parameters.q ?? "", "aria-label": "Search for names",
      onchange: () => this.search({ q: this.text.value.trim() }),
    });
    const toggle = (name, text) => make("label", { class: "check" }, make("input", { type: "checkbox", checked: parameters[name] === "1", onchange: (event) => this.search({ [name]: event.target.checked ? "1" : "" }) }), text);
    this.element = make(
      "div", { class: "files found stack fill" },
      make("h1", { class: "hidden" }, "Search"),
      make("div", { class: "tools" }, this.text, toggle("deleted", "deleted only"), toggle("exact", "match case"), make("span", { class: "grow" }), this.total),
      make("div", { class: "panes fill" }, this.pane, this.side),
    );
  }

  search(change) {
    this.app.go("search", { ...this.parameters, q: this.text.value.trim(), ...change });
  }

  async load(signal) {
    const { q, deleted, exact } = this.parameters;
    if (!q) {
      this.pane.replaceChildren(emptyState("Search for a name", "In all snapshots: what was deleted is found, too."));
      this.text.focus();
      return;
    }
    this.pane.replaceChildren(make("p", { class: "empty", role: "status" }, "Searching…"));
    const upTo = this.app.worktree === undefined ? undefined : this.app.head();
    const answer = await ask("find", { pattern: toPattern(q), up_to: upTo, deleted: deleted && 1, ignore_case: exact ? undefined : 1 }, signal);
    this.rows = answer.found;
    this.total.textContent = count(answer.total, "name") + (answer.more ? `; the first ${number(this.rows.length)} are shown` : "");
    if (this.rows.length === 0) {
      this.pane.replaceChildren(emptyState("Nothing found", "No snapshot has such a name."));
      return;
    }
    this.pane.replaceChildren(this.list.element);
    this.list.setCount(this.rows.length);
    this.list.activate(0);
  }

  address(row) {
    const name = row.path_hex ? { path_hex: row.path_hex } : {};
    return `#/files?${query({ at: row.last.id, path: row.path, ...name })}`;
  }

  render(index) {
    const row = this.rows[index];
    return [
      make("div", { class: "name" }, link(this.address(row), visible(row.path) + (row.kind === "directory" ? "/" : ""), { tabindex: -1, title: visible(row.path) })),
      document.createTextNode(row.kind === "file" ? size(row.size) : ""),
      timeElement(row.last.time),
      row.current ? make("span", { class: "quiet" }, "is there") : make("span", { class: "deleted" }, "deleted"),
    ];
  }

  select(row) {
    const name = { path: row.path, ...(row.path_hex && { path_hex: row.path_hex }) };
    const moment = (end) => [timeElement(end.time), " in ", snapshotLink(end.id)];
    this.side.replaceChildren(
      make("h2", {}, lastName(row.path)),
      make("div", { class: "actions" },
        link(this.address(row), row.kind === "directory" ? "Open" : "View", { class: "action first" }),
        !row.path_hex && link(`#/history?${query({ path: row.path })}`, "What changed it", { class: "action" }),
        this.app.canChange && button("Restore…", () => this.restore(row, name))),
      make("dl", { class: "facts" },
        ...fact("Path", visible(row.path)),
        ...(row.kind === "file" ? fact("Size", size(row.size)) : fact("Kind", row.kind.replaceAll("_", " "))),
        ...fact("Modified", timeElement(row.modified)),
        ...fact("First", ...moment(row.first)),
        ...fact("Last", ...moment(row.last)),
        ...fact("Worktree", visible(row.worktree)),
        ...fact("State", row.current ? "in the newest snapshot" : "deleted since")),
    );
  }

  async restore(row, name) {
    const { snapshot } = await ask(`snapshots/${row.last.id}`, {}, this.app.signal);
    restore(this.app, snapshot, [name]);
  }

  onKey(key) {
    const row = this.rows[this.list.active];
    if (key !== "r" || !row || !this.app.canChange) return false;
    this.restore(row, { path: row.path, ...(row.path_hex && { path_hex: row.path_hex }) });
    return true;
  }

  close() {
    this.list.close();
  }
}
