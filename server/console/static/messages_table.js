// Messages as rows.
import { h } from "./dom.js";
import { age, bytes, none } from "./format.js";
import { link, messageLink } from "./links.js";
import { memberColumn } from "./members.js";
import { preview } from "./body_view.js";
import { messagePanel } from "./message_panel.js";
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
  return messageLink(message.topic, message.queue, message.offset, undefined, message.member);
}

// Short keys stay in one piece.
const keyLink = (topic, key) => link(["trace"], key, { topic, key }, { class: key.length > 20 ? null : "whole" });

// One line for each, and beside them the one that was chosen.
export function messagesTable(caption, messages, { empty, withTopic = false, parts = [] } = {}) {
  const place = h("div", { class: "beside" });
  const list = table(
    caption,
    [
      {
        title: "Queue/offset",
        cell: (one) => [placeLink(one), one.liteOffset !== undefined && h("small", null, ` lite ${one.liteOffset}`)],
      },
      { title: "Stored", cell: (one) => age(one.storedAtMs) },
      memberColumn(parts),
      withTopic && { title: "Topic", cell: (one) => one.topic },
      { title: "Tag", cell: (one) => one.tag ?? none() },
      {
        title: "Keys",
        cell: (one) => (one.keys?.length ? one.keys.map((key) => [keyLink(one.topic, key), " "]) : none()),
      },
      {
        title: "Body",
        kind: "fill",
        cell: (one) => [one.liteTopic && h("strong", null, `${one.liteTopic} `), preview(one.body)],
      },
      { title: "Size", kind: "number", less: true, cell: (one) => bytes(one.bodySize) },
    ].filter(Boolean),
    messages,
    { empty, lines: true },
  );
  if (!messages.length) return list;
  const rows = [...list.querySelectorAll("tbody tr")];
  const messageIn = new Map(rows.map((row, at) => [row, messages[at]]));
  let chosen = null;
  const close = () => {
    const link = chosen?.querySelector("a");
    mark(null);
    place.replaceChildren(list);
    link?.focus();
  };
  const mark = (row) => {
    chosen?.removeAttribute("aria-selected");
    chosen?.classList.remove("chosen");
    chosen = row;
    row?.classList.add("chosen");
    place.classList.toggle("open", row !== null);
  };
  const open = (row) => {
    mark(row);
    const element = messagePanel(messageIn.get(row), step, close);
    place.replaceChildren(list, element);
    row.scrollIntoView({ block: "nearest" });
    element.querySelector("h3").focus({ preventScroll: true });
  };
  // In the order that is shown, which may be sorted.
  const step = (by) => {
    const next = by < 0 ? chosen.previousElementSibling : chosen.nextElementSibling;
    if (next) open(next);
  };
  list.addEventListener("click", (event) => {
    const row = event.target.closest("tbody tr");
    const link = event.target.closest("a");
    if (!row || event.ctrlKey || event.metaKey || event.shiftKey || (link && link !== row.querySelector("a"))) return;
    if (!link && String(getSelection())) return; // somebody marks text
    event.preventDefault();
    open(row);
  });
  place.append(list);
  return place;
}

// A message as a line of a file.
export function messageRow(one) {
  const { body, properties, bodySize: _, ...rest } = one;
  return { ...rest, body: body?.text ?? undefined, bodyBase64: body?.text == null ? body?.base64 : undefined, properties };
}
