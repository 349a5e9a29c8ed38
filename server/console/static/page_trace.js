// What has become of the messages that have a key.
import { field, valuesOf, wrong } from "./dialog.js";
import { h, replace } from "./dom.js";
import { localInputMs } from "./format.js";
import { address } from "./links.js";
import { answered, missingParts, rowsOf } from "./members.js";
import { messageOf, messagesTable } from "./messages_table.js";
import { topicField } from "./names.js";
import { unread } from "./page_messages.js";
import { traceView } from "./trace_view.js";
import { section } from "./view.js";

const LIMIT = 20;

export async function show(view) {
  view.begin("Trace", {
    lead: "The newest messages of a topic with a key or id, and their state for each group.",
  });
  const found = h("div");
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
          address(["trace"], { topic: values.topic, key: values.key, from: values.from, to: values.to }),
        );
        replace(
          found,
          section(view, "Found", () => trace(view, values)),
        );
      },
    },
    h("div", { class: "grow" }, topicField(view, { value: view.query("topic"), "data-first": true })),
    h(
      "div",
      { class: "grow" },
      field({ name: "key", label: "Key or message id", required: true, value: view.query("key") }),
    ),
    field({ name: "from", label: "Stored from", type: "datetime-local", value: view.query("from") }),
    field({ name: "to", label: "Stored up to", type: "datetime-local", value: view.query("to") }),
    h("button", { type: "submit", class: "primary" }, "Trace"),
  );
  view.add(form, found);
  if (view.query("topic") && view.query("key")) form.requestSubmit();
}

async function trace(view, values) {
  const request = {
    topic: values.topic.trim(),
    key: values.key.trim(),
    limit: LIMIT,
    fromMs: String(localInputMs(values.from) ?? 0),
  };
  if (!request.topic || !request.key) throw wrong("Topic and key: both are required");
  const until = localInputMs(values.to);
  if (until !== null) request.toMs = String(until);
  const parts = await view.callMembers("QueryService/TraceMessages", request);
  const answers = answered(parts).flatMap((one) => one.answers);
  const notes = [missingParts(parts), unread(answers.flatMap((one) => one.unread ?? []))];
  const found = rowsOf(parts, (answer) => answer.messages.map((trace) => ({ trace, message: messageOf(trace) })));
  if (!found.length) return [notes, h("p", { class: "empty" }, "No message of the topic has this key.")];
  return [
    notes,
    answers.some((one) => one.hasMore) && h("p", { class: "notice info" }, "● There are more; a time leads to older ones."),
    found
      .sort((one, other) => other.message.storedAtMs - one.message.storedAtMs)
      .map(({ trace, message, member }) =>
        h(
          "div",
          { class: "traced" },
          messagesTable(`Message ${message.messageId ?? message.offsetId}`, [{ ...message, member }], { parts }),
          traceView(trace),
        ),
      ),
  ];
}
