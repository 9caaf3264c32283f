// What the page changes: a dialog shows what would be done, and only a confirming click has it done.

import { pathFields, post } from "./api.js";
import { button, fact, make, quiet, say, snapshotLink } from "./dom.js";
import { count, failure, lastName, number, shortId, size, timeElement, visible } from "./format.js";
import { title } from "./history.js";

/** Rows of a list that are shown; the others are counted. */
const SHOWN = 200;
const ACTIONS = { create: ["A", "added"], replace: ["M", "modified"], change: ["M", "modified"], delete: ["D", "deleted"] };

/** A paragraph. */
function text(...children) {
  return make("p", {}, ...children);
}

/** A paragraph that screen readers tell of. */
function told(...children) {
  return make("p", { role: "status" }, ...children);
}

/** A line that the browser neither completes nor corrects. */
function textInput(id, properties = {}) {
  return make("input", { id, autocomplete: "off", spellcheck: "false", ...properties });
}

/** A dialog that asks, previews, does, and reports: one after another. */
class ActionDialog {
  constructor(app, heading) {
    this.app = app;
    this.leaving = new AbortController();
    this.body = make("div", { class: "ask" });
    this.failure = make("div", { class: "failure", role: "alert" });
    this.buttons = make("div", { class: "actions" });
    this.heading = make("h2", { id: "action-title", tabindex: "-1" }, heading);
    this.element = make("dialog", { class: "action-dialog", "aria-labelledby": "action-title", onclose: () => this.end() }, this.heading, this.body, this.failure, this.buttons);
    document.body.append(this.element);
    this.element.showModal();
    this.heading.focus();
  }

  /** Shows one step: what stands in it, and its buttons. */
  step(nodes, ...buttons) {
    this.failure.replaceChildren();
    this.body.replaceChildren(...nodes.filter(Boolean));
    this.buttons.replaceChildren(...buttons.filter(Boolean));
  }

  wait(text) {
    this.step([make("p", { class: "quiet", role: "status" }, text)], this.cancel());
  }

  cancel(text = "Cancel") {
    return button(text, () => this.element.close());
  }

  fail(error) {
    if (error.name === "AbortError") return;
    this.failure.replaceChildren(...failure(error));
  }

  /** Asks what would be done, and shows it with a button that has it done. `describe` makes nodes of the plan; `ask` leads back to the questions. */
  async preview(kind, body, { describe, confirm, word, report, ask }) {
    this.wait("Looking at what would change…");
    let plan;
    try {
      plan = await post(`plans/${kind}`, body, this.leaving.signal);
    } catch (error) {
      if (ask) ask();
      else this.step([], this.cancel("Close"));
      this.fail(error);
      return;
    }
    if (this.leaving.signal.aborted) return;
    const isNothing = [plan.step_count, plan.forgotten_count, plan.pack_count].includes(0);
    const run = button(confirm, () => this.run(plan.plan, confirm, report), { class: "first", disabled: Boolean(word) });
    const typed = word && textInput("word", { oninput: () => (run.disabled = typed.value.trim() !== word) });
    if (typed) typed.addEventListener("keydown", (event) => event.key === "Enter" && !run.disabled && run.click());
    const label = typed && !isNothing && make("label", { class: "field" }, make("span", {}, "Type ", make("kbd", {}, word), " to confirm"), typed);
    this.step([...describe(plan), label], this.cancel(isNothing ? "Close" : "Cancel"), !isNothing && run);
    (label ? typed : this.heading).focus();
  }

  async run(id, confirm, report) {
    const shown = [...this.body.childNodes];
    this.step([told(`${confirm}: this goes on if the page is closed.`)]);
    try {
      // Without a signal: what is confirmed is done, also if the dialog is closed.
      const { result } = await post(`plans/${id}/run`);
      this.isDone = true;
      // What was selected is restored, or is not what it was.
      this.app.selection = undefined;
      this.step([...report(result), problems(result.problems)], this.cancel("Close"));
      this.buttons.firstChild.focus();
    } catch (error) {
      // A plan is good for once: what is shown is only for reading now.
      this.step(shown.filter((node) => node.tagName !== "LABEL"), this.cancel("Close"));
      this.fail(error);
    }
  }

  end() {
    this.leaving.abort();
    this.element.remove();
    if (this.isDone) this.app.reload();
    else this.app.view?.list?.element.focus({ preventScroll: true });
  }
}

function problems(list) {
  if (!list?.length) return null;
  const row = (problem) => make("li", {}, `${visible(problem.path ?? "")}: ${visible(problem.reason ?? problem.message ?? "")}`);
  return make("div", {}, make("h3", {}, count(list.length, "problem")), make("ul", { class: "paths" }, ...list.slice(0, SHOWN).map(row)));
}

