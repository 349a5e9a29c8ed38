// A test message, and where it went.
import { base64Of, CallError } from "./api.js";
import { field, pairsOf, valuesOf } from "./dialog.js";
import { h, replace } from "./dom.js";
import { localInputMs, timeText } from "./format.js";
import { link, messageLink } from "./links.js";
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
          const { messageId } = await view.call("Admin/AdminSendMessage", request);
          replace(
            said,
            h(
              "p",
              { class: "notice good" },
              "✓ Sent as ",
              h("span", { class: "mono" }, messageId),
              ". ",
              h("span", null, "Looking for where it went …"),
            ),
          );
          const where = await whereabouts(view, topic, messageId, request.systemProperties.deliveryTimestamp);
          replace(
            said,
            h("p", { class: "notice good" }, "✓ Sent as ", h("span", { class: "mono" }, messageId), ". ", where),
          );
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
      field({ name: "properties", label: "Properties", type: "textarea", rows: "2", hint: "a line each: name=value" }),
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

// The place of the message, once it can be seen; why it is not known, otherwise.
async function whereabouts(view, topic, id, deliverAt) {
  if (deliverAt && Date.parse(deliverAt) > Date.now()) {
    return [
      `It waits until ${timeText(Date.parse(deliverAt))}; then it comes into a queue. `,
      link(["pending"], "What is pending"),
    ];
  }
  for (let look = 0; look < LOOKS; look += 1) {
    try {
      const { message } = await view.call("QueryService/GetMessage", { topic, id });
      const { queue, offset } = message.message;
      return [messageLink(topic, queue, offset, `It lies in queue ${queue} at offset ${offset}`), "."];
    } catch (error) {
      if (isAbort(error)) throw error;
      if (!(error instanceof CallError) || error.code !== "NOT_FOUND") {
        return [
          "Where it went is unknown: ",
          error.message,
          ". ",
          link(["messages"], "The newest messages", { topic }),
        ];
      }
      await new Promise((resolve) => {
        setTimeout(resolve, LOOK_MS);
      });
    }
  }
  return ["Where it went is not known yet. ", link(["messages"], "The newest messages", { topic })];
}
