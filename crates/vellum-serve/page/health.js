// How the volume is: each part by the command that knows it, shown when it has answered.

import { collect, forgetByRules } from "./actions.js";
import { ask, post } from "./api.js";
import { button, fact, make, quiet, snapshotLink } from "./dom.js";
import { count, failure, number, size, timeElement, visible } from "./format.js";

const SCOPES = { metadata: "names and structure of the current snapshot", sample: "5 % of the store, what was read longest ago first", snapshot: "the current snapshot", all: "the whole store" };

/** How long, in the largest unit that fits. */
function duration(seconds) {
  const units = [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]];
  const [length, unit] = units.find(([length]) => seconds >= length) ?? units[3];
  return count(Math.floor(seconds / length), unit);
}

function table(label, heads, rows) {
  const head = heads.map((text, index) => make("th", { scope: "col", class: index > 0 ? "num" : "" }, text));
  const row = (cells) => make("tr", {}, ...cells.map((cell, index) => make("td", { class: index > 0 ? "num" : "" }, cell)));
  return make("div", { class: "table-box", tabindex: "0", role: "region", "aria-label": label }, make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...rows.map(row))));
}

const PARTS = {
  doctor: ["Findings", (report) => {
    const row = (finding) => make("li", { class: finding.severity }, make("strong", {}, `${finding.severity}: `), visible(finding.meaning), finding.object && make("span", { class: "mono" }, ` ${visible(finding.object)}`), finding.remedy && quiet(visible(finding.remedy)));
    const missing = report.features.filter((feature) => !feature.available);
    return [
      make("p", { class: report.healthy ? "good" : "bad" }, report.healthy ? "Healthy" : "Something is wrong"),
      report.findings.length > 0 && make("ul", { class: "findings" }, ...report.findings.map(row)),
      missing.length > 0 && make("details", {}, make("summary", {}, `What this machine cannot do (${missing.length})`), make("ul", { class: "findings" }, ...missing.map((feature) => make("li", {}, visible(feature.meaning))))),
    ];
  }],
  status: ["Worktree", (report) => {
    const mount = report.mount;
    const leases = (report.leases ?? []).map((lease) => `${visible(lease.worktree ?? "")} on ${visible(lease.host ?? "")}`);
    return [make("dl", { class: "facts" },
      ...fact("Name", visible(report.worktree)),
      ...fact("Changes", report.counts ? (report.clean ? "none since the last snapshot" : Object.entries(report.counts).filter(([, value]) => value > 0).map(([word, value]) => `${number(value)} ${word}`).join(", ")) : "not listed: the store does not answer"),
      ...(report.problems?.length ? fact("Problems", count(report.problems.length, "path")) : []),
      ...(report.merge ? fact("Merge", `of ${visible(report.merge.name)}, ${count(report.merge.open, "conflict")} open`) : []),
      ...(report.interrupted_restore ? fact("Restore", "one was interrupted: run it again") : []),
      ...fact("Leases", leases.length > 0 ? leases.join("; ") : "none"),
      ...(mount ? fact("Waiting for the store", mount.waiting === 0 || !mount.waiting ? "nothing" : `${count(mount.waiting, "snapshot")}`) : []),
      ...(mount?.unpublished_since ? fact("Unpublished since", timeElement(mount.unpublished_since)) : []),
      ...(mount ? fact("Write log", `${size(mount.log_bytes)} of ${size(mount.log_limit)}`) : []),
      ...(mount?.failure ? fact("Failure", visible(mount.failure)) : []))];
  }],
  store: ["Store", (report) => [make("dl", { class: "facts" },
    ...fact("Where", visible(report.store)),
    ...fact("Holds", `${size(report.stored_bytes)} in ${count(report.objects, "object")}, ${count(report.packs, "pack")}`),
    ...fact("Snapshots", number(report.snapshots)),
    ...fact("Tags", number(report.tags)),
    ...fact("Encrypted", report.encrypted ? "yes" : "no"))]],
  gc: ["Garbage", (report, app) => [make("dl", { class: "facts" },
    ...fact("Needed", size(report.live_bytes)),
    ...fact("Not needed", size(report.dead_bytes)),
    ...fact("Would be freed", `${size(report.freed)}, from ${count(report.packs.length, "pack")}`)),
  app.canChange && make("div", { class: "actions" }, button("Forget by rules…", () => forgetByRules(app)), button("Free…", () => collect(app)))]],
  usage: ["Usage", (report) => [
    table("Usage by worktree", ["Worktree", "Snapshots", "Files", "Store", "Own", "Forgetting frees"], report.groups.map((group) => [visible(group.name), number(group.snapshots), size(group.logical), size(group.stored), size(group.unique), group.freed ? size(group.freed.at_once) : "–"])),
    quiet(`${size(report.unneeded)} that nothing needs.`)]],
  worktrees: ["Worktrees", (report) => [table("Worktrees", ["Name", "Snapshot", "Ahead", "Behind", "Size", "Where"], report.worktrees.map((worktree) => [
    visible(worktree.name), worktree.snapshot ? snapshotLink(worktree.snapshot) : "none",
    number(worktree.ahead ?? 0), number(worktree.behind ?? 0), size(worktree.bytes ?? 0),
    visible(worktree.missing ? `${worktree.directory} (missing)` : worktree.mountpoint ?? worktree.directory ?? "") + (worktree.host ? ` on ${visible(worktree.host)}` : "")]))]],
};

