// The page: one view at a time, each state with an address of its own.

import { ask, listen, query, takeToken } from "./api.js";
import { decide } from "./actions.js";
import { button, emptyState, make, say } from "./dom.js";
import { count, visible } from "./format.js";
import { CompareView } from "./compare.js";
import { FilesView } from "./files.js";
import { HealthView } from "./health.js";
import { HistoryView } from "./history.js";
import { LiveView } from "./live.js";
import { SearchView } from "./search.js";

const VIEWS = { history: HistoryView, files: FilesView, compare: CompareView, search: SearchView, health: HealthView, live: LiveView };
const ALL = "";
/** How long the page waits before it asks again to be told of changes, milliseconds: at first, and at most. */
const RETRY = 500;
const RETRY_MAX = 15000;

/** What all views share. */
class App {
  constructor() {
    this.main = document.getElementById("main");
    this.select = document.getElementById("worktree");
    this.requests = document.getElementById("requests");
  }

  async start() {
    this.chooseTheme(localStorage.getItem("vellum-theme"));
    document.getElementById("theme").addEventListener("click", () => this.nextTheme());
    document.getElementById("keys").addEventListener("click", () => this.showKeys());
    document.addEventListener("keydown", (event) => this.onKey(event));
    if (!takeToken()) {
      this.main.replaceChildren(emptyState("Open the whole address", "'vellum web' prints an address with a token in it. Without the token nothing is shown."));
      return;
    }
    addEventListener("hashchange", () => this.show());
    this.select.addEventListener("change", () => {
      sessionStorage.setItem("vellum-worktree", this.select.value);
      this.worktreeChoice = this.select.value;
      const [view] = this.parse();
      if (view === "history") this.show();
      else this.go(view, {});
    });
    try {
      await this.loadVolume();
    } catch (error) {
      this.main.replaceChildren(emptyState("The volume cannot be shown", error.message));
      return;
    }
    // The state of the volume is known: what changes from here on is noticed by another one.
    this.follow();
    document.addEventListener("visibilitychange", () => this.follow());
    await this.show();
  }

  /** Listens as long as the tab is seen: a browser has six connections to a server, for all of its tabs. */
  async follow() {
    this.following?.abort();
    if (document.hidden) return;
    this.following = new AbortController();
    const { signal } = this.following;
    for (let wait = RETRY; !signal.aborted; wait = Math.min(wait * 2, RETRY_MAX)) {
      try {
        await listen({ live: this.view?.wantsFigures ? 1 : 0 }, signal, (kind, value) => {
          wait = RETRY;
          this.hear(kind, value);
        });
      } catch (error) {
        if (signal.aborted) return;
        // Too many pages listen: it may be this one's turn later. Everything else is told to the person.
        if (error.status !== 503) say(error.status === undefined ? "The connection broke off." : error.message);
        if (error.status === 401) return;
      }
      await new Promise((resolve) => setTimeout(resolve, wait));
    }
  }

  /** What is told without a question. */
  hear(kind, value) {
    if (kind === "approvals") this.showRequests(value);
    else if (kind !== "changed") this.view?.hear?.(kind, value);
    // What is shown is of the state that the volume was asked in, or later.
    else if (JSON.stringify(value) !== JSON.stringify(this.volume.state)) this.refresh();
  }

  /** Shows what has changed, and leaves everything else as it is: the place in lists, dialogs, the focus. */
  async refresh() {
    this.isStale = true;
    if (this.isRefreshing) return;
    this.isRefreshing = true;
    while (this.isStale) {
      this.isStale = false;
      this.knownPins = undefined;
      try {
        await this.loadVolume();
        await this.view?.refresh?.(this.signal);
      } catch (error) {
        if (error.name !== "AbortError") say(error.message);
      }
    }
    this.isRefreshing = false;
  }

  /** Whether the page may change anything. */
  get canChange() {
    return !this.volume.capabilities.read_only;
  }

  /** Looks for what agents ask for, which is shown above everything else. */
  async lookForRequests() {
    this.showRequests(await ask("approvals").catch(() => ({ requests: [] })));
  }

  showRequests({ requests }) {
    if (!this.canChange) return;
    const row = (request) => make("div", {}, make("span", {}, `${visible(request.client)} asks to restore ${count(request.step_count, "path")}`), button("Look at it", () => decide(this, request)));
    this.requests.replaceChildren(...requests.map(row));
  }

  /** The pins of snapshots, by id. */
  async pins() {
    this.knownPins ??= ask("pins").then(({ snapshots }) => new Map((snapshots ?? []).map((pin) => [pin.snapshot, pin])));
    return this.knownPins;
  }

