// Fields of a group, for making and changing one.
import { pairsOf } from "./dialog.js";
import { durationText } from "./format.js";
import { changedPairs, linesOf, wholeNumber } from "./topic_form.js";

export function groupFields(group) {
  return [
    !group && { name: "name", label: "Name", required: true, maxlength: "255" },
    {
      name: "fifo",
      label: "in order, message group by message group (FIFO)",
      type: "checkbox",
      value: group?.fifo ?? false,
    },
    {
      name: "maxAttempts",
      label: "Deliveries of a message before it becomes a dead letter",
      type: "number",
      min: "1",
      value: group?.maxAttempts ?? "",
      hint: group ? null : "empty: the broker's default",
    },
    {
      name: "delays",
      label: "Delays before redeliveries, milliseconds",
      value: (group?.customized?.delaysMs ?? []).join(" "),
      hint: "separated by blanks: 1000 5000 30000. Empty: no change",
    },
    {
      name: "attributes",
      label: "Attributes",
      type: "textarea",
      rows: "3",
      value: linesOf(group?.attributes),
      hint: "one per line: name=value",
    },
  ].filter(Boolean);
}

export function groupRequest(values, before = null) {
  const request = {};
  if (!before || values.fifo !== before.fifo) request.fifo = values.fifo;
  if (values.maxAttempts.trim() && values.maxAttempts !== String(before?.maxAttempts))
    request.maxAttempts = wholeNumber(values.maxAttempts, "Deliveries");
  const delays = values.delays
    .trim()
    .split(/[\s,]+/)
    .filter(Boolean);
  if (delays.length && delays.join(" ") !== (before?.customized?.delaysMs ?? []).join(" ")) {
    request.customized = { delaysMs: delays.map((one) => wholeNumber(one, "Delays")) };
  }
  request.attributes = changedPairs(pairsOf(values.attributes), before?.attributes ?? {});
  return request;
}

export function backoffText(group) {
  if (group.customized) return group.customized.delaysMs.map(durationText).join(", ");
  if (group.exponential) {
    const { initialMs, maximumMs, multiplier } = group.exponential;
    return `from ${durationText(initialMs)}, times ${multiplier}, up to ${durationText(maximumMs)}`;
  }
  return "unknown";
}
