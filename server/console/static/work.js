// Buttons that start work and stay with it until it is done or has failed, and jobs of the broker.
import { announce, h, replace, tell } from "./dom.js";
import { badge, count, durationText, isKnown, time } from "./format.js";
import { icon } from "./icons.js";
import { facts } from "./table.js";
import { link } from "./links.js";
import { failure, isAbort } from "./view.js";

const ROW_ANEW_MS = 1000;
const OPEN = new Set(["waiting", "running"]);
const KINDS = {
  done: "good",
  agree: "good",
  failed: "bad",
  differ: "bad",
  cancelled: "warn",
  running: "info",
  waiting: "idle",
};

export const isOpen = (job) => OPEN.has(job.state);

export function stateBadge(state) {
  return badge(KINDS[state] ?? "info", state);
}

// A button with a line beside it that tells how it goes. `act(tell)` returns the text (or nodes) of the end; `tell` shows
// what is under way. Returning null means that nothing was done.
export function workButton(label, act, { className = "", done = null } = {}) {
  const said = h("span", { class: "said", role: "status" });
  // A row may have come anew meanwhile, or comes anew right after, and its button with it: how it ended is told all the same.
  const report = (nodes) => {
    replace(said, nodes ?? "");
    const outlive = () => nodes !== null && !said.isConnected && tell(h("strong", null, `${label}: `), nodes);
    if (said.isConnected) setTimeout(outlive, ROW_ANEW_MS);
    else outlive();
  };
  const button = h(
    "button",
    {
      type: "button",
      class: className,
      onclick: async () => {
        button.disabled = true;
        // who would put other buttons in its place waits until it has said how it ended
        button.setAttribute("data-busy", "");
        replace(said, "working …");
        try {
          const told = await act((...nodes) => replace(said, nodes));
          report(told === null || told === "" ? null : ["✓ ", told ?? "done"]);
          done?.();
        } catch (error) {
          report(isAbort(error) ? null : failure(error));
        }
        button.disabled = false;
        button.removeAttribute("data-busy");
        if (button.isConnected && document.activeElement === document.body) button.focus();
      },
    },
    label,
  );
  return h("span", { class: "work" }, button, said);
}

function pause(view, milliseconds) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, milliseconds);
    view.signal.addEventListener(
      "abort",
      () => {
        clearTimeout(timer);
        resolve();
      },
      { once: true },
    );
  });
}

// How long the rest takes if it goes on as since `began`; null while that cannot be told.
export function remainingMs(began, done, total) {
  const elapsed = Date.now() - began.at;
  const progress = Number(done) - began.done;
  if (!isKnown(total) || progress <= 0 || elapsed < 500) return null;
  return ((Number(total) - Number(done)) * elapsed) / progress;
}

export function progressBar(done, total, label) {
  if (!isKnown(total))
    return h(
      "span",
      { class: "progress" },
      count(done),
      " done, of an ",
      h("span", { class: "unknown" }, "unknown"),
      " total",
    );
  const share = Number(total) > 0 ? Number(done) / Number(total) : 1;
  const bar = h("progress", { max: "1", "aria-label": label });
  bar.value = Math.min(share, 1);
  return h(
    "span",
    { class: "progress" },
    bar,
    ` ${Math.floor(share * 100)} % `,
    h("span", { class: "note" }, "(", count(done), " of ", count(total), ")"),
  );
}

export function countsText(counts) {
  const pairs = Object.entries(counts ?? {}).sort();
  return pairs.length
    ? pairs.map(([name, value]) => h("span", { class: "pair" }, count(value), ` ${name} `))
    : "nothing yet";
}

// Shows a job and goes on showing it until it has ended; `ended(job)` is called then.
export function followJob(view, first, ended = null) {
  const box = h("div", { class: "job" });
  const began = { at: Date.now(), done: Number(first.done ?? 0) };
  const cancel = async () => {
    try {
      show(await view.call("JobService/CancelJob", { id: first.id }));
    } catch (error) {
      box.append(failure(error) ?? "");
    }
  };
  const show = (job) => {
    const left = isOpen(job) ? remainingMs(began, job.done, job.total) : null;
    replace(
      box,
      h(
        "div",
        { class: "line" },
        stateBadge(job.state),
        " ",
        link(["jobs", job.id], `${job.kind}${job.dryRun ? ", dry run" : ""}`, { member: view.member }),
        view.named && [" on ", h("strong", null, view.named)],
        " ",
        progressBar(job.done, job.total, `progress of ${job.kind}`),
        isOpen(job) &&
          h("span", { class: "note" }, left === null ? " time left: unknown" : ` about ${durationText(left)} left`),
        " ",
        isOpen(job) && h("button", { type: "button", class: "quiet", onclick: cancel }, "Cancel job"),
      ),
      h("p", { class: "note" }, countsText(job.counts), job.remark && `; ${job.remark}`),
      (job.firstErrors ?? []).length > 0 &&
        h(
          "ul",
          null,
          job.firstErrors.map((text) => h("li", null, text)),
        ),
    );
  };
  const follow = async () => {
    let job = first;
    show(job);
    while (isOpen(job) && !view.signal.aborted) {
      await pause(view, 700);
      try {
        job = await view.call("JobService/GetJob", { id: first.id });
        show(job);
      } catch (error) {
        if (isAbort(error)) return;
        replace(box, failure(error, follow));
        return;
      }
    }
    if (!view.signal.aborted) {
      announce(`The job ${job.kind} is ${job.state}.`);
      ended?.(job);
    }
  };
  follow();
  return box;
}

// Begins a job and resolves to it.
export function beginJob(view, work, { dryRun = false } = {}) {
  return view.call("JobService/BeginJob", { askedBy: view.askedBy, dryRun, ...work });
}

// The same, awaited until it has ended.
export async function runJob(view, work, { dryRun = false, place = null } = {}) {
  const job = await beginJob(view, work, { dryRun });
  return new Promise((resolve) => {
    const box = followJob(view, job, resolve);
    if (place) replace(place, box);
  });
}

export function jobFacts(job) {
  return facts([
    ["State", stateBadge(job.state)],
    ["Begun", time(job.id)],
    ["Asked by", job.askedBy || "unknown"],
    ["Ended", isKnown(job.endedAtMs) ? time(job.endedAtMs) : "not yet"],
    ["Dry run", job.dryRun ? "yes" : "no"],
    ["Progress", countsText(job.counts)],
    job.remark && ["Remark", job.remark],
  ]);
}

// Puts a text where other programs find it.
export function copyButton(text, label) {
  return h(
    "button",
    {
      type: "button",
      class: "quiet bare",
      title: label,
      "aria-label": text.length > 80 ? label : `${label}: ${text}`,
      onclick: async () => {
        try {
          await navigator.clipboard.writeText(text);
          announce("Copied.");
          tell("✓ copied");
        } catch {
          tell("▲ The browser does not let this page copy; mark the text and copy it.");
        }
      },
    },
    icon("copy"),
  );
}
