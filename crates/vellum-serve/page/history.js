// The history: every snapshot in one list, with the lines of descent beside it.

import * as actions from "./actions.js";
import { ask, query } from "./api.js";
import { button, emptyState, fact, link, make, say, snapshotLink } from "./dom.js";
import { count, moment, number, parseTime, shortId, size, timeElement, visible } from "./format.js";
import { drawRow, graphWidth } from "./graph.js";
import { VirtualList, isNarrow, loadNext } from "./list.js";

const rowHeight = () => (isNarrow() ? 58 : 36);

/** A row of `history/rows`, with names for its fields. */
function fromShort([id, time, column, edges, isSafety, changed, note, tags, heads]) {
  return { id, time, column, edges, isSafety, changed, note, tags, heads, isHead: heads.length > 0 };
}

/** The same of a whole snapshot, which a filtered list has: without lines. */
function fromSnapshot(snapshot) {
  const note = snapshot.note.split("\n").find((line) => line.trim() !== "") ?? "";
  const isSafety = snapshot.origin === "safety";
  const { id, time, changed, tags, heads } = snapshot;
  return { id, time, column: 0, edges: [], isSafety, changed, note, tags, heads, isHead: heads.length > 0 };
}

/** Tags and worktrees of a snapshot. */
export function labels(snapshot) {
  const head = (name) => make("span", { class: "label head", title: `the worktree ${visible(name)} stands here` }, visible(name));
  const tag = (name) => make("span", { class: "label tag", title: `tag ${visible(name)}` }, visible(name));
  const shown = [...snapshot.heads.map(head), ...snapshot.tags.slice(0, 20).map(tag)];
  if (snapshot.tags.length > 20) shown.push(make("span", { class: "label" }, `${snapshot.tags.length - 20} more`));
  return shown;
}

/** What a snapshot is called where there is no room: its note, or when it was made. */
export function title(snapshot) {
  const line = snapshot.note.split("\n").find((text) => text.trim() !== "");
  if (line) return visible(line.trim());
  return snapshot.origin === "safety" || snapshot.isSafety ? "before a restore" : `snapshot of ${moment(parseTime(snapshot.time))}`;
}

/** Shows the history. */
export class HistoryView {
  constructor(app, parameters) {
    this.app = app;
    this.parameters = parameters;
    this.rows = [];
    this.list = new VirtualList({
      label: "Snapshots, newest first",
      columns: ["graph", "note", "num", "id mono quiet", "when"],
      rowHeight,
      render: (index) => this.render(index),
      onActive: (index) => this.select(index),
      onOpen: (index) => this.app.go("files", { at: this.rows[index].id }),
      onNear: (last) => loadNext(this, last),
    });
    this.side = make("aside", { class: "pane side", "aria-label": "The snapshot" });
    this.filter = make("input", {
      type: "search", id: "filter", placeholder: "Filter notes", value: parameters.grep ?? "", "aria-label": "Filter notes",
      onchange: () => this.setFilter({ grep: this.filter.value }),
    });
    this.path = make("input", {
      type: "search", placeholder: "Changed this path", value: parameters.path ?? "", "aria-label": "Only snapshots that changed this path",
      onchange: () => this.setFilter({ path: this.path.value.replace(/^\/+|\/+$/g, "") }),
    });
    this.total = make("span", { class: "quiet", role: "status" });
    this.element = make(
      "div", { class: "history stack fill" },
      make("h1", { class: "hidden" }, "History"),
      make("div", { class: "tools" }, this.filter, this.path, make("span", { class: "grow" }), this.total),
      make("div", { class: "panes fill" }, make("div", { class: "pane" }, this.list.element), this.side),
    );
  }

  setFilter(change) {
    const { grep, path } = { ...this.parameters, ...change };
    this.app.go("history", { grep, path });
  }

