// What a page has to work with: its place, its route, calls that end with it, and rounds that go on while it is looked at.
import { call, callAll, CallError, EVERY, stream } from "./api.js";
import { announce, h, harmless, newId, replace } from "./dom.js";
import { address } from "./links.js";

export class View {
  // `route` is {path: [..], query: URLSearchParams}; `session` is what GET /api/session told.
  constructor(root, route, session) {
    this.root = root;
    this.route = route;
    this.session = session;
    this.controller = new AbortController();
    this.timers = new Set();
    this.isPaused = false;
    this.pauseButton = null;
    const member = this.query("member");
    // Whose part of the cluster the page shows; the broker that is asked without one.
    this.member = member === session.broker ? "" : member;
    this.named = member;
  }

  get signal() {
    return this.controller.signal;
  }

  get askedBy() {
    return this.session.user ?? "console";
  }

  query(name, otherwise = "") {
    return this.route.query.get(name) ?? otherwise;
  }

  // The same view, whose calls a member makes. `named` is shown where it says whose work it is.
  on(member, named = "") {
    return Object.create(this, {
      member: { value: member === this.session.broker ? "" : member },
      named: { value: named },
    });
  }

  call(name, body) {
    return call(name, body, this.signal, this.member);
  }

  callAll(name, body) {
    return callAll(name, body, this.signal, this.member);
  }

  // What each member answers: [{member, isSelf, answers, code, problem}]; without code those that answered. A broker of
  // an older version answers alone.
  async callMembers(name, body) {
    let answers = [];
    try {
      answers = await callAll(name, body, this.signal, EVERY);
    } catch (error) {
      if (error.code !== "UNIMPLEMENTED") throw error;
      const own = await call(name, body, this.signal);
      return [{ member: this.session.broker ?? "", isSelf: true, answers: own.answers ?? [own], code: "" }];
    }
    return partsOf(answers);
  }

  // Figures of all members together, from OverviewService's call of this name.
  async callFigures(name, body) {
    try {
      return await call(`AllMembersService/${name}`, body, this.signal);
    } catch (error) {
      if (error.code !== "UNIMPLEMENTED") throw error;
      return { members: [], ...(await call(`OverviewService/${name}`, body, this.signal)) };
    }
  }

  stream(name, body, signal) {
    return stream(name, body, signal ?? this.signal, this.member);
  }

  // The answers of all members as they come: {member, isSelf, answer} or {member, isSelf, code, problem} at its end.
  streamMembers(name, body, signal) {
    return stream(name, body, signal ?? this.signal, EVERY);
  }

  // The heading, with what stands beside it: links and buttons of the page.
  begin(title, { lead = null, actions = [] } = {}) {
    document.title = harmless(`${title} - Quarry`);
    this.actions = h("div", { class: "actions" }, actions);
    const heading = h("h1", { tabindex: "-1" }, title);
    this.root.replaceChildren(h("div", { class: "title" }, heading, this.actions));
    if (lead) this.root.append(h("p", { class: "lead" }, lead));
    return heading;
  }

  add(...nodes) {
    for (const node of nodes) this.root.append(node);
  }

  // Calls `work` again and again while the page is there, is seen and was not told to stand still.
  every(milliseconds, work) {
    const timer = setInterval(() => {
      if (!document.hidden && !this.isPaused) work();
    }, milliseconds);
    this.timers.add(timer);
    if (!this.pauseButton && this.actions) this.actions.append(this.makePause(milliseconds));
  }

  makePause(milliseconds) {
    this.pauseButton = h(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-pressed": "false",
        title: `refreshed every ${milliseconds / 1000} s`,
        onclick: () => {
          this.isPaused = !this.isPaused;
          this.pauseButton.setAttribute("aria-pressed", String(this.isPaused));
          this.pauseButton.textContent = this.isPaused ? "Resume refreshing" : "Stop refreshing";
          announce(this.isPaused ? "Refreshing is paused." : "The page is refreshed again.");
        },
      },
      "Stop refreshing",
    );
    return this.pauseButton;
  }

  close() {
    this.controller.abort();
    for (const timer of this.timers) clearInterval(timer);
  }
}

function partsOf(answers) {
  const parts = new Map();
  for (const one of answers) {
    const { member, isSelf } = one;
    if (!parts.has(member)) parts.set(member, { member, isSelf, answers: [], code: "", problem: "" });
    const part = parts.get(member);
    if (one.answer) part.answers.push(one.answer);
    else if (one.code !== "OK") Object.assign(part, { code: one.code, problem: one.problem });
  }
  return [...parts.values()].sort((one, other) => one.member.localeCompare(other.member, "en"));
}

