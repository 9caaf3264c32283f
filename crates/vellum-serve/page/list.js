// A list of any length, of which only what is seen is in the document.

import { make, say } from "./dom.js";

/** Taller elements are cut off by browsers: beyond it, scrolling moves by more than it shows. */
const HEIGHT_MAX = 15000000;
/** Rows above and below what is seen. */
const SPARE = 6;

/** A grid with one active row, which keys move. */
export class VirtualList {
  /**
   * @param {{ label: string, rowHeight: () => number, columns: string[], render: (index: number) => Node[],
   *   onActive?: (index: number) => void, onOpen?: (index: number) => void, onNear?: (last: number) => void }} options
   */
  constructor(options) {
    this.options = options;
    this.count = 0;
    this.active = -1;
    this.rows = [];
    this.canvas = make("div", { class: "canvas", role: "presentation" });
    this.element = make(
      "div",
      { class: "list", role: "grid", tabindex: "0", "aria-label": options.label, "aria-rowcount": "0" },
      this.canvas,
    );
    this.element.addEventListener("scroll", () => this.paint(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.watcher = new ResizeObserver(() => this.refresh());
    this.watcher.observe(this.element);
  }

  /** Says how many rows there are. */
  setCount(count) {
    this.count = count;
    this.element.setAttribute("aria-rowcount", String(count));
    if (this.active >= count) this.active = -1;
    this.refresh();
  }

  /** Draws all rows anew. */
  refresh() {
    this.rowHeight = this.options.rowHeight();
    this.total = this.count * this.rowHeight;
    this.canvas.style.height = `${Math.min(this.total, HEIGHT_MAX)}px`;
    for (const row of this.rows) row.index = -1;
    this.paint();
  }

  /** The first pixel of the whole list that is seen. */
  top() {
    const room = this.element.clientHeight;
    const span = Math.min(this.total, HEIGHT_MAX) - room;
    return this.total <= HEIGHT_MAX || span <= 0 ? this.element.scrollTop : (this.element.scrollTop / span) * (this.total - room);
  }

  paint() {
    const height = this.rowHeight;
    const top = this.top();
    const first = Math.max(0, Math.floor(top / height) - SPARE);
    const last = Math.min(this.count, Math.ceil((top + this.element.clientHeight) / height) + SPARE);
    while (this.rows.length < last - first) this.addRow();
    const shift = this.element.scrollTop - top;
    for (const [slot, row] of this.rows.entries()) {
      // A row of the document shows the same row of the list as long as that is seen.
      const pool = this.rows.length;
      const index = first + ((((slot - first) % pool) + pool) % pool);
      row.element.hidden = index >= last;
      if (index >= last) row.index = -1;
      else this.place(row, index, shift);
    }
    this.options.onNear?.(last);
  }

  addRow() {
    const element = make("div", { class: "row", role: "row" });
    const row = { element, index: -1 };
    element.addEventListener("click", (event) => {
      if (event.target.closest("a, button, input")) return;
      this.activate(row.index);
    });
    element.addEventListener("dblclick", () => this.options.onOpen?.(row.index));
    this.canvas.append(element);
    this.rows.push(row);
  }

  place(row, index, shift) {
    row.element.style.transform = `translateY(${index * this.rowHeight + shift}px)`;
    row.element.style.height = `${this.rowHeight}px`;
    if (row.index !== index) {
      row.index = index;
      row.element.id = `row-${index}`;
      row.element.setAttribute("aria-rowindex", String(index + 1));
      const cells = this.options.render(index);
      row.element.replaceChildren(
        ...cells.map((cell, column) => make("div", { role: "gridcell", class: this.options.columns[column] }, cell)),
      );
    }
    row.element.setAttribute("aria-selected", String(index === this.active));
  }

  /** Makes a row the active one, and shows it. */
  activate(index, tells = true) {
    if (index < 0 || index >= this.count) return;
    this.active = index;
    this.element.setAttribute("aria-activedescendant", `row-${index}`);
    this.show(index);
    this.paint();
    if (tells) this.options.onActive?.(index);
  }

  show(index) {
    const start = index * this.rowHeight;
    const room = this.element.clientHeight;
    const top = this.top();
    if (start >= top && start + this.rowHeight <= top + room) return;
    const wanted = start < top ? start : start + this.rowHeight - room;
    const span = Math.min(this.total, HEIGHT_MAX) - room;
    this.element.scrollTop = this.total <= HEIGHT_MAX ? wanted : (wanted / (this.total - room)) * span;
  }

  /** Moves the active row. */
  move(by) {
    if (this.count === 0) return;
    // Without an active row, -1: the first row is the next one, and the last one is as far away as there are rows.
    this.activate(Math.max(0, Math.min(this.count - 1, this.active + by)));
  }

  /** Opens the active row. */
  open() {
    if (this.active >= 0) this.options.onOpen?.(this.active);
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight) - 1);
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -this.count, End: this.count };
    if (event.key in steps) this.move(steps[event.key]);
    else if (event.key === "Enter" && event.target === this.element) this.open();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Ends it. */
  close() {
    this.watcher.disconnect();
  }
}

/** Whether panes stand one below the other. */
export function isNarrow() {
  return matchMedia("(max-width: 700px)").matches;
}

/** Loads the next page of a view's list when its end is near. */
export async function loadNext(view, last) {
  if (!view.after || view.isLoading || last < view.list.count - 100) return;
  view.isLoading = true;
  try {
    await view.loadPage(view.app.signal);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message);
  } finally {
    view.isLoading = false;
  }
}
