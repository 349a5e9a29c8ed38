// A message beside the list that it is in.
import { bodyView } from "./body_view.js";
import { h } from "./dom.js";
import { age, bytes, exact } from "./format.js";
import { icon } from "./icons.js";
import { messageLink, topicLink } from "./links.js";
import { facts } from "./table.js";

// `step(by)` goes to another message of the list; `close()` puts the keyboard back there.
export function messagePanel(message, step, close) {
  const name = `Message ${message.queue}/${message.offset}`;
  const button = (text, act, picture = null) =>
    h("button", { type: "button", class: "quiet", "aria-label": text, title: text, onclick: act }, picture ?? text);
  const element = h(
    "aside",
    {
      class: "message-panel panel",
      "aria-label": name,
      onkeydown: (event) => {
        if (event.key === "Escape") close();
      },
    },
    h(
      "div",
      { class: "panel-head" },
      h("h3", { tabindex: "-1" }, name),
      button("Previous in the list", () => step(-1), "↑"),
      button("Next in the list", () => step(1), "↓"),
      button("Close", close, icon("close")),
    ),
    bodyView(message, { isBrief: true }),
    h("h4", null, "About it"),
    facts([
      message.topic && ["Topic", topicLink(message.topic)],
      message.member && ["Member", message.member],
      ["Stored", age(message.storedAtMs)],
      ["Born", age(message.bornAtMs)],
      ["Message id", h("span", { class: "mono" }, message.messageId ?? "none was given")],
      ["Tag", message.tag ?? "none"],
      ["Keys", message.keys?.length ? message.keys.join(" ") : "none"],
      message.messageGroup && ["Message group", message.messageGroup],
      message.liteTopic && ["Lite topic", message.liteTopic],
      ["Body", bytes(message.bodySize)],
      ["Location in the log", exact(message.physicalOffset)],
    ]),
    Object.keys(message.properties ?? {}).length > 0 &&
      h(
        "details",
        { open: true },
        h("summary", null, "Properties"),
        facts(Object.entries(message.properties).map(([key, value]) => [key, h("span", { class: "mono" }, value)])),
      ),
    h("p", null, messageLink(message.topic, message.queue, message.offset, "Who got it, and sending it once more", message.member)),
  );
  return element;
}