// Where tables are cards, a page of them is long.
export function isPhone() {
  return matchMedia("(max-width: 760px)").matches;
}

export function isAbort(error) {
  return error?.name === "AbortError";
}

// What a call that failed has to say, in its section.
export function failure(error, retry = null) {
  if (isAbort(error)) return null;
  const again = retry && h("button", { type: "button", class: "quiet", onclick: retry }, "Try again");
  if (!(error instanceof CallError)) {
    console.error(error);
    return h("p", { class: "notice bad" }, "✖ This page has made a mistake: ", String(error?.message ?? error));
  }
  if (error.code === "PERMISSION_DENIED") return h("p", { class: "notice warn" }, "▲ You lack: ", error.message);
  if (error.code === "FAILED_PRECONDITION") return h("p", { class: "notice warn" }, "▲ Not now: ", error.message);
  if (error.code === "UNIMPLEMENTED") return h("p", { class: "notice idle" }, "○ This broker does not tell.");
  return h("p", { class: "notice bad" }, `✖ ${error.message} `, h("small", null, `(${error.code})`), " ", again);
}

// There is no topic or group of this name: said once, with where to go on.
export function missing(kind, name) {
  const list = `${kind}s`;
  return h(
    "div",
    { class: "panel nothing" },
    h("h2", null, `There is no ${kind} with this name`),
    h("p", null, "It was deleted, or its name is spelt in another way."),
    h(
      "p",
      { class: "actions" },
      h("a", { href: address([list], { contains: name.slice(0, 4) }) }, `${list} with a similar name`),
      h("a", { href: address([list]) }, `All ${list}`),
    ),
  );
}

// A part of a page with a heading.
export function namedPanel(level, title, ...body) {
  const id = newId("panel");
  return h("section", { class: "panel", "aria-labelledby": id }, h(`h${level}`, { id }, title), body);
}

export function panel(title, ...body) {
  return namedPanel(2, title, ...body);
}

// A part of a page with a heading that is filled by `load`, an async function that returns nodes. It has `refresh`, and
// comes anew each `everyMs` where that is given. A call that fails is told of here; the rest of the page goes on, and
// what was there is kept, in grey, where the broker does not answer. `folded`: it loads once it is unfolded, and `isLive`
// ones refresh themselves then. `bare`: without a frame, with a heading for those who listen.
export function section(
  view,
  title,
  load,
  { everyMs = 0, level = 2, lead = null, folded = false, isLive = false, bare = false } = {},
) {
  const body = h("div", { class: "section-body" }, h("p", { class: "loading" }, "Loading …"));
  const said = h("div", { role: "status" });
  const inside = [lead && h("p", { class: "lead" }, lead), said, body];
  const element = folded ? foldedPanel(level, title, inside) : namedPanel(level, title, ...inside);
  const fold = folded ? element.querySelector("details") : null;
  if (bare) element.className = "bare-panel";
  let isLoading = false;
  let isThere = false;
  const refresh = async () => {
    if (isLoading || view.signal.aborted || (fold && !fold.open) || (isLive && isThere)) return;
    isLoading = true;
    if (!isThere) element.setAttribute("aria-busy", "true");
    try {
      const nodes = await load();
      if (!view.signal.aborted) {
        replace(body, nodes);
        isThere = true;
        past(false);
      }
    } catch (error) {
      if (isThere && isGone(error)) past(true);
      else if (!isAbort(error)) replace(body, failure(error, refresh));
    } finally {
      isLoading = false;
      element.setAttribute("aria-busy", "false");
    }
  };
  const past = (isPast) => {
    const was = body.classList.contains("past");
    body.classList.toggle("past", isPast);
    if (isPast && !was)
      replace(said, h("p", { class: "notice warn" }, "▲ No answer from the broker. These figures are of ", clock(), "."));
    else if (!isPast) said.replaceChildren();
  };
  element.refresh = refresh;
  if (fold) {
    fold.addEventListener("toggle", refresh);
    element.unfold = () => {
      fold.open = true;
    };
  }
  // what is in another tab rests
  if (everyMs) view.every(everyMs, () => element.isConnected && refresh());
  refresh();
  return element;
}

const isGone = (error) => ["UNREACHABLE", "UNAVAILABLE", "DEADLINE_EXCEEDED"].includes(error.code);

function clock() {
  const now = new Date();
  return h("time", { datetime: now.toISOString() }, now.toLocaleTimeString());
}

function foldedPanel(level, title, inside) {
  const id = newId("panel");
  return h(
    "section",
    { class: "panel fold", "aria-labelledby": id },
    h("details", null, h("summary", null, h(`h${level}`, { id }, title)), inside),
  );
}