function pathList(label, rows, total) {
  if (total === 0) return null;
  const more = total - Math.min(rows.length, SHOWN);
  return make("div", { class: "path-box", tabindex: "0", role: "region", "aria-label": label },
    make("ul", { class: "paths" }, ...rows.slice(0, SHOWN), more > 0 && make("li", { class: "quiet" }, `and ${number(more)} more`)));
}

function stepRow({ action, path }) {
  const [letter, kind] = ACTIONS[action] ?? ["M", "modified"];
  return make("li", {}, make("span", { class: `letter ${kind}`, title: action }, letter), " ", visible(path));
}

/** What restoring would do and lose. `names`: of paths; none: everything. */
export function restore(app, snapshot, names = []) {
  const what = names.length === 0 ? "everything" : names.length === 1 ? `“${lastName(names[0].path)}”` : count(names.length, "path");
  const dialog = new ActionDialog(app, `Restore ${what} from “${title(snapshot)}”`);
  const describe = (plan) => {
    const words = { create: "creates", replace: "replaces", change: "changes attributes of", delete: "deletes" };
    const parts = Object.entries(words).filter(([name]) => plan.counts[name] > 0).map(([name, word]) => `${word} ${number(plan.counts[name])}`);
    const where = text(`In the worktree ${visible(app.volume.worktree)}, `, make("span", { class: "mono" }, visible(plan.directory)), ":");
    if (plan.step_count === 0) return [where, text("Nothing would change: everything is as in the snapshot.")];
    const unsaved = plan.unsaved.map((path) => make("li", {}, visible(path.path)));
    return [
      where,
      make("p", { class: "sum" }, parts.join(", ")),
      pathList("What would be done", plan.steps.map(stepRow), plan.step_count),
      plan.unsaved_count > 0
        ? make("div", { class: "warning" }, text(`${count(plan.unsaved_count, "path")} ${plan.unsaved_count === 1 ? "has" : "have"} content that no snapshot has. A safety snapshot is made first; restoring that one brings it back.`), pathList("What no snapshot has", unsaved, plan.unsaved_count))
        : quiet("Nothing is lost: all of it is in a snapshot."),
      quiet(plan.is_whole ? `The worktree stands on ${shortId(plan.target)} afterwards.` : "The worktree stays on its current snapshot."),
    ];
  };
  const report = (done) => [
    told("Restored", done.written === null ? "." : `: ${count(done.written, "file")} written, ${number(done.deleted)} deleted.`),
    done.safety && text("What no snapshot had is in the safety snapshot ", snapshotLink(done.safety, { onclick: () => dialog.element.close() }), "."),
  ];
  return dialog.preview("restore", { target: snapshot.id, paths: names.map(pathFields) }, { describe, report, confirm: "Restore", word: "restore" });
}

function field(label, input, help) {
  return make("label", { class: "field" }, make("span", {}, label), input, help && make("span", { class: "quiet" }, help));
}

/** Shows fields, and then the preview of what they ask for. */
function askThenPreview(dialog, kind, fields, body, options) {
  const show = () => {
    const next = button("Preview", go, { class: "first" });
    dialog.step(fields, dialog.cancel(), next);
    fields[0].querySelector("input, textarea").focus();
  };
  const go = () => dialog.preview(kind, body(), { ...options, ask: show });
  for (const node of fields) node.addEventListener("keydown", (event) => event.key === "Enter" && event.target.tagName === "INPUT" && (event.preventDefault(), go()));
  show();
}

/** A new worktree from a snapshot. */
export function fork(app, snapshot) {
  const dialog = new ActionDialog(app, `Fork “${title(snapshot)}”`);
  const above = app.volume.root.replace(/\/[^/]*$/, "");
  const directory = textInput("directory", { value: `${above}/` });
  const name = textInput("name", { oninput: () => {
    if (!directory.isTouched) directory.value = `${above}/${name.value}`;
  } });
  directory.addEventListener("input", () => (directory.isTouched = true));
  const describe = (plan) => [
    text(`Makes the worktree ${visible(plan.name)} in `, make("span", { class: "mono" }, visible(plan.directory)), plan.is_mount ? ", as a mount." : "."),
    text(`It begins with ${shortId(plan.target)}: ${count(plan.files, "file")}, ${size(plan.bytes)}. This worktree stays as it is.`),
  ];
  const report = (done) => [told(`The worktree ${visible(done.name ?? name.value)} is in ${visible(done.directory ?? done.mountpoint ?? directory.value)}.`)];
  const fields = [field("Name", name), field("Directory", directory, "empty, or not there yet")];
  askThenPreview(dialog, "fork", fields, () => ({ target: snapshot.id, name: name.value.trim(), directory: directory.value.trim() }), { describe, report, confirm: "Make the fork" });
}

