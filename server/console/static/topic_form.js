// Fields of a topic, for making and changing one.
import { pairsOf, wrong } from "./dialog.js";

export const TYPES = [
  ["TOPIC_TYPE_NORMAL", "normal"],
  ["TOPIC_TYPE_FIFO", "FIFO, ordered by message group"],
  ["TOPIC_TYPE_DELAY", "delay"],
  ["TOPIC_TYPE_TRANSACTION", "transaction"],
  ["TOPIC_TYPE_LITE", "lite: parent of lite topics"],
  ["TOPIC_TYPE_PRIORITY", "priority"],
  ["TOPIC_TYPE_MIXED", "mixed"],
];
const PERMISSIONS = [
  ["PERMISSION_READ_WRITE", "read and write"],
  ["PERMISSION_READ", "read only"],
  ["PERMISSION_WRITE", "write only"],
  ["PERMISSION_NONE", "neither"],
];

// `topic` is null for a new one.
export function topicFields(topic) {
  return [
    !topic && { name: "name", label: "Name", required: true, maxlength: "127", hint: "letters, digits and % | _ -" },
    { name: "type", label: "Type", options: TYPES, value: topic?.type ?? TYPES[0][0] },
    {
      name: "readQueues",
      label: "Queues to read",
      type: "number",
      min: "1",
      value: topic?.readQueues ?? "",
      hint: topic ? null : "empty: the broker's default",
    },
    {
      name: "writeQueues",
      label: "Queues to write",
      type: "number",
      min: "1",
      value: topic?.writeQueues ?? "",
      hint: topic ? null : "empty: the broker's default",
    },
    topic && {
      name: "breakOrder",
      label: "change queues to write even if messages of message groups are unread",
      type: "checkbox",
      hint: "these messages lose their order",
    },
    { name: "permission", label: "Permission", options: PERMISSIONS, value: topic?.permission ?? PERMISSIONS[0][0] },
    {
      name: "attributes",
      label: "Attributes",
      type: "textarea",
      rows: "4",
      value: topic ? linesOf(topic.attributes) : "",
      hint: "one per line: name=value. An attribute with an empty value is removed",
    },
  ].filter(Boolean);
}

export function linesOf(attributes) {
  return Object.entries(attributes ?? {})
    .map(([name, value]) => `${name}=${value}`)
    .join("\n");
}

export function wholeNumber(text, name) {
  if (!/^\d+$/.test(text.trim())) throw wrong(`${name}: a whole number, not "${text}"`);
  return Number(text);
}

// The fields as a request has them; those of `before` that are the same are left out, lines that are gone removed.
export function attributesOf(values, before = null) {
  const request = { type: values.type, permission: values.permission };
  if (values.readQueues.trim()) request.readQueues = wholeNumber(values.readQueues, "Queues to read");
  if (values.writeQueues.trim()) request.writeQueues = wholeNumber(values.writeQueues, "Queues to write");
  request.attributes = changedPairs(pairsOf(values.attributes), before?.attributes ?? {});
  for (const name of ["type", "permission", "readQueues", "writeQueues"]) {
    if (before && String(before[name]) === String(request[name])) delete request[name];
  }
  if (values.breakOrder) request.breakOrder = true;
  return request;
}

export function changedPairs(now, before) {
  const changed = Object.fromEntries(
    Object.keys(before)
      .filter((name) => !(name in now))
      .map((name) => [name, ""]),
  );
  for (const [name, value] of Object.entries(now)) {
    if (before[name] !== value) changed[name] = value;
  }
  return changed;
}