  /** After something was changed. */
  async reload() {
    this.knownPins = undefined;
    try {
      await this.loadVolume();
    } catch (error) {
      say(error.message);
    }
    await this.show();
  }

  async loadVolume() {
    this.volume = await ask("volume");
    const names = this.volume.worktrees.map((worktree) => worktree.worktree);
    const stored = sessionStorage.getItem("vellum-worktree");
    this.worktreeChoice = stored !== null && (stored === ALL || names.includes(stored)) ? stored : this.volume.worktree;
    const known = JSON.stringify([names, this.worktreeChoice]);
    // Not made anew each time: it may be open.
    if (known === this.knownNames) return;
    this.knownNames = known;
    const option = (value, text) => make("option", { value, selected: value === this.worktreeChoice }, text);
    this.select.replaceChildren(...names.map((name) => option(name, visible(name))), option(ALL, "all snapshots"));
    document.title = `${this.volume.worktree} – Vellum`;
  }

  /** The chosen worktree; undefined: all snapshots. */
  get worktree() {
    return this.worktreeChoice === ALL ? undefined : this.worktreeChoice;
  }

  /** Lists all snapshots until a worktree is chosen. */
  chooseAll() {
    this.worktreeChoice = ALL;
    this.select.value = ALL;
  }

  /** Where the chosen worktree stands. */
  head() {
    const name = this.worktree ?? this.volume.worktree;
    return this.volume.worktrees.find((worktree) => worktree.worktree === name)?.head ?? undefined;
  }

  /** Stops what is asked for when the view is left. */
  get signal() {
    return this.leaving.signal;
  }

  parse() {
    const [, view = "history", fields = ""] = /^#\/([a-z]+)(?:\?(.*))?$/.exec(location.hash) ?? [];
    return [view in VIEWS ? view : "history", Object.fromEntries(new URLSearchParams(fields.replaceAll("+", "%2B")))];
  }

  go(view, parameters) {
    const fields = query(parameters);
    location.hash = fields ? `#/${view}?${fields}` : `#/${view}`;
  }

  /** Puts a state into the address without leaving the view. */
  note(view, parameters) {
    history.replaceState(null, "", `#/${view}?${query(parameters)}`);
  }

  async show() {
    const [name, parameters] = this.parse();
    this.leaving?.abort();
    this.view?.close();
    this.leaving = new AbortController();
    const { signal } = this.leaving;
    for (const item of document.querySelectorAll("nav [data-view]")) {
      if (item.dataset.view === name) item.setAttribute("aria-current", "page");
      else item.removeAttribute("aria-current");
    }
    const view = new VIEWS[name](this, parameters);
    const hadFigures = Boolean(this.view?.wantsFigures);
    this.view = view;
    if (hadFigures !== Boolean(view.wantsFigures)) this.follow();
    this.main.replaceChildren(view.element);
    try {
      await view.load(signal);
      const typing = document.activeElement?.matches("main input");
      if (this.view === view && !typing) (view.list?.element ?? view.element).focus({ preventScroll: true });
    } catch (error) {
      if (error.name === "AbortError") return;
      const title = error.status === 404 ? "This is not there any more" : "This cannot be shown";
      if (this.view === view) this.main.replaceChildren(emptyState(title, error.message));
    }
    this.main.dataset.ready = name;
  }

  chooseTheme(theme) {
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
  }

  nextTheme() {
    const now = document.documentElement.dataset.theme ?? "system";
    const next = { system: "light", light: "dark", dark: "system" }[now];
    localStorage.setItem("vellum-theme", next);
    this.chooseTheme(next);
    say(next === "system" ? "Colours as the system has them" : `${next === "dark" ? "Dark" : "Light"} colours`);
  }

  showKeys() {
    document.getElementById("help").showModal();
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const isTyping = event.target.matches?.("input:not([type=checkbox]), select, textarea");
    if (isTyping) {
      if (event.key === "Escape") this.view?.list?.element.focus();
      return;
    }
    if (!this.runKey(event.key)) return;
    event.preventDefault();
  }

  runKey(key) {
    const places = { 1: "history", 2: "files", 3: "compare", 4: "search", 5: "health", 6: "live" };
    const list = this.view?.list;
    if (key === "?") this.showKeys();
    else if (key === "/" && document.getElementById("filter")) document.getElementById("filter").focus();
    else if (key === "j" && list) list.move(1);
    else if (key === "k" && list) list.move(-1);
    else if (key in places) this.go(places[key], {});
    else if (key === "Escape" && this.view?.up) location.hash = this.view.up();
    else if (key === "Escape") history.back();
    else return this.view?.onKey(key) ?? false;
    return true;
  }
}

new App().start();
