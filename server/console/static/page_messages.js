// Messages of a topic: the newest, from a time, from an offset, by id, by key; with the filters of consumers.
import { base64Of } from "./api.js";
import { field, valuesOf, wrong } from "./dialog.js";
import { h, replace } from "./dom.js";
import { count, isKnown, localInputMs, time } from "./format.js";
import { address, link } from "./links.js";
import { answered, isMany, Merged, missingParts, rowsOf } from "./members.js";
import { firstSteps } from "./first_steps.js";
import { exportButtons } from "./export.js";
import { messageOf, messageRow, messagesTable } from "./messages_table.js";
import { topicField } from "./names.js";
import { pager } from "./table.js";
import { failure, isPhone, section } from "./view.js";

const HOWS = [
  ["newest", "the newest first"],
  ["oldest", "the oldest first"],
  ["time", "from a time on"],
  ["offset", "from an offset of a queue on"],
  ["id", "by id"],
  ["key", "by key"],
];
const LIMITS = [
  ["20", "20"],
  ["50", "50"],
  ["200", "200"],
  ["500", "500"],
];
const PARAMETERS = [
  "topic",
  "lite",
  "how",
  "queue",
  "time",
  "offset",
  "id",
  "key",
  "expression",
  "sql",
  "has",
  "limit",
];
const SHOWN = { time: ["time"], offset: ["offset"], id: ["id"], key: ["key"] };

export async function show(view) {
  view.begin("Messages");
  const asked = Object.fromEntries(PARAMETERS.map((name) => [name, view.query(name)]));
  asked.how ||= "newest";
  const found = h("div");
  const form = h(
    "form",
    {
      class: "panel",
      onsubmit: (event) => {
        event.preventDefault();
        const values = valuesOf(form);
        // The address has only what counts, so that it can be kept and given to others.
        const query = Object.fromEntries(
          Object.entries(values)
            .filter(([name, value]) => value && isAsked(values.how, name))
            .map(([name, value]) => [name, value === true ? "yes" : value]),
        );
        history.replaceState(null, "", address(["messages"], query));
        look(view, values, found);
      },
    },
    h(
      "div",
      { class: "filters" },
      h("div", { class: "grow" }, topicField(view, { value: asked.topic, "data-first": !asked.topic })),
      field({ name: "how", label: "Which", options: HOWS, value: asked.how }),
      field({ name: "time", label: "Time", type: "datetime-local", value: asked.time }),
      field({ name: "offset", label: "Offset", type: "number", min: "0", value: asked.offset }),
      field({ name: "id", label: "Message id", value: asked.id }),
      field({ name: "key", label: "Key", value: asked.key }),
      field({ name: "queue", label: "Queue", type: "number", min: "0", value: asked.queue, placeholder: "all" }),
      field({ name: "limit", label: "At most", options: LIMITS, value: asked.limit || (isPhone() ? "20" : "50") }),
      h("button", { type: "submit", class: "primary" }, "Show"),
    ),
    h(
      "details",
      { open: Boolean(asked.expression || asked.has || asked.lite) },
      h("summary", null, "Filter"),
      h(
        "div",
        { class: "filters" },
        field({ name: "lite", label: "Lite topic", value: asked.lite }),
        h(
          "div",
          { class: "grow" },
          field({
            name: "expression",
            label: "Tags or SQL",
            value: asked.expression,
            placeholder: "paid || sent",
            hint: "as consumers filter",
          }),
        ),
        field({ name: "sql", label: "it is SQL", type: "checkbox", value: asked.sql === "yes" }),
        h("div", { class: "grow" }, field({ name: "has", label: "Body contains", value: asked.has, maxlength: "256" })),
      ),
    ),
  );
  const adapt = () => {
    const { how } = valuesOf(form);
    for (const name of ["time", "offset", "id", "key", "queue", "limit"])
      form.elements[name].closest("label").hidden = !isAsked(how, name);
    form.querySelector("details").hidden = how === "id" || how === "key";
  };
  form.elements.how.addEventListener("change", adapt);
  adapt();
  view.add(form, found);
  if (!asked.topic) found.append(chooseTopic(view, "messages"));
  if (asked.topic) look(view, valuesOf(form), found);
}