/** Shows how the volume is. */
export class HealthView {
  constructor(app) {
    this.app = app;
    this.verify = make("div", { "aria-live": "polite" });
    this.cards = Object.entries(PARTS).map(([name, [heading, show]]) => {
      const body = make("div", { "aria-busy": "true" }, quiet("Looking…"));
      return { name, show, body, element: make("section", { class: `card ${name}` }, make("h2", {}, heading), body) };
    });
    const [doctor, ...others] = this.cards.map((card) => card.element);
    this.element = make("div", { class: "cards fill", tabindex: "-1" }, make("h1", { class: "hidden" }, "Health"), doctor, make("section", { class: "card" }, make("h2", {}, "Verification"), this.verify), ...others);
  }

  async load(signal) {
    await Promise.all([this.loadVerify(signal), ...this.cards.map((card) => this.loadCard(card, signal))]);
  }

  async loadCard({ name, show, body }, signal) {
    try {
      body.replaceChildren(...show(await ask(`health/${name}`, {}, signal), this.app).filter(Boolean));
    } catch (error) {
      if (error.name === "AbortError") return;
      body.replaceChildren(...failure(error));
    }
    body.removeAttribute("aria-busy");
  }

  async loadVerify(signal) {
    try {
      this.showVerify((await ask("jobs/verify", {}, signal)).job);
    } catch (error) {
      if (error.name !== "AbortError") this.verify.replaceChildren(...failure(error));
    }
  }

  showVerify(job) {
    const isRunning = job?.running === true;
    const start = (scope, text) => button(text, () => this.start(scope), { disabled: isRunning, title: `Reads ${SCOPES[scope]}` });
    this.verify.replaceChildren(
      ...this.verifyResult(job),
      this.app.canChange ? make("div", { class: "actions", role: "group", "aria-label": "Verify" }, start("metadata", "Metadata"), start("snapshot", "Snapshot"), start("sample", "5 %"), start("all", "All")) : "",
    );
  }

  hear(kind, { job }) {
    if (kind !== "job" || !job) return;
    if (job.running) this.showVerify(job);
    else this.loadVerify(this.app.signal);
  }

  /** What another command has changed; the other cards read much of the store. */
  async refresh(signal) {
    const cheap = this.cards.filter(({ name }) => name === "status" || name === "worktrees");
    await Promise.all(cheap.map((card) => this.loadCard(card, signal)));
  }

  verifyResult(job) {
    if (!job) return [quiet("Nothing was verified since this page was started.")];
    const what = SCOPES[job.scope];
    if (job.running) return [make("p", {}, `Reading ${what}, for ${duration(job.seconds)}…`)];
    const { result } = job;
    const since = quiet(`${what}, ${duration(job.ended_seconds)} ago`);
    if (result.error) return [...failure(result.error), since];
    const row = (finding) => make("li", { class: "problem" }, `${visible(finding.object)}: ${visible(finding.problem)}`, ...(finding.affected ?? []).map((affected) => quiet((affected.paths ?? []).map(visible).join(", "))));
    return [
      make("p", { class: result.sound ? "good" : "bad" }, result.sound ? "Sound" : `Damaged: ${count(result.finding_count, "object")}`),
      make("p", {}, `${count(result.snapshots, "snapshot")}, ${count(result.blobs, "blob")}, ${size(result.bytes)}`),
      result.findings?.length > 0 ? make("ul", { class: "findings" }, ...result.findings.map(row)) : "",
      since,
    ];
  }

  async start(scope) {
    try {
      this.showVerify((await post("jobs/verify", { scope })).job);
    } catch (error) {
      this.verify.prepend(...failure(error));
    }
  }

  onKey() {
    return false;
  }

  close() {}
}
