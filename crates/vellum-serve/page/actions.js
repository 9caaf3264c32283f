// What the page changes: a dialog shows what would be done, and only a confirming click has it done.

import { pathFields, post, query } from "./api.js";
import { button, link, make, say } from "./dom.js";
import { count, lastName, number, shortId, size, visible } from "./format.js";
import { title } from "./history.js";

/** Rows of a list that are shown; the others are counted. */
const SHOWN = 200;
const ACTIONS = { create: ["A", "added"], replace: ["M", "modified"], change: ["M", "modified"], rename: ["R", "renamed"], delete: ["D", "deleted"] };

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

  /** Shows what went wrong, as the command says it. */
  fail(error) {
    if (error.name === "AbortError") return;
    this.failure.replaceChildren(make("p", {}, visible(error.message)), ...(error.hint ? [make("p", { class: "quiet" }, visible(error.hint))] : []));
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
    const isNothing = kind === "restore" && plan.step_count === 0;
    const run = button(confirm, () => this.run(plan.plan, confirm, report), { class: "first", disabled: Boolean(word) });
    const typed = word && make("input", { id: "word", autocomplete: "off", spellcheck: "false", oninput: () => (run.disabled = typed.value.trim() !== word) });
    if (typed) typed.addEventListener("keydown", (event) => event.key === "Enter" && !run.disabled && run.click());
    const label = typed && !isNothing && make("label", { class: "field" }, make("span", {}, "Type ", make("kbd", {}, word), " to confirm"), typed);
    this.step([...describe(plan), label], this.cancel(isNothing ? "Close" : "Cancel"), !isNothing && run);
    (label ? typed : this.heading).focus();
  }

  async run(id, confirm, report) {
    const shown = [...this.body.childNodes];
    this.step([make("p", { role: "status" }, `${confirm}: this goes on if the page is closed.`)]);
    try {
      // Without a signal: what is confirmed is done, also if the dialog is closed.
      const { result } = await post(`plans/${id}/run`);
      this.isDone = true;
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
    const words = { create: "creates", replace: "replaces", change: "changes attributes of", rename: "renames", delete: "deletes" };
    const parts = Object.entries(words).filter(([name]) => plan.counts[name] > 0).map(([name, word]) => `${word} ${number(plan.counts[name])}`);
    const where = make("p", {}, `In the worktree ${visible(app.volume.worktree)}, `, make("span", { class: "mono" }, visible(plan.directory)), ":");
    if (plan.step_count === 0) return [where, make("p", {}, "Nothing would change: everything is as in the snapshot.")];
    const unsaved = plan.unsaved.map((path) => make("li", {}, visible(path.path)));
    return [
      where,
      make("p", { class: "sum" }, parts.join(", ")),
      pathList("What would be done", plan.steps.map(stepRow), plan.step_count),
      plan.unsaved_count > 0
        ? make("div", { class: "warning" }, make("p", {}, `${count(plan.unsaved_count, "path")} ${plan.unsaved_count === 1 ? "has" : "have"} content that no snapshot has. A safety snapshot is made first; restoring that one brings it back.`), pathList("What no snapshot has", unsaved, plan.unsaved_count))
        : make("p", { class: "quiet" }, "Nothing is lost: all of it is in a snapshot."),
      make("p", { class: "quiet" }, plan.is_whole ? `The worktree stands on ${shortId(plan.target)} afterwards.` : "The worktree stays on its current snapshot."),
    ];
  };
  const report = (done) => [
    make("p", { role: "status" }, "Restored", done.written === null ? "." : `: ${count(done.written, "file")} written, ${number(done.deleted)} deleted.`),
    done.safety && make("p", {}, "What no snapshot had is in the safety snapshot ", link(`#/history?${query({ at: done.safety })}`, shortId(done.safety), { class: "mono", onclick: () => dialog.element.close() }), "."),
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
    fields[0].querySelector("input").focus();
  };
  const go = () => dialog.preview(kind, body(), { ...options, ask: show });
  for (const node of fields) node.addEventListener("keydown", (event) => event.key === "Enter" && (event.preventDefault(), go()));
  show();
}

/** A new worktree from a snapshot. */
export function fork(app, snapshot) {
  const dialog = new ActionDialog(app, `Fork “${title(snapshot)}”`);
  const above = app.volume.root.replace(/\/[^/]*$/, "");
  const directory = make("input", { id: "directory", autocomplete: "off", spellcheck: "false", value: `${above}/` });
  const name = make("input", { id: "name", autocomplete: "off", spellcheck: "false", oninput: () => {
    if (!directory.isTouched) directory.value = `${above}/${name.value}`;
  } });
  directory.addEventListener("input", () => (directory.isTouched = true));
  const describe = (plan) => [
    make("p", {}, `Makes the worktree ${visible(plan.name)} in `, make("span", { class: "mono" }, visible(plan.directory)), plan.is_mount ? ", as a mount." : "."),
    make("p", {}, `It begins with ${shortId(plan.target)}: ${count(plan.files, "file")}, ${size(plan.bytes)}. This worktree stays as it is.`),
  ];
  const report = (done) => [make("p", { role: "status" }, `The worktree ${visible(done.name ?? name.value)} is in ${visible(done.directory ?? done.mountpoint ?? directory.value)}.`)];
  const fields = [field("Name", name), field("Directory", directory, "empty, or not there yet")];
  askThenPreview(dialog, "fork", fields, () => ({ target: snapshot.id, name: name.value.trim(), directory: directory.value.trim() }), { describe, report, confirm: "Make the fork" });
}