// The busiest topics, for who has not named one.
export function chooseTopic(view, page) {
  return section(view, "Choose a topic", async () => {
    const { topics } = await view.call("OverviewService/ListTopicFigures", { order: "FIGURE_ORDER_BUSIEST", limit: 20 });
    if (!topics.length) return firstSteps(view, "topics");
    return h(
      "ul",
      { class: "choices" },
      topics.map(({ topic }) => h("li", null, link([page], topic.name, { topic: topic.name }))),
    );
  });
}

function isAsked(how, name) {
  if (Object.keys(SHOWN).includes(name)) return (SHOWN[how] ?? []).includes(name);
  if (["queue", "lite", "expression", "sql", "has"].includes(name)) return how !== "id" && how !== "key";
  return name !== "limit" || how !== "id";
}

function look(view, values, place) {
  try {
    const topic = values.topic.trim();
    if (!topic) throw wrong("Topic: required");
    const loaders = { id: byId, key: byKey };
    const pages = pager();
    const load = loaders[values.how] ?? browse;
    const list = section(view, "Found", () => load(view, topic, values, pages, () => list.refresh()));
    replace(place, list);
  } catch (error) {
    replace(place, failure(error));
  }
}

async function byId(view, topic, values) {
  if (!values.id.trim()) throw wrong("Message id: required");
  const parts = await view.callMembers("QueryService/GetMessage", { topic, id: values.id.trim() });
  const there = answered(parts, ["NOT_FOUND"]);
  return [
    missingParts(parts, ["NOT_FOUND"]),
    there.map(({ answers: [answer] }) => [
      answer.sameId > 1 &&
        h("p", { class: "notice info" }, `● ${answer.sameId} messages have this id; this is the newest.`),
      unread(answer.unread),
    ]),
    messagesTable("The message", rowsOf(there, (answer) => [messageOf(answer.message)]), { parts }),
  ];
}

async function byKey(view, topic, values, pages, refresh) {
  if (!values.key.trim()) throw wrong("Key: required");
  const limit = Number(values.limit);
  const skip = pages.after ?? 0;
  const parts = await view.callMembers("QueryService/QueryMessages", { topic, key: values.key.trim(), limit, skip });
  const answers = answered(parts).flatMap((one) => one.answers);
  const behind = answers.some((one) => BigInt(one.dispatchedOffset) > BigInt(one.indexedOffset));
  const messages = rowsOf(parts, (answer) => answer.messages.map(messageOf)).sort(isNewer);
  return [
    missingParts(parts),
    unread(answers.flatMap((one) => one.unread ?? [])),
    behind && h("p", { class: "notice warn" }, "▲ The index is still catching up: newer messages may be missing."),
    messagesTable("Messages with this key", messages, { empty: "No message of the topic has this key.", parts }),
    pages.bar({
      next: answers.some((one) => one.hasMore || one.messages.length === limit) ? skip + limit : null,
      refresh,
      extra: saving(topic, messages),
      note: link(["trace"], "What has become of them", { topic, key: values.key.trim() }),
    }),
  ];
}

const isNewer = (one, other) => other.storedAtMs - one.storedAtMs;

function saving(topic, found) {
  return found.length > 0 && exportButtons(`${topic}-messages`, found.map(messageRow));
}

export function unread(files) {
  return (
    (files ?? []).length > 0 &&
    h(
      "p",
      { class: "notice warn" },
      "▲ Some index files could not be read, so messages may be missing: ",
      files.map((one) => `${one.name}: ${one.reason}`).join("; "),
    )
  );
}