  async load(signal) {
    const { grep, path, tag } = this.parameters;
    const worktree = this.app.worktree;
    this.isFiltered = Boolean(grep || path || tag);
    if (this.isFiltered) {
      this.question = { worktree, grep, path, tag, limit: 200 };
      await this.loadPage(signal);
    } else {
      await this.loadRows(worktree, signal);
      // A safety snapshot is no ancestor of what was restored: the list of the worktree does not have it.
      if (worktree !== undefined && this.parameters.at && !this.rows.some((row) => row.id === this.parameters.at)) {
        this.app.chooseAll();
        await this.loadRows(undefined, signal);
      }
    }
    this.width = graphWidth(this.rows);
    this.list.setCount(this.rows.length);
    if (this.rows.length === 0) {
      const text = this.isFiltered ? "No snapshot matches the filter." : "'vellum snapshot' makes the first one.";
      this.side.replaceChildren(emptyState(this.isFiltered ? "Nothing found" : "No snapshot yet", text));
      return;
    }
    const wanted = this.rows.findIndex((row) => row.id === this.parameters.at);
    this.list.activate(Math.max(0, wanted));
  }

  /** Shows what is new above, with the same rows in sight and the same one chosen. */
  async refresh(signal) {
    // A filtered list is a part of the history, asked for by page: what is new in it is seen when it is asked for again.
    if (this.isFiltered) return;
    if (this.rows.length === 0) return this.app.show();
    const { active } = this.list;
    const { id } = this.rows[active] ?? {};
    const old = this.rows[0]?.id;
    await this.loadRows(this.app.worktree, signal);
    this.width = graphWidth(this.rows);
    const added = this.rows.findIndex((row) => row.id === old);
    this.list.setCount(this.rows.length);
    // At the top, what is new is what somebody wants to see.
    if (added > 0 && this.list.element.scrollTop > 0) this.list.element.scrollTop += added * rowHeight();
    this.list.active = this.rows.findIndex((row) => row.id === id);
    this.list.refresh();
    const hasFocus = this.side.contains(document.activeElement) && document.activeElement !== this.side;
    if (this.list.active >= 0 && !hasFocus) await this.select(this.list.active);
  }

  async loadRows(worktree, signal) {
    const answer = await ask("history/rows", { worktree }, signal);
    this.rows = answer.rows.map(fromShort);
    this.total.textContent = (answer.more ? "more than " : "") + count(this.rows.length, "snapshot");
  }

  async loadPage(signal) {
    const answer = await ask("history", { ...this.question, after: this.after }, signal);
    this.rows.push(...answer.snapshots.map(fromSnapshot));
    this.after = answer.after;
    this.total.textContent = count(this.rows.length, "snapshot") + (answer.more ? " and more" : "");
    this.list.setCount(this.rows.length);
  }

  render(index) {
    const row = this.rows[index];
    const note = visible(row.note) || (row.isSafety ? "before a restore" : "");
    return [
      this.isFiltered ? "" : drawRow(row, this.width, rowHeight()),
      make("div", { class: "note" }, make("span", { class: `text${row.isSafety && !row.note ? " quiet" : ""}` }, note), ...labels(row)),
      row.changed > 0 ? `${number(row.changed)} changed` : "",
      shortId(row.id),
      timeElement(row.time),
    ].map((cell) => (cell instanceof Node ? cell : document.createTextNode(cell)));
  }

  async select(index) {
    const row = this.rows[index];
    this.app.note("history", { ...this.parameters, at: row.id });
    try {
      const { snapshot } = await ask(`snapshots/${row.id}`, {}, this.app.signal);
      const pins = await this.app.pins().catch(() => new Map());
      if (this.rows[this.list.active] !== row) return;
      this.snapshot = snapshot;
      this.pin = pins.get(snapshot.id);
      this.side.replaceChildren(...this.details(snapshot));
    } catch (error) {
      if (error.name !== "AbortError") this.side.replaceChildren(emptyState("This snapshot cannot be shown", error.message));
    }
  }