/** A name for a snapshot. */
export function addTag(app, snapshot) {
  const dialog = new ActionDialog(app, `Tag “${title(snapshot)}”`);
  const name = textInput("name");
  const describe = (plan) => [
    text("Adds the tag ", make("span", { class: "label tag" }, visible(plan.name)), ` to ${shortId(plan.target)}, which cannot be forgotten as long as it has one.`),
    plan.tags.length > 0 && quiet(`It has already: ${plan.tags.map(visible).join(", ")}`),
  ];
  const report = () => [told("The tag is added.")];
  askThenPreview(dialog, "tag", [field("Tag", name)], () => ({ target: snapshot.id, name: name.value.trim() }), { describe, report, confirm: "Add the tag" });
}

/** Removes a name. */
export function removeTag(app, snapshot, name) {
  const dialog = new ActionDialog(app, "Remove a tag");
  const describe = (plan) => [
    text("Removes the tag ", make("span", { class: "label tag" }, visible(plan.name)), ` from ${shortId(plan.target)}. The snapshot stays.`),
    plan.tags.length === 1 && text("It is its only tag: rules of retention may forget the snapshot afterwards."),
  ];
  const report = () => [told("The tag is removed.")];
  dialog.preview("untag", { target: snapshot.id, name }, { describe, report, confirm: "Remove the tag" });
}

/** Keeps a snapshot from being forgotten. */
export function pin(app, snapshot) {
  const dialog = new ActionDialog(app, `Pin “${title(snapshot)}”`);
  const reason = textInput("reason");
  const until = make("input", { id: "until", type: "date" });
  const describe = (plan) => [
    text(`${shortId(plan.target)} is not forgotten, on no machine and by no rule, ${plan.until ? `before ${visible(plan.until)}` : "before it is unpinned"}.`),
    plan.reason && text(`Reason: ${visible(plan.reason)}`),
    plan.replaces !== null && text(`This replaces a pin${plan.replaces ? ` with the reason: ${visible(plan.replaces)}` : ""}.`),
  ];
  const report = () => [told("The snapshot is pinned.")];
  const fields = [field("Reason", reason, "shown to whoever would forget it"), field("Until", until, "empty: until it is unpinned")];
  askThenPreview(dialog, "pin", fields, () => ({ target: snapshot.id, reason: reason.value.trim(), until: until.value }), { describe, report, confirm: "Pin" });
}

/** Lets a snapshot be forgotten. */
export function unpin(app, snapshot) {
  const dialog = new ActionDialog(app, "Unpin a snapshot");
  const describe = (plan) => [text(`${shortId(plan.target)} can be forgotten again.`), plan.reason && text(`It was pinned for: ${visible(plan.reason)}`)];
  const report = () => [told("The snapshot is unpinned.")];
  dialog.preview("unpin", { target: snapshot.id }, { describe, report, confirm: "Unpin" });
}

/** A note and properties. */
export function describe(app, snapshot) {
  const dialog = new ActionDialog(app, `Describe “${title(snapshot)}”`);
  const old = snapshot.properties ?? {};
  const note = make("textarea", { id: "note", rows: 4, value: snapshot.note });
  const lines = make("textarea", { id: "properties", rows: 3, spellcheck: "false", value: Object.entries(old).map((pair) => pair.join("=")).join("\n") });
  const body = () => {
    const pairs = lines.value.split("\n").filter((line) => line.trim() !== "").map((line) => line.split(/=(.*)/s));
    const typed = Object.fromEntries(pairs.map(([name, value = ""]) => [name.trim(), value]));
    return {
      target: snapshot.id,
      note: note.value === snapshot.note ? undefined : note.value,
      set: Object.fromEntries(Object.entries(typed).filter(([name, value]) => old[name] !== value)),
      unset: Object.keys(old).filter((name) => !(name in typed)),
    };
  };
  const change = (name, before, after) => fact(visible(name), before === undefined ? "" : make("del", {}, visible(before)), after === undefined ? "" : make("ins", {}, visible(after)));
  const show = (plan) => [
    make("dl", { class: "facts" },
      ...(plan.note === null ? [] : change("Note", plan.replaces.note, plan.note)),
      ...Object.entries(plan.set).flatMap(([name, value]) => change(name, plan.replaces.properties[name], value)),
      ...plan.unset.flatMap((name) => change(name, plan.replaces.properties[name]))),
    quiet("The snapshot itself, and its id, stay as they are."),
  ];
  const report = () => [told("This is what the snapshot says now.")];
  const fields = [field("Note", note), field("Properties", lines, "NAME=VALUE, one a line")];
  askThenPreview(dialog, "note", fields, body, { describe: show, report, confirm: "Change" });
}

