// Messages as rows.
import { h } from "./dom.js";
import { bytes, time } from "./format.js";
import { link, messageLink } from "./links.js";
import { preview } from "./body_view.js";
import { table } from "./table.js";

// The decoded record of a FoundMessage, MessageTrace or BrowsedMessage, with the place where it was found.
export function messageOf(found) {
  const record = found.message?.message ?? found.message ?? {};
  return found.message?.message
    ? {
        ...record,
        topic: found.topic || record.topic,
        queue: found.queue,
        offset: Number(found.offset),
        liteOffset: found.liteOffset,
      }
    : record;
}

export function placeLink(message) {
  return messageLink(message.topic, message.queue, message.offset);
}

// Short keys stay in one piece.
const keyLink = (topic, key) => link(["trace"], key, { topic, key }, { class: key.length > 20 ? null : "whole" });

export function messagesTable(caption, messages, { empty, extra = [], withTopic = false } = {}) {
  return table(
    caption,
    [
      {
        title: "Queue/offset",
        cell: (one) => [placeLink(one), one.liteOffset !== undefined && h("small", null, ` lite ${one.liteOffset}`)],
      },
      { title: "Stored", cell: (one) => time(one.storedAtMs) },
      withTopic && { title: "Topic", cell: (one) => one.topic },
      { title: "Id", kind: "wide", cell: (one) => h("span", { class: "mono" }, one.messageId ?? one.offsetId) },
      { title: "Tag", cell: (one) => one.tag ?? h("span", { class: "none" }, "none") },
      {
        title: "Keys",
        kind: "wide",
        cell: (one) =>
          one.keys?.length
            ? one.keys.map((key) => [keyLink(one.topic, key), " "])
            : h("span", { class: "none" }, "none"),
      },
      {
        title: "Body",
        kind: "wide",
        cell: (one) => [one.liteTopic && h("strong", null, `${one.liteTopic} `), preview(one.body)],
      },
      { title: "Size", kind: "number", cell: (one) => bytes(one.bodySize) },
      ...extra,
    ].filter(Boolean),
    messages,
    { empty },
  );
}
