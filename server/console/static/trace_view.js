// What has become of a message: its queues, and each group that reads them.
import { h } from "./dom.js";
import { badge, count, isKnown, time, unknown } from "./format.js";
import { groupLink, link } from "./links.js";
import { table } from "./table.js";

const STATES = {
  WAITING: ["idle", "waits, was never handed out"],
  IN_FLIGHT: ["info", "in flight"],
  RETRYING: ["warn", "waits for its next attempt"],
  DONE: ["good", "done: acknowledged or skipped"],
  DEAD_LETTERED: ["bad", "dead-lettered"],
  DONE_OR_DEAD_LETTERED: ["warn", "done or dead-lettered"],
};

export function messageState(state) {
  const [kind, text] = STATES[String(state).replace("MESSAGE_STATE_", "")] ?? ["info", null];
  return text ? badge(kind, text) : unknown();
}

const isOver = (one) => /DONE|DEAD_LETTERED/.test(String(one.state));
const unsaid = (one) => h("span", { class: "none" }, isOver(one) ? "not kept once it is done" : "not handed out");

// A dead letter leads to the group's dead letters.
const stateOf = (one) =>
  isKnown(one.deadLetterOffset)
    ? [
        messageState(one.state),
        " ",
        link(["dead-letters", one.group], `dead letter ${one.deadLetterOffset}`),
      ]
    : messageState(one.state);

// `trace` is a MessageTrace.
export function traceView(trace) {
  if (!trace.queues?.length)
    return h("p", { class: "empty" }, "It is in no queue: it waits for its time or its transaction, or has left.");
  return trace.queues.map((queue) => [
    h(
      "h3",
      null,
      `${queue.topic}, queue ${queue.queue}, offset ${queue.offset} `,
      queue.isThere ? badge("good", "is there") : badge("warn", "not in the queue (any more, or yet)"),
    ),
    table(
      `Groups that read queue ${queue.queue} of ${queue.topic}`,
      [
        { title: "Group", cell: (one) => groupLink(one.group) },
        { title: "State", cell: stateOf },
        { title: "Attempts", kind: "number", cell: (one) => (isKnown(one.attempts) ? count(one.attempts) : unsaid(one)) },
        { title: "Hidden until", cell: (one) => (isKnown(one.visibleAtMs) ? time(one.visibleAtMs) : unsaid(one)) },
        {
          title: "Last delivered to",
          kind: "wide",
          cell: (one) => (one.clientId ? h("span", { class: "mono" }, one.clientId) : unsaid(one)),
        },
      ],
      queue.groups ?? [],
      { empty: "No group has read this queue." },
    ),
  ]);
}