const FORGOTTEN = "'vellum undo' brings back what was forgotten, until what only it needs is freed.";

/** Removes a snapshot from the history. */
export function forget(app, snapshot) {
  const dialog = new ActionDialog(app, `Forget “${title(snapshot)}”`);
  const show = () => [text(`${shortId(snapshot.id)} leaves the history. Its files in the worktree stay as they are.`), quiet(FORGOTTEN)];
  const report = () => {
    // The address names a snapshot that is not there any more.
    app.note("history", {});
    return [told("The snapshot is forgotten.")];
  };
  dialog.preview("forget", { targets: [snapshot.id] }, { describe: show, report, confirm: "Forget", word: "forget" });
}

/** Removes the snapshots that no rule keeps. */
export function forgetByRules(app) {
  const worktree = app.worktree ?? app.volume.worktree;
  const dialog = new ActionDialog(app, `Forget snapshots of ${visible(worktree)}`);
  const rules = ["last", "hourly", "daily", "weekly", "monthly", "yearly"].map((rule) => [rule, make("input", { id: `keep-${rule}`, type: "number", min: 1 })]);
  const body = () => {
    const keep = Object.fromEntries(rules.map(([rule, input]) => [rule, input.valueAsNumber]).filter(([, value]) => value > 0));
    return { worktree, ...(Object.keys(keep).length > 0 ? { keep } : { policy: true }) };
  };
  const row = ({ id, time, kept, reasons }) => make("li", {}, make("span", { class: `letter ${kept ? "added" : "deleted"}` }, kept ? "keep" : "forget"), ` ${shortId(id)} `, timeElement(time), `: ${kept ? reasons.map(visible).join(", ") : "no rule keeps it"}`);
  const show = (plan) => [
    make("p", { class: "sum" }, `forgets ${number(plan.forgotten_count)}, keeps ${number(plan.kept_count)}`),
    pathList("Snapshots", plan.snapshots.map(row), plan.forgotten_count + plan.kept_count),
    quiet(FORGOTTEN),
  ];
  const report = (done) => [told(`${count(done.forgotten.length, "snapshot")} forgotten.`)];
  const fields = rules.map(([rule, input], index) => field(`Keep ${rule}`, input, index === 0 && "all empty: the rules that 'vellum config' has set"));
  askThenPreview(dialog, "forget", fields, body, { describe: show, report, confirm: "Forget", word: "forget" });
}

/** Frees what nothing needs. */
export function collect(app) {
  const dialog = new ActionDialog(app, "Free what no snapshot needs");
  const show = (plan) => [
    make("p", { class: "sum" }, plan.pack_count === 0 ? "There is nothing to free." : `frees ${size(plan.freed)}, from ${count(plan.pack_count, "pack")}`),
    quiet(`${size(plan.live_bytes)} stay, which ${count(plan.snapshots, "snapshot")} need. What was forgotten cannot be brought back afterwards.`),
  ];
  const report = (done) => [told(done.writers > 0 ? `Nothing is freed: ${count(done.writers, "other command")} at work on this volume. Try again when they are done.` : `${size(done.freed)} freed.`)];
  dialog.preview("gc", {}, { describe: show, report, confirm: "Free", word: "free" });
}

/** What an agent asks for, and the answer of the person at the page. */
export function decide(app, request) {
  const dialog = new ActionDialog(app, "An agent asks");
  const approve = button("Approve", () => answer("approved"), { class: "first", disabled: true });
  const typed = textInput("word", { oninput: () => (approve.disabled = typed.value.trim() !== "approve") });
  const answer = async (said) => {
    try {
      await post(`approvals/${request.id}`, { answer: said, check: request.check });
      say(said === "approved" ? "Approved, once: the agent can do it within 10 minutes." : "Refused.");
      dialog.element.close();
    } catch (error) {
      dialog.fail(error);
    }
    app.lookForRequests();
  };
  dialog.step(
    [
      text(`${visible(request.client)} wants to restore `, make("span", { class: "mono" }, visible(request.directory)), " from ", snapshotLink(request.target, { onclick: () => dialog.element.close() }), ":"),
      pathList("What would be done", request.steps.map(stepRow), request.step_count),
      request.unsaved > 0 && text(`${count(request.unsaved, "path")} that no snapshot has would be snapshotted first.`),
      make("label", { class: "field" }, make("span", {}, "Type ", make("kbd", {}, "approve"), " to approve"), typed),
    ],
    dialog.cancel("Later"), button("Refuse", () => answer("refused")), approve,
  );
  typed.focus();
}