// Records that are damaged, whose member is `of` where there are several, with the command that helps.
export function passedOver(damaged, help = "A group goes on behind one with the command.") {
  return (
    (damaged ?? []).length > 0 &&
    h(
      "div",
      { class: "notice bad" },
      h("p", null, `✖ Damaged records are passed over. ${help}`),
      damaged.map((one) =>
        h(
          "p",
          null,
          one.of && h("strong", null, `${one.of}: `),
          `Queue ${one.queue}, offset ${one.offset}: ${one.reason} `,
          h("code", null, one.command),
        ),
      ),
    )
  );
}

export function filterOf(values) {
  const filter = { expression: values.expression.trim(), isSql: values.sql, bodyContains: base64Of(values.has) };
  return filter.expression || values.has ? filter : undefined;
}

async function browse(view, topic, values, pages, refresh) {
  const request = {
    topic,
    liteTopic: values.lite.trim(),
    isAscending: values.how !== "newest",
    limit: Number(values.limit),
    filter: filterOf(values),
  };
  if (values.queue !== "") request.queue = Number(values.queue);
  if (values.how === "time") {
    const since = localInputMs(values.time);
    if (since === null) throw wrong("Time: required");
    request.storedMs = String(since);
  } else if (values.how === "offset") {
    if (values.offset === "" || values.queue === "") throw wrong("Queue and offset: say both");
    request.offset = values.offset;
  }
  const at = pages.after ?? 0;
  pages.found ??= new Browsed(view, request);
  const { messages, lookedAt, lookedUpToMs, damaged, isOver } = await pages.found.page(at);
  const { parts } = pages.found;
  return [
    missingParts(parts),
    passedOver(damaged),
    messagesTable("Messages", messages, {
      empty: isOver ? "There are none." : "None so far; Next continues the search.",
      parts,
    }),
    pages.bar({
      next: isOver ? null : at + 1,
      refresh,
      note: [
        count(lookedAt),
        " checked",
        isKnown(lookedUpToMs) && [", up to ", time(lookedUpToMs)],
        !isOver && messages.length < request.limit && "; Next continues the search",
        isOver && "; end reached",
      ],
      extra: saving(topic, messages),
    }),
  ];
}

// The pages of a search through the messages of all members, in one order. Those that were shown are kept for the way
// back.
class Browsed {
  constructor(view, request) {
    this.view = view;
    this.request = request;
    this.pages = [];
    this.parts = [];
  }

  async page(at) {
    while (this.pages.length <= at) this.pages.push(await this.next());
    return this.pages[at];
  }

  async next() {
    this.round = { lookedAt: 0, ends: [], damaged: [] };
    this.merged ??= await this.begun();
    const messages = await this.merged.page(this.request.limit);
    const { lookedAt, ends, damaged } = this.round;
    const known = ends.filter(isKnown).map(Number);
    const lookedUpToMs = known.length ? Math[this.request.isAscending ? "max" : "min"](...known) : undefined;
    return { messages, lookedAt, lookedUpToMs, damaged, isOver: this.merged.isOver };
  }

  async begun() {
    this.parts = await this.view.callMembers("BrowsingService/BrowseMessages", this.request);
    const first = answered(this.parts).map((one) => this.taken(one.member, one.answers[0]));
    const ask = async (member, cursor) => {
      const more = { ...this.request, cursor, storedMs: undefined, offset: undefined };
      return this.taken(member, await this.view.on(member).call("BrowsingService/BrowseMessages", more));
    };
    const by = this.request.isAscending ? 1 : -1;
    return new Merged(first, ask, (one, other) => by * (one.storedAtMs - other.storedAtMs) < 0);
  }

  taken(member, answer) {
    this.round.lookedAt += Number(answer.lookedAt);
    this.round.ends.push(answer.lookedUpToMs);
    const of = isMany(this.parts) ? member : "";
    this.round.damaged.push(...(answer.damaged ?? []).map((one) => ({ ...one, of })));
    return { member, rows: answer.messages.map((one) => ({ ...messageOf(one), member })), next: answer.next ?? null };
  }
}