/** A name for a snapshot. */
export function addTag(app, snapshot) {
  const dialog = new ActionDialog(app, `Tag “${title(snapshot)}”`);
  const name = make("input", { id: "name", autocomplete: "off", spellcheck: "false" });
  const describe = (plan) => [
    make("p", {}, "Adds the tag ", make("span", { class: "label tag" }, visible(plan.name)), ` to ${shortId(plan.target)}, which cannot be forgotten as long as it has one.`),
    plan.tags.length > 0 && make("p", { class: "quiet" }, `It has already: ${plan.tags.map(visible).join(", ")}`),
  ];
  const report = () => [make("p", { role: "status" }, "The tag is added.")];
  askThenPreview(dialog, "tag", [field("Tag", name)], () => ({ target: snapshot.id, name: name.value.trim() }), { describe, report, confirm: "Add the tag" });
}

/** Removes a name. */
export function removeTag(app, snapshot, name) {
  const dialog = new ActionDialog(app, "Remove a tag");
  const describe = (plan) => [
    make("p", {}, "Removes the tag ", make("span", { class: "label tag" }, visible(plan.name)), ` from ${shortId(plan.target)}. The snapshot stays.`),
    plan.tags.length === 1 && make("p", {}, "It is its only tag: rules of retention may forget the snapshot afterwards."),
  ];
  const report = () => [make("p", { role: "status" }, "The tag is removed.")];
  dialog.preview("untag", { target: snapshot.id, name }, { describe, report, confirm: "Remove the tag" });
}

/** Keeps a snapshot from being forgotten. */
export function pin(app, snapshot) {
  const dialog = new ActionDialog(app, `Pin “${title(snapshot)}”`);
  const reason = make("input", { id: "reason", autocomplete: "off" });
  const until = make("input", { id: "until", type: "date" });
  const describe = (plan) => [
    make("p", {}, `${shortId(plan.target)} is not forgotten, on no machine and by no rule, ${plan.until ? `before ${visible(plan.until)}` : "before it is unpinned"}.`),
    plan.reason && make("p", {}, `Reason: ${visible(plan.reason)}`),
    plan.replaces !== null && make("p", {}, `This replaces a pin${plan.replaces ? ` with the reason: ${visible(plan.replaces)}` : ""}.`),
  ];
  const report = () => [make("p", { role: "status" }, "The snapshot is pinned.")];
  const fields = [field("Reason", reason, "shown to whoever would forget it"), field("Until", until, "empty: until it is unpinned")];
  askThenPreview(dialog, "pin", fields, () => ({ target: snapshot.id, reason: reason.value.trim(), until: until.value }), { describe, report, confirm: "Pin" });
}

/** Lets a snapshot be forgotten. */
export function unpin(app, snapshot) {
  const dialog = new ActionDialog(app, "Unpin a snapshot");
  const describe = (plan) => [make("p", {}, `${shortId(plan.target)} can be forgotten again.`), plan.reason && make("p", {}, `It was pinned for: ${visible(plan.reason)}`)];
  const report = () => [make("p", { role: "status" }, "The snapshot is unpinned.")];
  dialog.preview("unpin", { target: snapshot.id }, { describe, report, confirm: "Unpin" });
}

/** What an agent asks for, and the answer of the person at the page. */
export function decide(app, request) {
  const dialog = new ActionDialog(app, "An agent asks");
  const approve = button("Approve", () => answer("approved"), { class: "first", disabled: true });
  const typed = make("input", { id: "word", autocomplete: "off", spellcheck: "false", oninput: () => (approve.disabled = typed.value.trim() !== "approve") });
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
      make("p", {}, `${visible(request.client)} wants to restore `, make("span", { class: "mono" }, visible(request.directory)), " from ", link(`#/history?${query({ at: request.target })}`, shortId(request.target), { class: "mono", onclick: () => dialog.element.close() }), ":"),
      pathList("What would be done", request.steps.map(stepRow), request.step_count),
      request.unsaved > 0 && make("p", {}, `${count(request.unsaved, "path")} that no snapshot has would be snapshotted first.`),
      make("label", { class: "field" }, make("span", {}, "Type ", make("kbd", {}, "approve"), " to approve"), typed),
    ],
    dialog.cancel("Later"), button("Refuse", () => answer("refused")), approve,
  );
  typed.focus();
}
