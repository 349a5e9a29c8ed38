// Messages as they come. What is left out, by the broker or by this page, is counted and shown.
import { CallError } from "./api.js";
import { field, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { badge, count, time } from "./format.js";
import { address, link } from "./links.js";
import { preview } from "./body_view.js";
import { missingParts } from "./members.js";
import { messageOf, placeLink } from "./messages_table.js";
import { topicField } from "./names.js";
import { chooseTopic, filterOf, passedOver } from "./page_messages.js";
import { failure, isAbort } from "./view.js";

const ROWS_MAX = 500;
const HELD_MAX = 2000;
const DAMAGED_MAX = 20;
const RATES = [
  ["5", "5"],
  ["20", "20"],
  ["50", "50"],
  ["200", "200"],
];

export async function show(view) {
  view.begin("Live tail", { lead: "Messages of a topic as they become visible. Groups are not affected." });
  const tail = new Tail(view);
  const form = h(
    "form",
    {
      class: "panel filters",
      onsubmit: (event) => {
        event.preventDefault();
        const values = valuesOf(form);
        history.replaceState(
          null,
          "",
          address(["tail"], {
            topic: values.topic,
            lite: values.lite,
            queue: values.queue,
            expression: values.expression,
            sql: values.sql ? "yes" : "",
            has: values.has,
            rate: values.rate,
          }),
        );
        tail.start(values);
      },
    },
    h("div", { class: "grow" }, topicField(view, { value: view.query("topic"), "data-first": true })),
    field({ name: "queue", label: "Queue", type: "number", min: "0", placeholder: "all", value: view.query("queue") }),
    field({ name: "lite", label: "Lite topic", value: view.query("lite") }),
    field({ name: "expression", label: "Tags or SQL", value: view.query("expression") }),
    field({ name: "sql", label: "it is SQL", type: "checkbox", value: view.query("sql") === "yes" }),
    field({ name: "has", label: "Body contains", value: view.query("has"), maxlength: "256" }),
    field({ name: "rate", label: "At most per second", options: RATES, value: view.query("rate", "20") }),
    h("button", { type: "submit", class: "primary" }, "Begin"),
  );
  view.add(form, tail.element);
  if (!view.query("topic")) view.add(chooseTopic(view, "tail"));
  if (view.query("topic")) tail.start(valuesOf(form));
}

class Tail {
  constructor(view) {
    this.view = view;
    this.rows = h("ol", { class: "tail", tabindex: "0", "aria-label": "messages, the newest first" });
    this.state = h("span", { role: "status" }, badge("idle", "not begun"));
    this.figures = h("span", { class: "note" });
    this.problem = h("div");
    this.missing = h("div", { role: "status" });
    this.hurt = h("div", { role: "status" });
    this.damaged = [];
    this.parts = new Map();
    this.isAlone = false;
    this.empty = h("p", { class: "empty" }, "No message yet.");
    this.pauseButton = h(
      "button",
      { type: "button", disabled: true, "aria-pressed": "false", onclick: () => this.pause(!this.isPaused) },
      "Pause",
    );
    this.stopButton = h("button", { type: "button", disabled: true, onclick: () => this.stop("stopped") }, "Stop");
    this.element = h(
      "section",
      { class: "panel", "aria-label": "Messages" },
      h(
        "div",
        { class: "pager" },
        this.state,
        this.pauseButton,
        this.stopButton,
        h("button", { type: "button", class: "quiet", onclick: () => this.clear() }, "Clear"),
        this.figures,
      ),
      this.problem,
      this.missing,
      this.hurt,
      this.empty,
      this.rows,
    );
    this.clear();
  }

  clear() {
    this.rows.replaceChildren();
    this.held = [];
    this.seen = 0;
    this.leftOut = 0;
    this.isPaused = false;
    this.tell();
  }

  tell() {
    this.empty.hidden = this.rows.children.length > 0;
    this.rows.hidden = !this.empty.hidden;
    replace(
      this.figures,
      count(this.seen),
      " seen, ",
      h("strong", null, count(this.leftOut), " left out"),
      this.isPaused && [", ", count(this.held.length), " held while paused"],
      this.seen > ROWS_MAX && `, the newest ${ROWS_MAX} are shown`,
    );
  }

  pause(isPaused) {
    this.isPaused = isPaused;
    this.pauseButton.setAttribute("aria-pressed", String(isPaused));
    this.pauseButton.textContent = isPaused ? "Go on" : "Pause";
    if (!isPaused) {
      this.put(this.held);
      this.held = [];
    }
    replace(this.state, isPaused ? badge("warn", "paused") : badge("good", "live"));
    this.tell();
  }

  stop(word) {
    this.controller?.abort();
    this.controller = null;
    this.pauseButton.disabled = true;
    this.stopButton.disabled = true;
    replace(this.state, badge("idle", word));
  }

  async start(values) {
    this.controller?.abort();
    const own = new AbortController();
    this.controller = own;
    this.view.signal.addEventListener("abort", () => own.abort(), { once: true });
    this.clear();
    this.parts.clear();
    this.damaged = [];
    replace(this.missing);
    replace(this.hurt);
    this.pauseButton.disabled = false;
    this.stopButton.disabled = false;
    this.pause(false);
    replace(this.problem);
    const request = {
      topic: values.topic.trim(),
      liteTopic: values.lite.trim(),
      filter: filterOf(values),
      messagesPerSecondMax: Number(values.rate),
    };
    if (values.queue !== "") request.queue = Number(values.queue);
    try {
      for await (const one of this.answers(request, own.signal)) {
        this.heard(one);
        if (one.answer) this.take(one);
      }
      const over = [...this.parts.values()].find((one) => one.code);
      if (over) throw new CallError(over.code, `${over.member}: ${over.problem}`, 0);
      if (this.controller === own) this.stop("the broker has ended the live tail");
    } catch (error) {
      if (isAbort(error)) return;
      if (error.code === "UNIMPLEMENTED" && !this.isAlone) {
        this.isAlone = true; // a broker of an older version tells of its own messages
        await this.start(values);
        return;
      }
      this.stop("ended");
      replace(
        this.problem,
        error.code === "UNIMPLEMENTED"
          ? h(
              "p",
              { class: "notice idle" },
              "○ This broker does not report new messages. ",
              link(["messages"], "Messages that are stored", { topic: request.topic }),
              " can be read.",
            )
          : failure(error, () => this.start(values)),
      );
    }
  }

  async *answers(request, signal) {
    if (!this.isAlone) {
      yield* this.view.streamMembers("BrowsingService/TailMessages", request, signal);
      return;
    }
    for await (const answer of this.view.stream("BrowsingService/TailMessages", request, signal))
      yield { member: this.view.session.broker, isSelf: true, answer };
  }

  // Whose messages come, and whose do not any more.
  heard({ member, isSelf, code = "", problem = "" }) {
    this.parts.set(member, { member, isSelf, code: code === "OK" ? "" : code, problem });
    replace(this.missing, missingParts([...this.parts.values()]));
  }

  take({ member, answer: { messages, leftOut, damaged = [] } }) {
    if (damaged.length) {
      const of = this.parts.size > 1 ? member : "";
      this.damaged = [...damaged.map((one) => ({ ...one, of })), ...this.damaged].slice(0, DAMAGED_MAX);
      replace(this.hurt, passedOver(this.damaged));
    }
    this.seen += messages.length;
    this.leftOut += Number(leftOut ?? 0);
    const fresh = messages.map((one) => ({ ...messageOf(one), member }));
    if (this.isPaused) {
      this.held.push(...fresh);
      if (this.held.length > HELD_MAX) this.leftOut += this.held.splice(0, this.held.length - HELD_MAX).length;
    } else {
      this.put(fresh);
    }
    this.tell();
  }

  put(messages) {
    this.rows.prepend(
      ...messages
        .slice(-ROWS_MAX)
        .reverse()
        .map((one) =>
          h(
            "li",
            null,
            placeLink(one),
            this.parts.size > 1 && h("span", { class: "member" }, one.member),
            time(one.storedAtMs),
            one.liteTopic && h("strong", null, one.liteTopic),
            one.tag && h("span", null, one.tag),
            (one.keys ?? []).length > 0 && h("span", { class: "note" }, one.keys.join(" ")),
            preview(one.body),
          ),
        ),
    );
    while (this.rows.children.length > ROWS_MAX) this.rows.lastChild.remove();
  }
}
