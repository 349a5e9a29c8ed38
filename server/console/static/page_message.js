// One message: where it lies, what it says, who got it, and sending it once more.
import { bodyView } from "./body_view.js";
import { confirm } from "./dialog.js";
import { h } from "./dom.js";
import { bytes, count, exact, isKnown, time } from "./format.js";
import { link, messageLink, topicLink } from "./links.js";
import { answered, isMany } from "./members.js";
import { messageOf } from "./messages_table.js";
import { topicField } from "./names.js";
import { unread } from "./page_messages.js";
import { facts, table } from "./table.js";
import { traceView } from "./trace_view.js";
import { panel, section } from "./view.js";
import { followJob, beginJob, workButton } from "./work.js";

export async function show(view) {
  const topic = view.query("topic");
  const id = view.query("id");
  const [queue, offset] = [view.query("queue"), view.query("offset")];
  view.begin(id ? `Message ${id}` : `Message ${queue}/${offset}`, {
    lead: [link(["messages"], "Messages", { topic }), " of ", topic ? topicLink(topic) : "all topics"],
  });
  const which = id ? { id } : { place: { queue: Number(queue), offset } };
  const { member, answer, parts } = await found(view, { topic, ...which });
  view.member = member;
  const named = isMany(parts) ? member || view.session.broker : view.query("member");
  const message = { ...messageOf(answer.message), member: named };
  const here = answer.message.queues?.[0] ?? message;
  const beside = neighbours({ member, topic: here.topic || topic, queue: here.queue, offset: Number(here.offset) });
  if (message.problem) {
    view.add(
      panel(
        "Place",
        h("p", { class: "notice bad" }, "✖ ", message.problem),
        h("p", null, "Location in the log: ", exact(message.physicalOffset)),
      ),
    );
    return;
  }
  view.add(
    panel("Location and origin", [
      answer.sameId > 1 &&
        h("p", { class: "notice info" }, `● ${answer.sameId} messages of the topic have this id; this is the newest.`),
      unread(answer.unread),
      headFacts(message),
      beside,
    ]),
    panel("Body", bodyView(message)),
    panel(
      "Properties",
      table(
        "Properties",
        [
          { title: "Name", cell: ([name]) => h("span", { class: "mono" }, name) },
          { title: "Value", kind: "wide", cell: ([, value]) => h("span", { class: "mono" }, value) },
        ],
        Object.entries(message.properties ?? {}),
        { empty: "The message has no properties." },
      ),
    ),
    section(view, "State for each group", async () => traceView(answer.message)),
    resend(view, message, here),
  );
}

// A place is one of a member; an id is looked for on all of them.
async function found(view, request) {
  if (!request.id) return { member: view.member, answer: await view.call("QueryService/GetMessage", request), parts: [] };
  const parts = await view.callMembers("QueryService/GetMessage", request);
  const [first] = answered(parts, ["NOT_FOUND"]);
  return { member: first.isSelf ? "" : first.member, answer: first.answers[0], parts };
}

function headFacts(it) {
  return facts([
    ["Topic", topicLink(it.topic)],
    it.member && ["Member", it.member],
    ["Queue and offset", `${it.queue} / ${it.offset}`],
    ["Stored", time(it.storedAtMs)],
    ["Born", time(it.bornAtMs)],
    ["Message id", h("span", { class: "mono" }, it.messageId ?? "none was given")],
    ["Offset id", h("span", { class: "mono" }, it.offsetId ?? "unknown")],
    ["Tag", it.tag ?? "none"],
    ["Keys", it.keys?.length ? it.keys.map((key) => [link(["trace"], key, { topic: it.topic, key }), " "]) : "none"],
    it.messageGroup && ["Message group", it.messageGroup],
    it.liteTopic && ["Lite topic", link(["messages"], it.liteTopic, { topic: it.topic, lite: it.liteTopic })],
    isKnown(it.deliverAtMs) && ["Delivery time", time(it.deliverAtMs)],
    ["Earlier deliveries", count(it.reconsumeTimes)],
    it.transactionState && ["Transaction", String(it.transactionState)],
    ["Came from", it.bornHost ?? "unknown"],
    ["Stored by", it.storeHost ?? "unknown"],
    ["Location in the log", exact(it.physicalOffset)],
    ["Body in the log", bytes(it.bodySize)],
  ]);
}

function neighbours({ member, topic, queue, offset }) {
  if (!Number.isFinite(offset)) return null;
  return h(
    "p",
    { class: "pager" },
    offset > 0 && messageLink(topic, queue, offset - 1, "Previous", member),
    messageLink(topic, queue, offset + 1, "Next", member),
    link(["messages"], "Those behind it", { topic, queue, how: "offset", offset }),
  );
}

function resend(view, message, here) {
  const to = topicField(view, { name: "to", label: "Send it to", value: message.topic });
  const place = h("div", { role: "status" });
  const button = workButton("Send once more", async () => {
    const toTopic = to.querySelector("input").value.trim();
    const work = {
      resendMessages: {
        topic: here.topic || message.topic,
        toTopic,
        queue: here.queue,
        fromOffset: String(here.offset),
        toOffset: String(Number(here.offset) + 1),
      },
    };
    const job = await confirm({
      title: "Send the message once more?",
      label: "Send",
      act: () => beginJob(view, work),
      body: `A new message with the same body, properties and keys is stored in ${toTopic}. All groups that read this topic receive it.`,
    });
    if (!job) return null;
    return new Promise((resolve) =>
      place.replaceChildren(followJob(view, job, (ended) => resolve(`the job is ${ended.state}`))),
    );
  });
  return panel("Send it once more", h("div", { class: "filters" }, to), h("p", null, button), place);
}