  details(snapshot) {
    const [first, ...rest] = snapshot.note.trim().split("\n");
    const parent = snapshot.parents[0];
    const head = this.app.head();
    const compare = (a, text) => link(`#/compare?${query({ a, b: snapshot.id })}`, text, { class: "action" });
    const properties = Object.entries(snapshot.properties ?? {}).flatMap(([name, value]) => fact(visible(name), visible(value)));
    return [
      make("h2", {}, first ? visible(first) : title(snapshot)),
      rest.join("\n").trim() && make("p", { class: "body-note" }, visible(rest.join("\n").trim()).replaceAll("\\u{a}", "\n")),
      (snapshot.tags.length > 0 || snapshot.heads.length > 0) && make("div", { class: "labels" }, ...labels(snapshot)),
      make(
        "div", { class: "actions" },
        link(`#/files?${query({ at: snapshot.id })}`, "Open files", { class: "action first" }),
        parent && compare(parent, "Compare with parent"),
        head && head !== snapshot.id && link(`#/compare?${query({ a: snapshot.id, b: head })}`, "Compare with now", { class: "action" }),
        button(this.app.marked === snapshot.id ? "Marked" : "Mark to compare", () => this.mark(snapshot.id), { "aria-pressed": String(this.app.marked === snapshot.id) }),
      ),
      this.app.canChange && make(
        "div", { class: "actions", role: "group", "aria-label": "Change" },
        button("Restore…", () => actions.restore(this.app, snapshot)),
        button("Fork…", () => actions.fork(this.app, snapshot)),
        button("Tag…", () => actions.addTag(this.app, snapshot)),
        button("Describe…", () => actions.describe(this.app, snapshot)),
        button("Forget…", () => actions.forget(this.app, snapshot)),
        this.pin ? button("Unpin…", () => actions.unpin(this.app, snapshot)) : button("Pin…", () => actions.pin(this.app, snapshot)),
      ),
      make(
        "dl", { class: "facts" },
        ...(this.pin ? fact("Pinned", ...this.pinFacts()) : []),
        ...(this.app.canChange ? snapshot.tags.slice(0, 20).flatMap((tag) => fact("Tag", visible(tag), " ", button("Remove…", () => actions.removeTag(this.app, snapshot, tag), { class: "small", "aria-label": `Remove the tag ${visible(tag)}` }))) : []),
        ...fact("Made", timeElement(snapshot.time)),
        ...fact("By", `${visible(snapshot.author)} on ${visible(snapshot.host)}`),
        ...fact("Worktree", visible(snapshot.worktree)),
        ...fact("Holds", `${count(snapshot.files, "file")}, ${size(snapshot.bytes)}`),
        ...fact("Changed", `${number(snapshot.changed)} against its parent`),
        ...fact("Stored", `${size(snapshot.stored)} added`),
        ...properties,
        ...fact("Id", make("span", { class: "mono" }, snapshot.id)),
        ...snapshot.parents.flatMap((id) => fact("Parent", snapshotLink(id))),
      ),
    ].filter(Boolean);
  }

  pinFacts() {
    const { reason, author, host, until } = this.pin;
    const end = until ? [" until ", timeElement(until)] : [];
    return [`by ${visible(author)} on ${visible(host)}`, ...end, reason ? `: ${visible(reason)}` : ""];
  }

  /** Marks a snapshot; the second one is compared with the first. */
  mark(id) {
    const marked = this.app.marked;
    if (marked && marked !== id) {
      this.app.marked = undefined;
      this.app.go("compare", { a: marked, b: id });
      return;
    }
    this.app.marked = marked === id ? undefined : id;
    say(this.app.marked ? "Marked. Mark another snapshot to compare both." : "The mark is removed.");
    this.select(this.list.active);
  }

  onKey(key) {
    if (key === "c" && this.list.active >= 0) this.mark(this.rows[this.list.active].id);
    else return this.runAction(key);
    return true;
  }

  runAction(key) {
    const keys = { r: actions.restore, f: actions.fork, t: actions.addTag, e: actions.describe, p: this.pin ? actions.unpin : actions.pin };
    const isShown = this.snapshot && this.snapshot.id === this.rows[this.list.active]?.id;
    if (!(key in keys) || !this.app.canChange || !isShown) return false;
    keys[key](this.app, this.snapshot);
    return true;
  }

  close() {
    this.list.close();
  }
}
