// A test message, and where it went.
import { base64Of, CallError } from "./api.js";
import { preview } from "./body_view.js";
import { field, pairsOf, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { badge, bytes, durationText, localInputMs, time, timeText } from "./format.js";
import { link, messageLink } from "./links.js";
import { facts } from "./table.js";
import { failure, isAbort, panel } from "./view.js";

const LOOKS = 10;
const LOOK_MS = 500;

export function sendForm(view, topic, sent) {
  const said = h("div", { role: "status" });
  const go = h("button", { type: "submit", class: "primary" }, "Send");
  const form = h(
    "form",
    {
      onsubmit: async (event) => {
        event.preventDefault();
        go.disabled = true;
        replace(said, "sending …");
        try {
          const request = requestOf(topic, valuesOf(form));
          const began = performance.now();
          const { messageId } = await view.call("Admin/AdminSendMessage", request);
          const sentMs = performance.now() - began;
          const head = [
            `✓ Sent and stored in ${durationText(sentMs)} as `,
            h("span", { class: "mono" }, messageId),
            ". ",
          ];
          replace(said, h("p", { class: "notice good" }, head, "Looking for where it went …"));
          replace(said, h("p", { class: "notice good" }, head), await readAgain(view, request, messageId, began));
          sent();
        } catch (error) {
          replace(said, failure(error));
        }
        go.disabled = false;
      },
    },
    h(
      "div",
      { class: "fields" },
      field({ name: "body", label: "Body", type: "textarea", rows: "4", value: '{"test": true}' }),
      h(
        "div",
        { class: "filters" },
        field({ name: "tag", label: "Tag" }),
        field({ name: "key", label: "Key" }),
        field({ name: "group", label: "Message group", hint: "in a FIFO topic" }),
        field({ name: "lite", label: "Lite topic", hint: "in a lite topic's parent" }),
        field({ name: "deliver", label: "Deliver at", type: "datetime-local", hint: "in a delay topic" }),
      ),
      field({ name: "properties", label: "Properties", type: "textarea", rows: "2", hint: "one per line: name=value" }),
    ),
    h("div", { class: "buttons" }, go),
    said,
  );
  return panel(
    "Send a test message",
    h("p", { class: "lead" }, "It is a message like any other: whoever reads the topic gets it."),
    form,
  );
}

function requestOf(topic, values) {
  const system = {};
  if (values.group.trim()) system.messageGroup = values.group.trim();
  if (values.lite.trim()) system.liteTopic = values.lite.trim();
  const deliver = localInputMs(values.deliver);
  if (deliver !== null) system.deliveryTimestamp = new Date(deliver).toISOString();
  const request = {
    topic: { name: topic },
    body: base64Of(values.body),
    userProperties: pairsOf(values.properties),
    systemProperties: system,
  };
  if (values.tag.trim()) request.tag = values.tag.trim();
  if (values.key.trim()) request.key = values.key.trim();
  return request;
}

// The message as it is read from its queue, and after how long; why that is not known, otherwise.
async function readAgain(view, request, id, began) {
  const topic = request.topic.name;
  const deliverAt = request.systemProperties.deliveryTimestamp;
  if (deliverAt && Date.parse(deliverAt) > Date.now()) {
    return h(
      "p",
      { class: "notice info" },
      `● The message is pending until ${timeText(Date.parse(deliverAt))}; then it is delivered. `,
      link(["pending"], "What is pending"),
    );
  }
  for (let look = 0; look < LOOKS; look += 1) {
    try {
      const { message } = await view.call("QueryService/GetMessage", { topic, id });
      return roundTrip(topic, message.message, request.body, performance.now() - began);
    } catch (error) {
      if (isAbort(error)) throw error;
      if (!(error instanceof CallError) || error.code !== "NOT_FOUND") {
        return h(
          "p",
          { class: "notice warn" },
          "▲ The location of the message is unknown: ",
          error.message,
          ". ",
          link(["messages"], "The newest messages", { topic }),
        );
      }
      await new Promise((resolve) => {
        setTimeout(resolve, LOOK_MS);
      });
    }
  }
  return h(
    "p",
    { class: "notice warn" },
    `▲ After ${durationText(performance.now() - began)} the message cannot be read yet. `,
    link(["messages"], "The newest messages", { topic }),
  );
}

function roundTrip(topic, message, sentBody, tookMs) {
  const isSame = message.body?.base64 === sentBody;
  return [
    h(
      "p",
      { class: "notice good" },
      `✓ Read again ${durationText(tookMs)} after the send. `,
      messageLink(topic, message.queue, message.offset, `The message is in queue ${message.queue} at offset ${message.offset}`),
      ".",
    ),
    facts([
      ["Body as read", isSame ? badge("good", "the same as was sent") : badge("warn", "not what was sent, or cut")],
      ["Begins with", preview(message.body)],
      ["Stored", time(message.storedAtMs)],
      ["Size", bytes(message.bodySize)],
    ]),
  ];
}
